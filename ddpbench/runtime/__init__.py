"""Run launches: fork servers, ranks, the watchdog, launch order, time estimates and outcomes.

This package is used by the process that runs a sweep, and by slots, which another launcher such as torchrun starts. It
imports the code of neither, nor torch.
"""
