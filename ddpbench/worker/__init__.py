"""The processes of a rank, `python -m ddpbench.worker`: training loop, proof, fork server."""
