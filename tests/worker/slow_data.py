"""Workloads for tests of input data and checkpoints; experiments name them by this file's path."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from ddpbench.workloads import NoOptions, Workload


class Samples(Dataset[Any]):
    """Samples that each take a while to load."""

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return torch.full((16,), index / 256), index % 4


class Net(nn.Module):
    """A small classifier with statistics, whose forward takes a while."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        self.sleep_s = sleep_s

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


class SlowData(Workload[NoOptions]):
    """Two milliseconds per sample, and next to no computation."""

    name = "slow_data"
    options = NoOptions
    batch_statistics = True

    def model(self, options: NoOptions) -> nn.Module:
        return Net()

    def dataset(self, options: NoOptions) -> Dataset[Any]:
        return Samples(0.002)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)


class QuickData(SlowData):
    """Forty milliseconds of computation; loading samples takes far less than 1 % of that, even on a slow machine."""

    def model(self, options: NoOptions) -> nn.Module:
        return Net(0.04)

    def dataset(self, options: NoOptions) -> Dataset[Any]:
        return Samples(0.0)


class Small(QuickData):
    """Quick in everything."""

    def model(self, options: NoOptions) -> nn.Module:
        return Net()


class Large(Small):
    """More state than a small disk holds: 8 MB of parameters."""

    def model(self, options: NoOptions) -> nn.Module:
        model = Net()
        model.layers[2] = nn.Sequential(nn.Linear(32, 60_000), nn.Linear(60_000, 4))
        return model


class KilledWhileSaving(Small):
    """Its rank 0 is killed when its state is asked for."""

    def model(self, options: NoOptions) -> nn.Module:
        model = Net()

        def kill(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if os.environ.get("RANK") == "0":
            model.register_state_dict_pre_hook(kill)
        return model
