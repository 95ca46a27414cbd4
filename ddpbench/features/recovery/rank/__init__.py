"""Training with snapshots, in a rank."""
