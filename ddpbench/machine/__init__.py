"""The machine at hand: its cores and GPUs, claims on them, what disturbs it, its fork server, how launches end.

Both the controlling side and the slots that another launcher starts use it; it imports neither, nor torch.
"""
