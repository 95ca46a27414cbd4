"""Strategies that train with a framework such as Lightning or Accelerate; each framework is an extra of ddpbench."""
