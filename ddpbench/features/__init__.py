"""Features of ddpbench, one folder each, registered with the core like installed packages.

The core imports no feature, and features do not import each other.
"""
