"""The device on which a case's process computes; all others are hidden. Imports torch at once."""

from __future__ import annotations

import os

import torch

from ddpbench.spec import Case


def device_of(case: Case, local_rank: int = 0) -> torch.device:
    """Return the device of a case's rank, after making it the current one.

    A case on a CPU sees no GPU from here on, since libraries take one if there is one (torch's own PowerSGD waits for
    the GPU of tensors that are on none). Call it before anything asks CUDA for its devices.
    """
    if case.device == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    hide_gpus()
    return torch.device("cpu")


def hide_gpus() -> None:
    """Hide all GPUs from all code of this process that looks for one from here on."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
