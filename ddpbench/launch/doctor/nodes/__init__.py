"""Checks of a job's nodes before the job: addresses and reachability, link speeds, and clocks."""
