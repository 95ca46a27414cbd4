"""The `lightning` strategy: its options."""

from __future__ import annotations

from typing import Literal

from ddpbench.strategies.frameworks.over_ddp import OverDdpOptions


class LightningOptions(OverDdpOptions, extra="forbid", frozen=True):
    """Options that Lightning's users choose, with its defaults."""

    api: Literal["trainer", "fabric"] = "trainer"
    """Train by `Trainer.fit`, or by a hand-written loop with `Fabric`."""
    barebones: bool = False
    """Use `Trainer(barebones=True)`. ddpbench switches off the same costs anyway."""
