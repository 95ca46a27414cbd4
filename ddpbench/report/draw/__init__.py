"""How figures are drawn and look."""
