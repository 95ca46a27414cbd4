"""The tables that belong to no figure."""
