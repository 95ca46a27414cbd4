"""The table of a run, one row per case: its columns, the values of a row, its file."""
