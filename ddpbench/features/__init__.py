"""Features of ddpbench, a folder each, registered with the core as installed packages are.

`ddpbench.installed` reads `REGISTERED` of each. The core imports nothing from here, and no feature another.
"""
