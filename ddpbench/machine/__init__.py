"""The machine at hand: its cores and GPUs, claims on them, disturbances, the fork server, the end of launches.

Both the controlling side and the slots that another launcher starts use this package; it imports neither, nor torch.
"""
