"""The life of a launch: fork servers, ranks, watchdog, order, estimates and how launches end.

Both the controlling side and slots started by another launcher use it; it imports neither, nor torch.
"""
