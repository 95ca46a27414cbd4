"""The table of a run with one row per case: its columns, the values of a row, and its file."""
