"""Every aggregating strategy on real ranks, against the same training in one process."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from ddpbench.records import CommRecord, StepRecord
from tests.ranks import run_ranks
from tests.strategies.training import (
    CLASSES,
    FEATURES,
    STEPS,
    Reference,
    Run,
    bit_equal,
    departures,
    reference,
    relative_error,
    three_runs,
)

pytestmark = pytest.mark.ranks

WORLD_SIZES = (1, 2, 3, 4)
SMALL_CAP_BYTES = 600
LAYERS = [(FEATURES, 24), (24, 16), (16, CLASSES)]
PARAMETER_BYTES = [8 * count for inputs, outputs in LAYERS for count in (inputs * outputs, outputs)]
GRADIENT_BYTES = sum(PARAMETER_BYTES)

SETUPS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "ddp": ("ddp", {}, "default"),
    "ddp, small buckets": ("ddp", {}, SMALL_CAP_BYTES / 2**20),
    "ddp, views": ("ddp", {"gradient_as_bucket_view": True}, SMALL_CAP_BYTES / 2**20),
    "ddp, static graph": ("ddp", {"static_graph": True}, SMALL_CAP_BYTES / 2**20),
    "ddp, find unused": ("ddp", {"find_unused_parameters": True}, SMALL_CAP_BYTES / 2**20),
    "ddp, after backward": ("ddp", {}, SMALL_CAP_BYTES / 2**20),
    "ddp, ring": ("ddp", {}, SMALL_CAP_BYTES / 2**20),
    "ddp, halving, after backward": ("ddp", {}, SMALL_CAP_BYTES / 2**20),
    "ddp, accumulated": ("ddp", {"accumulate": 2}, SMALL_CAP_BYTES / 2**20),
    "ddp, master": ("ddp", {"gradient_as_bucket_view": True}, SMALL_CAP_BYTES / 2**20),
    "master": ("master", {}, None),
    "data_parallel": ("data_parallel", {}, None),
}
SETTINGS: dict[str, dict[str, str]] = {
    "ddp, after backward": {"schedule": "after_backward"},
    "ddp, ring": {"algorithm": "ring"},
    "ddp, halving, after backward": {"algorithm": "halving_doubling", "schedule": "after_backward"},
    "ddp, master": {"algorithm": "master"},
}
DDP = [name for name in SETUPS if name.startswith("ddp")]
DISTRIBUTED = [*DDP, "master"]

every_setup = pytest.mark.parametrize("setup", SETUPS)
every_ddp = pytest.mark.parametrize("setup", DDP)
every_world = pytest.mark.parametrize(
    "world_size", [*WORLD_SIZES[:-1], pytest.param(WORLD_SIZES[-1], marks=pytest.mark.thorough)]
)


@cache
def runs(setup: str, world_size: int) -> list[tuple[Run, Run, Run]]:
    """Return the observations of every rank: a plain run, an instrumented one, a plain one on its module."""
    strategy, options, cap = SETUPS[setup]
    processes = 1 if strategy == "data_parallel" else world_size
    return run_ranks(three_runs, processes, strategy, world_size, options, cap, SETTINGS.get(setup))


@cache
def expected(world_size: int) -> Reference:
    return reference(world_size)


@every_world
@every_setup
def test_gradients_and_parameters_are_those_of_one_process(setup: str, world_size: int) -> None:
    for plain, _, _ in runs(setup, world_size):
        for own, correct in zip(plain.gradients, expected(world_size).gradients, strict=True):
            assert relative_error(own, correct) <= 1e-10
        assert relative_error(plain.parameters, expected(world_size).parameters) <= 1e-10


@every_world
@every_setup
def test_a_rank_reports_the_loss_of_its_own_batch(setup: str, world_size: int) -> None:
    for rank, (plain, _, _) in enumerate(runs(setup, world_size)):
        for own, losses in zip(plain.losses, expected(world_size).losses, strict=True):
            correct = sum(losses) / world_size if setup == "data_parallel" else losses[rank]
            assert own == pytest.approx(correct, rel=1e-10)


@every_world
@pytest.mark.parametrize("setup", DISTRIBUTED)
def test_replicas_stay_bit_equal(setup: str, world_size: int) -> None:
    first, *others = runs(setup, world_size)
    for other in others:
        for mine, its in zip(first, other, strict=True):
            assert bit_equal(mine.parameters, its.parameters)


@every_world
@every_setup
def test_noting_changes_no_bit(setup: str, world_size: int) -> None:
    for plain, noted, _ in runs(setup, world_size):
        for step in range(STEPS):
            assert bit_equal(plain.gradients[step], noted.gradients[step]), f"step {step}"


@every_world
@every_setup
def test_a_closed_replica_leaves_its_module_as_good_as_new(setup: str, world_size: int) -> None:
    for plain, noted, again in runs(setup, world_size):
        assert noted.reducers_left == 0
        for step in range(STEPS):
            assert bit_equal(plain.gradients[step], again.gradients[step]), f"step {step}"


def by_step(run: Run) -> list[tuple[StepRecord, dict[str, tuple[int, int]], list[CommRecord]]]:
    """Return an instrumented run's steps, each with its spans by name and its transfers."""
    steps = [record for record in run.records if isinstance(record, StepRecord)]
    assert [step.step for step in steps] == list(range(STEPS))
    transfers = [record for record in run.records if isinstance(record, CommRecord)]
    return [
        (
            step,
            {name: (start, end) for name, start, end in step.spans},
            [transfer for transfer in transfers if transfer.step == step.step],
        )
        for step in steps
    ]


