"""The `post_local_sgd` strategy: post-local SGD."""
