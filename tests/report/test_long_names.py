"""Figures of cases that differ in many settings: every one is drawn, and no name overlaps a word or is cut
off.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.records import RunDir
from ddpbench.report.parts import Picture
from ddpbench.spec import Budget, Case, PlannedCase
from tests.emulated import Emulated, emulated_cases
from tests.recoveries import KILLED, FailingLaunch, ranks_of, records_of
from tests.report.handmade import sections_of
from tests.report.test_on_a_phone import collisions
from tests.synthetic import (
    Model,
    case_of,
    everything,
    processes_of,
    rank_launch,
    write_launch,
    write_plan,
    write_proof,
    write_run,
    write_sessions,
)

ENVIRONMENT = json.dumps({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_DISTRIBUTED_DEBUG": "OFF"})
OPTIONS = json.dumps({"compression": "powersgd", "matrix_approximation_rank": 2, "start_powersgd_iter": 10})
CLASS = "experiments/mine.py:TopKOfTheLargestGradientsWithErrorFeedback"
APART: tuple[dict[str, Any], ...] = (
    {"env_json": ENVIRONMENT},
    {"options_json": OPTIONS},
    {"launcher": "torchrun", "threads_per_rank": 2},
    {"env_json": ENVIRONMENT, "options_json": OPTIONS, "launcher": "torchrun", "threads_per_rank": 2},
)
"""Settings in which cases differ from the usual one."""


def planned(cases: list[Case]) -> list[PlannedCase]:
    return [PlannedCase(case=case) for case in dict.fromkeys(cases)]


def beside_training() -> list[PlannedCase]:
    """Return cases with checkpoints and evaluation that differ in many settings."""
    common: dict[str, Any] = {"evaluation": True, "checkpoint": True}
    cases = [case_of("single", 1, **common)]
    for more in ({}, *APART):
        for size in (2, 4):
            cases.append(case_of("ddp", size, **common, **more))
            cases += [case_of("ddp", size, **common, **more, data="memory")] * (size == 2)
        cases.append(case_of("ddp", 2, **common, **more, precision="bf16"))
        cases.append(case_of("ddp", 4, **common, **more, nodes=2, ranks_per_node=2))
    cases += [case_of(CLASS, size, **common, backend="gloo") for size in (2, 4)]
    return planned(cases)


def emulated() -> list[PlannedCase]:
    """Return cases over links, with and without the settings of the last of `APART`."""
    return [one for more in ({}, APART[-1]) for one in emulated_cases(**more)]


def write_recovery(path: Path) -> RunDir:
    """Write a run in which ranks fail in several ways, with launches in several settings."""
    cases = [
        replace(KILLED, recovery=recovery, snapshot_every=every, env_json=env)
        for recovery in ("exception", "SIGKILL")
        for every in (10, 20)
        for env in ("{}", ENVIRONMENT)
    ]
    run = RunDir(path)
    write_plan(run, cases, Budget(rounds_min=3, rounds_max=3))
    noise = random.Random(1)
    for case in cases:
        write_proof(run, case)
        for number in range(3):
            ranks = [
                replace(
                    rank_launch(case, rank, 1 + noise.gauss(0, 0.02), Model(), blocks=2, steps=4),
                    more=records_of(written),
                )
                for rank, written in enumerate(ranks_of(FailingLaunch(fails=50 + number), case))
            ]
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return run


def write_losses(path: Path) -> RunDir:
    """Write a run whose cases train to a loss, in several settings."""
    cases = [case_of("single", 1), *(case_of("ddp", 2, **more) for more in ({}, *APART))]
    run = RunDir(path)
    write_plan(run, cases, Budget(rounds_min=3, rounds_max=3))
    noise = random.Random(2)
    losses = [3.0] * 20 + [1.0] * 20
    for case in cases:
        write_proof(run, case)
        for number in range(3):
            ranks = []
            for rank in range(processes_of(case)):
                one = rank_launch(case, rank, 1 + noise.gauss(0, 0.02), Model(), blocks=2, steps=4)
                ranks.append(replace(one, curve=[(10**7, [one.blocks[0][0]] * len(losses), losses)]))
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Picture]:
    folder = tmp_path_factory.mktemp("runs")
    settings = [replace(one, case=replace(one.case, **APART[0])) for one in everything()]
    model = Model(by_cap=True, skew_s=0.0004, data_s=0.0015, noise=0.004)
    runs = [
        write_run(folder / "training", beside_training(), rounds=3, blocks=2, steps=4, model=model),
        write_run(folder / "all", [*everything(), *settings], rounds=3, blocks=2, steps=4, model=model),
        write_run(folder / "emulated", emulated(), rounds=3, blocks=2, steps=4, model=Emulated()),
        write_recovery(folder / "recovery"),
        write_losses(folder / "losses"),
    ]
    sections = [section for run in runs for section in sections_of(summarize(run))]
    return [picture for section in sections for picture in section.pictures]


def test_these_are_figures_of_every_kind(pictures: list[Picture]) -> None:
    kinds = {picture.file_name.rstrip("-0123456789") for picture in pictures}
    assert len(kinds) >= 20


@pytest.mark.parametrize("narrow", [True, False])
def test_no_word_lies_on_a_name(pictures: list[Picture], narrow: bool) -> None:
    found = [f"{one.file_name}: {words}" for one in pictures for words in collisions(one, narrow=narrow)]
    assert "\n".join(found) == ""
