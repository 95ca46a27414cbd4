"""The first steps after a pause, in which others used the cores, take as long as their neighbours."""

from __future__ import annotations

import contextlib
import json
import math
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import make_plan
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.machine.claim import claimed
from ddpbench.machine.hardware import read_hardware
from ddpbench.runtime.turnstile import Turn, Turnstile, TurnstileGoneError
from tests.benchmarks.conftest import Say
from tests.benchmarks.keeping import keep, refuse_kept
from tests.benchmarks.kept_pairs import Launch, over_launches, summary_of

pytestmark = pytest.mark.multiprocess
MEASURED = "one"
"""The measured side."""
LAUNCHES, MEASURED_S = (8, 16), 4.0
"""The least number, and the largest while a ratio is not known to `KNOWN_TO`."""
KNOWN_TO = 0.015
PAUSE_S = 0.1
"""Least seconds for which the other side computes."""
EXPERIMENT = """
[base]
workload = "gpt:nano"
strategy = "{strategy}"
world_size = {world_size}
local_batch = {local_batch}

[budget]
rounds_min = 1
rounds_max = {launches}
measured_s = {measured_s}
total = "1 h"
"""
STRATEGIES = {"single": 1, "data_parallel": 2, "ddp": 2, "zero1": 2, "master": 2}
"""Strategies whose interleaved blocks may have three steps, and their ranks; blocks of others have ten."""


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pause_before_a_block_leaves_its_steps_alone(
    strategy: str, full: bool, say: Say, tmp_path: Path, folder: Path | None
) -> None:
    """Bound: no interval is entirely beyond 2 %. The printed interval shows how large a difference could be hidden."""
    name = f"{strategy}-{STRATEGIES[strategy]}-without"
    refuse_kept(name, folder)
    source = tmp_path / "steps.toml"
    source.write_text(
        EXPERIMENT.format(
            strategy=strategy,
            world_size=STRATEGIES[strategy],
            launches=LAUNCHES[1] if full else 1,
            measured_s=MEASURED_S if full else 1.5,
            local_batch=12 if full else 4,  # so that a block has a few steps
        )
    )
    prepared = prepare(SweepRequest(experiment=source, out=tmp_path / "run"))
    (own,) = (entry for entry in prepared.plan.cases if not entry.added_as_baseline)
    prepared = replace(prepared, plan=make_plan(prepared.experiment, [own]))
    turnstile = Chance(0.5 if full else 1.0, seed=strategy)
    turn = Turn(turnstile.address(MEASURED))

    def launches_so_far() -> list[Path]:
        return sorted(prepared.run.path.glob("cases/*/launch-*"))

    def goes_on(number: int) -> bool:
        return number < LAUNCHES[0] or (
            full and over_launches([pairs_in(path) for path in launches_so_far()]).half_width > KNOWN_TO
        )

    with (
        claimed(read_hardware().cores),
        another_side(turnstile),
    ):
        Sweep(prepared, Listener(), turn=turn, gate=goes_on).run()
    turn.close()
    if not full:
        (only,) = launches_so_far()
        assert any(block["waited_ns"] > PAUSE_S * 1e9 / 2 for block in blocks_of(only)[0])
        return
    launches = [pairs_in(path) for path in launches_so_far()]
    keep(launches, name, folder)
    ratio = over_launches(launches)
    pairs = sum(len(launch.pairs) for launch in launches)
    say(
        f"{strategy} at {STRATEGIES[strategy]}, after a pause over not: {summary_of(ratio, launches)}, {pairs} pairs"
    )
    assert ratio.low <= 1.02
    assert ratio.high >= 0.98


class Chance(Turnstile):
    """Grants another side this share of the offered turns, by chance, independently of earlier ones."""

    def __init__(self, share: float, *, seed: str) -> None:
        self._share, self._chance, self._lets = share, random.Random(seed), False
        super().__init__()

    def _given(self, side: str) -> None:
        self._lets = self._chance.random() < self._share
        super()._given(side)

    def _may_go_on(self, entry: Any) -> bool:
        return entry.side == MEASURED or self._lets  # it waits for no peer


@contextmanager
def another_side(turnstile: Turnstile) -> Iterator[None]:
    """Requests the turn continuously; uses cores and their caches when it has it."""
    square, much = torch.rand(512, 512), torch.rand(1 << 23)

    def work() -> None:
        with contextlib.suppress(TurnstileGoneError):
            while True:
                with contextlib.closing(Turn(turnstile.address("other"))) as turn:
                    turn.take()
                    end = time.monotonic() + PAUSE_S
                    while time.monotonic() < end:
                        square.copy_((square @ square).sigmoid_())
                        much.mul_(0.5)
                    turnstile.leave("other")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        turnstile.close()
        thread.join()


def blocks_of(launch: Path) -> list[list[dict[str, Any]]]:
    """Return each rank's timed blocks."""
    return [
        [
            record
            for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())
            if record["kind"] == "block" and record["phase"] == "timed"
        ]
        for path in sorted(launch.glob("rank-*.jsonl"))
    ]


def pairs_in(launch: Path) -> Launch:
    """Return seconds per step over all ranks, of each block after a pause and of its neighbours without."""
    ranks = blocks_of(launch)
    step_s = [
        statistics.fmean((block["end_ns"] - block["start_ns"]) / block["steps"] / 1e9 for block in blocks)
        for blocks in zip(*ranks, strict=True)
    ]
    waited = [block["waited_ns"] > PAUSE_S * 1e9 / 2 for block in ranks[0]]
    pairs = []
    for at, paused in enumerate(waited):
        before = next((step_s[other] for other in range(at - 1, -1, -1) if not waited[other]), None)
        after = next((step_s[other] for other in range(at + 1, len(waited)) if not waited[other]), None)
        if paused and before is not None and after is not None:
            pairs.append((step_s[at], math.sqrt(before * after)))
    return Launch(pairs, 1)
