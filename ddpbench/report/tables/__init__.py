"""Tables of the report that do not belong to a figure."""
