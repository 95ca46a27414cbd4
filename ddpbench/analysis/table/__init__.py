"""The table of a run's cases: its columns, the values in a row, and its file."""
