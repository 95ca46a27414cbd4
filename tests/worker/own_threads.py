"""A script that chooses its own number of threads when it is imported."""

import os

os.environ["OMP_NUM_THREADS"] = "2"

import torch

from tests.worker.odd_models import Double

torch.set_num_threads(2)


class Threaded(Double):
    """The plain class under another name."""
