"""Evaluate after all training: forward and loss without gradients, timed in blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ddpbench.measure.blocks import MIN_BLOCK_STEPS, Stepper, run_block
from ddpbench.records import Block
from ddpbench.strategies import Replica

EVALUATION_SHARE = 0.25
"""Time spent on timed evaluation, divided by the time of the timed training steps."""
BLOCKS = 4
"""Number of timed blocks in an evaluation. If steps are slow, there are fewer blocks, but at least `MIN_BLOCKS`."""
MIN_BLOCKS = 2
WARM_UP_STEPS = 3


def evaluate(
    replica: Replica,
    batches: Iterator[tuple[Any, Any]],
    training: Stepper,
    measured_s: float,
    on_step: Callable[[], None],
) -> list[Block]:
    """Evaluate a replica's model on the rank's own batches; return a warm-up block, then the timed blocks.

    `training` is the stepper of the training steps, and `measured_s` their time in a launch (seconds). `on_step` is
    called after each step.

    The module beneath wrappers such as DDP is evaluated, because DDP's forward would broadcast buffers between the
    barriers. Meanwhile modules are in eval mode, so that BatchNorm's running statistics don't change.
    """
    model, loss = replica.job.model, replica.job.loss

    def step() -> None:
        inputs, targets = next(batches)
        loss(model(inputs), targets)
        on_step()

    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():  # not inference_mode: batches made under it could not be trained on
            return evaluation_blocks(replace(training, step=step), measured_s)
    finally:
        for module, mode in modes.items():
            module.training = mode


def evaluation_blocks(stepper: Stepper, measured_s: float) -> list[Block]:
    """Run a short warm-up block, then timed blocks until `EVALUATION_SHARE` of `measured_s` is spent. Return them all.

    There are at least `MIN_BLOCKS` timed blocks. Rank 0 decides for all ranks how many steps a block has and when to
    stop.
    """
    warmup = run_block(stepper, WARM_UP_STEPS, 0, "warmup")
    wanted_ns = EVALUATION_SHARE * measured_s * 1e9
    step_ns = max(statistics.median(warmup.step_ns), 1.0)
    steps = max(MIN_BLOCK_STEPS, math.ceil(wanted_ns / BLOCKS / step_ns))
    blocks: list[Block] = []
    spent_ns = 0
    while True:
        block = run_block(stepper, steps, len(blocks), "evaluation")
        blocks.append(block)
        spent_ns += block.end_ns - block.start_ns
        enough = len(blocks) >= MIN_BLOCKS and spent_ns * (1 + 0.5 / len(blocks)) >= wanted_ns
        if stepper.control.agree(int(enough)):
            return [warmup, *blocks]
