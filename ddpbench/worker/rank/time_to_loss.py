"""Trains a new model on the data from their start until the average loss over all ranks is low enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import Control
from ddpbench.measure.clock import Clock
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records import LossCurve
from ddpbench.records.heartbeat import Heartbeat
from ddpbench.spec import TargetLoss
from ddpbench.spec.target_loss import mean_losses, smoothing_steps, steps_to
from ddpbench.worker.training.precision import precision_of
from ddpbench.worker.training.training import StepLoop, Training, gather_number, gather_numbers

GROUP_S = 0.25
"""Approximate time in seconds after which ranks agree on whether to continue.

If ranks agreed more often, more steps would be disturbed.
"""
LEAST_STEPS = 10
MOST_STEPS = 100
"""Largest number of steps that ranks train before they agree on whether to continue."""


def train_to(
    target_loss: TargetLoss,
    training: Training,
    batches: Iterator[tuple[Any, Any]],
    *,
    clock: Clock,
    control: Control,
    heartbeat: Heartbeat,
) -> Iterator[LossCurve]:
    """Train until the loss reaches `target_loss` or its limits are used up; yield a record of each group of steps.

    `batches` begins with the first one. Within a group, losses stay on the device; between groups, rank 0 decides for
    all ranks whether to continue. NaN or infinite loss ends training without a record of its group.
    """
    case, processes = training.case, training.place.processes
    precision = precision_of(case.precision, training.device)  # fp16's loss scale restarts
    distributed = dist.is_initialized() and training.strategy.uses_backend
    model = training.fresh_model(precision=precision)
    replica = training.replica(model, NullRecorder(), distributed=distributed, precision=precision)
    loop = StepLoop(replica, batches, NullRecorder(), heartbeat, precision)
    knowing = gather_number(int(replica.knows_loss), control, processes)
    window = smoothing_steps(case)
    job: list[float] = []
    spent_ns = 0
    steps = 1  # a step's time is not known yet
    for index in itertools.count():
        times, losses = _train(loop, steps, clock)
        # Rounded as recorded, so that readers of the records find `target_loss` reached at the same step.
        own = [float(f"{float(loss):.7g}") if replica.knows_loss else 0.0 for loss in losses]
        gathered = gather_numbers(own, control, processes)
        job += mean_losses([losses for losses, knows in zip(gathered, knowing, strict=True) if knows])
        if not all(map(math.isfinite, job[-steps:])):
            break  # the loss cannot be reached any more; earlier groups remain valid
        yield LossCurve(
            index=index,
            target=target_loss.loss,
            samples=steps * training.share,
            start_ns=times[0],
            end_ns=times[-1],
            step_ns=tuple(after - before for before, after in itertools.pairwise(times)),
            losses=tuple(own) if replica.knows_loss else (),
        )
        spent_ns += times[-1] - times[0]
        wanted = _steps_next(target_loss, made=len(job), spent_ns=spent_ns)  # 0: all steps are used up
        recent = job[-(steps + window - 1) :]
        over = spent_ns >= target_loss.seconds * 1e9 or steps_to(target_loss.loss, recent, window) is not None
        steps = control.agree(0 if over else wanted)
        if not steps:
            break
    replica.close()


def _train(loop: StepLoop, steps: int, clock: Clock) -> tuple[list[int], list[torch.Tensor]]:
    clock.anchor()
    losses: list[torch.Tensor] = []
    marks = [clock.mark()]
    for _ in range(steps):
        loop.step()
        losses.append(loop.unscaled_loss())
        marks.append(clock.mark())
    return clock.resolve(marks), losses


def _steps_next(target_loss: TargetLoss, *, made: int, spent_ns: int) -> int:
    """Return the steps of the next group, which takes about `GROUP_S`."""
    step_ns = max(spent_ns, 1) / made
    fitting = max(LEAST_STEPS, min(MOST_STEPS, int(GROUP_S * 1e9 / step_ns)))
    fitting = min(fitting, max(1, math.ceil((target_loss.seconds * 1e9 - spent_ns) / step_ns)))
    return min(fitting, target_loss.steps - made)
