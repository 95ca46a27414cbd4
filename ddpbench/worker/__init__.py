"""What a rank runs: `python -m ddpbench.worker`. The loop, the proof, the fork server."""
