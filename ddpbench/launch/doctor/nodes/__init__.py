"""Check the nodes of a job before it starts: addresses and reachability, link speeds, and clocks."""
