"""The `pipeline` strategy: stages of one model."""
