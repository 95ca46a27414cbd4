"""The device on which a case's process computes. Imports torch at once."""

from __future__ import annotations

import os

import torch

from ddpbench.spec import Case


def device_of(case: Case, local_rank: int = 0) -> torch.device:
    """Return the device of a case's rank, after making it the current one.

    A case on a CPU hides all GPUs, since libraries use a GPU if they see one. For example, torch's PowerSGD waits for
    the GPU even if its tensors are on the CPU. Call it before anything asks CUDA for its devices.
    """
    if case.device == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    hide_gpus()
    return torch.device("cpu")


def hide_gpus() -> None:
    """Hide all GPUs from code of this process that looks for one later."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
