"""Clocks, spans, blocks and noise: the code that reads time in a rank."""
