"""Job sizes, their costs, and which one to ask for."""