@every_world
@every_setup
def test_spans_follow_each_other_within_their_step(setup: str, world_size: int) -> None:
    names = ["forward", "backward", "synchronize"]
    if setup == "ddp, accumulated":
        names = ["forward", "backward", *names]
    if setup == "data_parallel" and world_size == 1:
        names = ["forward", "backward"]
    elif setup == "data_parallel":
        names = ["scatter", "replicate", "forward", "gather", "forward", "backward", "reduce"]
    for _, noted, _ in runs(setup, world_size):
        for step, _, _ in by_step(noted):
            assert [name for name, _, _ in step.spans] == names
            moments = [step.start_ns, *(t for _, start, end in step.spans for t in (start, end)), step.end_ns]
            assert moments == sorted(moments)
            assert all(end > start for _, start, end in step.spans)


@every_world
@every_ddp
def test_every_bucket_is_sent_once_a_step(setup: str, world_size: int) -> None:
    for _, noted, _ in runs(setup, world_size):
        for (_, spans, transfers), buckets in zip(by_step(noted), noted.buckets, strict=True):
            assert [transfer.bucket for transfer in transfers] == list(range(len(transfers)))
            algorithm = SETTINGS.get(setup, {}).get("algorithm", "all_reduce")
            assert {transfer.op for transfer in transfers} == {algorithm}
            assert sum(transfer.bytes for transfer in transfers) == GRADIENT_BYTES
            assert tuple(transfer.bytes for transfer in transfers) == buckets
            assert all(transfer.start_ns < transfer.end_ns for transfer in transfers)
            if (
                algorithm != "all_reduce"
            ):  # one after the other in a thread, which notes when it turns to each
                turned = [transfer.begun_ns or 0 for transfer in transfers]
                assert all(at >= transfer.start_ns for at, transfer in zip(turned, transfers, strict=True))
                assert all(at >= before.end_ns for at, before in zip(turned[1:], transfers, strict=False))
            assert transfers[0].start_ns > spans["backward"][0]
            assert transfers[-1].start_ns == spans["backward"][1] == spans["synchronize"][0]
            assert max(transfer.end_ns for transfer in transfers) <= spans["synchronize"][1]


@pytest.mark.parametrize("algorithm", ["all_reduce", "ring"])
@pytest.mark.parametrize("schedule", ["overlapped", "after_backward"])
def test_the_schedule_says_whether_buckets_leave_before_the_last_gradient(
    schedule: str, algorithm: str
) -> None:
    settings = {"schedule": schedule, "algorithm": algorithm}
    for steps in run_ranks(departures, 2, SMALL_CAP_BYTES / 2**20, settings):
        for last_gradient_ns, starts in steps:
            assert len(starts) == 3
            before = [start < last_gradient_ns for start in sorted(starts)]
            assert before == ([True, True, False] if schedule == "overlapped" else [False] * 3)


@every_world
def test_the_master_gathers_then_scatters(world_size: int) -> None:
    for plain, noted, _ in runs("master", world_size):
        assert plain.buckets == [None] * STEPS
        for _, spans, transfers in by_step(noted):
            start, end = spans["synchronize"]
            gather, scatter = transfers
            assert (gather.op, scatter.op) == ("gather", "scatter")
            assert gather.root == scatter.root == 0
            assert gather.bytes == scatter.bytes == GRADIENT_BYTES
            moments = [start, gather.start_ns, gather.end_ns, scatter.start_ns, scatter.end_ns, end]
            assert moments == sorted(moments)


def filled(cap_bytes: float) -> tuple[int, ...]:
    """Return the buckets that DDP documents: gradients in the order they become ready, closed once at the cap."""
    buckets, current = [], 0
    for size in reversed(PARAMETER_BYTES):
        current += size
        if current >= cap_bytes:
            buckets.append(current)
            current = 0
    return tuple([*buckets, current] if current else buckets)


@pytest.mark.parametrize("setup", ["ddp, small buckets", "ddp, views", "ddp, static graph"])
@every_world
def test_rebuilt_buckets_are_as_documented(setup: str, world_size: int) -> None:
    assert len(filled(SMALL_CAP_BYTES)) == 3  # otherwise this test shows little
    for plain, noted, _ in runs(setup, world_size):
        assert noted.buckets[-1] == filled(SMALL_CAP_BYTES)
        assert plain.buckets[-1] == noted.buckets[-1]  # the reducer's log and the hook agree


def test_a_default_cap_holds_a_small_model_in_one_bucket() -> None:
    for plain, noted, _ in runs("ddp", 2):
        assert plain.buckets[-1] == noted.buckets[-1] == (GRADIENT_BYTES,)


@every_world
@every_ddp
def test_a_replica_is_ready_once_its_buckets_are_final(setup: str, world_size: int) -> None:
    for run in (run for rank in runs(setup, world_size) for run in rank[:2]):
        assert not run.ready[0]
        assert run.ready[-1]
        assert run.ready == sorted(run.ready)  # and it stays
    for _, noted, _ in runs(setup, world_size):
        settled = {buckets for buckets, ready in zip(noted.buckets, noted.ready, strict=True) if ready}
        assert len(settled) == 1
        changes = [number for number, (a, b) in enumerate(pairwise(noted.buckets), 1) if a != b]
        assert all(number <= noted.ready.index(True) for number in changes)


@every_world
def test_a_strategy_without_one_time_work_is_ready_at_once(world_size: int) -> None:
    for setup in ("master", "data_parallel"):
        for plain, _, _ in runs(setup, world_size):
            assert all(plain.ready)
