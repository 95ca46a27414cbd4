"""The device on which a process of a case computes, and none beside it. Imports torch at once."""

from __future__ import annotations

import os

import torch

from ddpbench.spec import Case


def device_of(case: Case, local_rank: int = 0) -> torch.device:
    """Return the device of a case's rank, made the current one.

    A case on a CPU sees no GPU from here on: libraries look for one, and take it (torch's own PowerSGD waits for the
    GPU of tensors that are on none). Call it before anything asks CUDA for its devices.
    """
    if case.device == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    hide_gpus()
    return torch.device("cpu")


def hide_gpus() -> None:
    """Hides all GPUs from whatever of this process looks for one from here on."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
