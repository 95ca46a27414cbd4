"""Interleaved blocks of two sides within one job of ranks, which cancels drift; one side is mostly the harness's."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from ddpbench.measure.blocks import Control, Stepper, run_block
from ddpbench.measure.clock import Clock, CudaClock, HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case
from ddpbench.worker.device import device_of
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.control import meet
from ddpbench.worker.training.training import StepLoop, Training
from tests.benchmarks.ratio import paired_ratio

Steps = Callable[[int], float]
"""Trains for a number of steps and returns how long they took, seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments for how long pairs of blocks are measured, and where to write them."""
    parser.add_argument("--pairs", type=int, default=60, help="at least this many")
    parser.add_argument(
        "--pairs-max", type=int, default=60, help="more, up to this, while the interval is wide"
    )
    parser.add_argument("--half-width", type=float, default=0.008)
    parser.add_argument("--seconds-max", type=float, default=math.inf, help="no pair is begun after so long")
    parser.add_argument("--block-seconds", type=float, default=0.1)
    parser.add_argument("--out", type=Path, required=True)


def in_turn(
    first: Steps, second: Steps, steps: int, control: Control, asked: argparse.Namespace
) -> list[tuple[float, float]]:
    """Return pairs of block times, until their ratio is known well enough; all ranks call it together.

    The side that goes first alternates. `asked` has the arguments that `add_arguments` adds.
    """
    pairs: list[tuple[float, float]] = []
    began = time.monotonic()
    for number in range(asked.pairs_max):
        known = number >= asked.pairs and paired_ratio(pairs).half_width <= asked.half_width
        enough = known or time.monotonic() - began >= asked.seconds_max
        if control.agree(int(enough)):
            break
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            gc.collect()  # garbage of one side must not cost time on the other
            took[which] = (first, second)[which](steps)
        pairs.append((took[0], took[1]))
    return pairs


def write(pairs: list[tuple[float, float]], out: Path, **more: object) -> None:
    """Write the pairs of times as JSON."""
    out.write_text(json.dumps({"pairs": pairs, **more}), encoding="utf-8")


def pin(rank: int, cores: int = 1) -> None:
    """Pin this process, with all its threads so far, to separate cores, as the harness's launcher would."""
    allowed = sorted(os.sched_getaffinity(0))
    chosen = {allowed[(rank * cores + number) % len(allowed)] for number in range(cores)}
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), chosen)


class Harness:
    """A case's strategy in this rank, as a sweep's launch trains it, with or without a recorder of instrumented steps.

    It joins the other ranks, unless it is given the control of one that has joined.
    """

    def __init__(
        self, case: Case, place: JobPlace, control: Control | None = None, kept: StepRecorder | None = None
    ) -> None:
        recorder: Recorder = kept or NullRecorder()
        device = device_of(case, place.local_rank)
        self.training = Training(case, place, device)
        model = self.training.fresh_model()
        uses_backend = self.training.strategy.uses_backend
        self.control = control or meet(case, place, uses_backend=uses_backend, device=device)
        self.replica = self.training.replica(model, recorder, distributed=dist.is_initialized())
        self.batches = self.training.batches()
        self.loop = StepLoop(self.replica, self.batches, recorder, Heartbeat(bytearray(PAGE_BYTES), 0))
        self.samples = case.global_batch // place.processes
        self._kept, self._numbers = kept, itertools.count()
        step = self._noted_step if kept else self.loop.step
        clock: Clock = CudaClock() if device.type == "cuda" else HostClock()
        self._stepper = Stepper(step, self.samples, clock, self.control)

    def _noted_step(self) -> None:
        assert self._kept is not None
        self._kept.begin_step(next(self._numbers))
        self.loop.step()
        self._kept.end_step()

    def block(self, steps: int) -> float:
        """Return how long a block of timed or instrumented steps took, seconds."""
        block = run_block(self._stepper, steps, 0, "timed" if self._kept is None else "instrumented")
        assert self._kept is None or self._kept.records()
        return (block.end_ns - block.start_ns) / 1e9

    def steps_of(self, block_s: float) -> int:
        """Return how many steps take that long, after a warm-up; the same on all ranks."""
        warm = run_block(self._stepper, 30, 0, "warmup")
        step_s = (warm.end_ns - warm.start_ns) / warm.steps / 1e9
        return self.control.agree(max(10, round(block_s / step_s)))
