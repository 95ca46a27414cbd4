"""Reading of records into cases: launches, step times, transfers, overlap."""
