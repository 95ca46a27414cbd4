"""Ranks that Ray Train starts. Modules for the process that starts Ray, each rank's parent process, and the rank."""
