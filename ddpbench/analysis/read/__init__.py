"""Read records into cases: launches, step times, transfers, overlap."""
