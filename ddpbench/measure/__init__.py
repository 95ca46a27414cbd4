"""Clocks, spans, blocks and noise: everything that reads time in a rank."""
