"""The table of a run, one row per case: its columns, how a row is made, its file."""
