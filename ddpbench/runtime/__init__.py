"""Run launches: fork servers, ranks, the watchdog, launch order, time estimates and outcomes.

Both the controlling side and the plan slots that another launcher starts use this package. The package imports neither
of them, nor torch.
"""
