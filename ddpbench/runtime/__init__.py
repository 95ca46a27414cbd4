"""Run launches: fork servers, ranks, the watchdog, launch order, time estimates and outcomes.

Both a sweep and slots, which a launcher such as torchrun starts, use this package. It does not import torch.
"""
