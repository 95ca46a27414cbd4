"""The life of a launch: fork servers, ranks, the watchdog, the order, time estimates and how launches end.

Both the controlling side and slots started by another launcher use this package. It imports neither of them, nor torch.
"""
