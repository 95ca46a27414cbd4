"""Strategies that train by a framework's loop: Lightning, Accelerate and others, each with its own extra."""
