"""A workload and its replay in turn, in one process on one core: a block is profiled, and its profile replayed.

    python tests/benchmarks/replaying.py --workload gpt:nano --local-batch 8 --out FILE

Writes, for each pair, the step times of the replay and of the original, and the distance between the times of each
gradient as a share of the original's step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

import torch

from ddpbench.measure.clock import HostClock
from ddpbench.spec import Case
from ddpbench.worker.place import JobPlace
from ddpbench.worker.rank.profiling import Profiler, ready_moments
from ddpbench.worker.training.training import Training

WARM_SECONDS = 1.0
"""Warm-up steps of a replay, until its pacer knows how long this machine oversleeps."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--local-batch", type=int, required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--block-seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    profile = arguments.out.with_name("replayed.json")

    def profiler(workload: str) -> Profiler:
        batch = arguments.local_batch
        case = Case(
            workload=workload, strategy="single", local_batch=batch, global_batch=batch, data="memory"
        )
        place = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
        training = Training(case, place, torch.device("cpu"))
        if training.workload.pacer is not None:
            training.workload.pacer.active = True
        return Profiler(training, HostClock())

    step_s = profiler(arguments.workload).warm_up()
    steps = max(4, round(arguments.block_seconds / step_s / 2))
    pairs: list[tuple[float, float]] = []
    apart: list[list[float]] = []
    for _ in range(arguments.pairs):
        original = profiler(arguments.workload)
        original.block(3)
        original.forget()
        original.block(steps)
        profile.write_text(original.profile().dumps(), encoding="utf-8")
        replay = profiler(f"replay:{profile}")
        replay.block(max(5, round(WARM_SECONDS / step_s / 2)))
        replay.forget()
        replay.block(steps)
        mine, theirs = (statistics.fmean(each.spans.step_s) for each in (replay, original))
        pairs.append((mine, theirs))
        moments = [
            [statistics.fmean(seen) for seen in ready_moments(each.spans, len(each.names))]
            for each in (replay, original)
        ]
        apart.append([(one - two) / theirs for one, two in zip(*moments, strict=True)])
    found = {"pairs": pairs, "apart": apart, "steps": steps, "step_s": step_s}
    arguments.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
