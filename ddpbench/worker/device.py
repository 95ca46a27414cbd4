"""Choice of the device on which a case's process computes."""

from __future__ import annotations

import os

import torch

from ddpbench.spec import Case


def device_of(case: Case, local_rank: int = 0) -> torch.device:
    """Return the torch device for a rank of `case`, and make it the current device.

    For a case on the CPU, hide all GPUs: torch's PowerSGD, for example, waits for a GPU even if its tensors are on the
    CPU. Call this before anything asks CUDA for its devices.
    """
    if case.device == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    hide_gpus()
    return torch.device("cpu")


def hide_gpus() -> None:
    """Hide all GPUs from code that looks for GPUs later in this process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
