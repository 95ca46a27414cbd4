"""Train with snapshots in a rank, for launches with a planned failure."""
