"""Ranks that Ray Train starts: code for the process that starts Ray, for each rank's parent process, and for ranks."""
