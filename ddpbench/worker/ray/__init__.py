"""Ranks that Ray Train starts: who starts Ray, what stands behind each rank's process, and the rank itself."""
