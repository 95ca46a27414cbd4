"""What records say of a case: launches, step times, transfers, overlap."""
