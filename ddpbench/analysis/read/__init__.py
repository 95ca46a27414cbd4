"""Records read into cases: launches, step times, transfers, overlap."""
