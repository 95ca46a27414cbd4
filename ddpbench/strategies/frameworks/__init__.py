"""Strategies that train with a framework such as Lightning or Accelerate, each an optional dependency."""
