"""Tables that do not belong to a figure."""
