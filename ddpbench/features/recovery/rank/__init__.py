"""A training with snapshots, in a rank."""
