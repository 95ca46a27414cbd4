"""Strategies that train by a framework's own way: Lightning, Accelerate and others, each an extra of its own."""
