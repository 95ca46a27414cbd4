"""Slots: the processes that another launcher starts, and the slot that leads them."""
