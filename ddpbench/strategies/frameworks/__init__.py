"""Strategies that train with a framework such as Lightning or Accelerate. Each framework is an optional dependency."""
