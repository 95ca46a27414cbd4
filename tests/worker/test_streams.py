"""A stream that is too short for the ranks of the largest case: found before anything is launched, if possible."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import IterableDataset

from ddpbench.errors import WorkloadError
from ddpbench.runtime.trial import inspect_own
from ddpbench.spec import Case
from ddpbench.worker.verify.inspection import STREAMS_S, inspect_workload, too_short
from tests.failures.own import Items, Sound

ITEMS = 18
SLOW_S = 0.2


class Shares(IterableDataset):
    """Items, every nth of which is a rank's."""

    def __init__(self, rank: int, world_size: int, pause_s: float = 0.0) -> None:
        self.rank, self.world_size, self.pause_s = rank, world_size, pause_s

    def __iter__(self) -> Iterator[Any]:
        items = Items(ITEMS)
        for index in range(self.rank, ITEMS, self.world_size):
            time.sleep(self.pause_s)
            yield items[index]


class Stream(Sound):
    def dataset(self, rank: int, world_size: int) -> Any:  # type: ignore[override]
        return Shares(rank, world_size)


class AsksTorch(Sound):
    def dataset(self) -> Any:
        return (
            Shares(dist.get_rank(), dist.get_world_size())
            if os.environ["WORLD_SIZE"] != "1"
            else Shares(0, 1)
        )


class Slow(Sound):
    def dataset(self, rank: int, world_size: int) -> Any:  # type: ignore[override]
        return Shares(rank, world_size, 0.0 if world_size == 1 else SLOW_S)


class Swallows(Sound):
    """Tries again after any exception in it."""

    def dataset(self, rank: int, world_size: int) -> Any:  # type: ignore[override]
        while world_size > 1:
            try:
                time.sleep(60)
            except Exception:
                continue
        return Shares(rank, world_size)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


def case_of(name: str, world_size: int, strategy: str = "ddp") -> Case:
    return Case(
        workload=f"{Path(__file__)}:{name}",
        strategy=strategy if world_size > 1 else "single",
        world_size=world_size,
        ranks_per_node=world_size,
        local_batch=4,
        global_batch=4 * world_size,
    )


def test_the_rank_whose_part_is_too_short_is_named_before_anything_is_launched() -> None:
    """18 items are 4 and 5 each of four ranks', and of five three ranks have 4 and two 3."""
    one = case_of("Stream", 1)
    handler = signal.getsignal(signal.SIGALRM)
    assert "problem" not in inspect_workload(one, case_of("Stream", 4))
    facts = inspect_workload(one, case_of("Stream", 5))
    assert facts["problem"] == (
        f"{one.workload}: at 5 ranks, on rank 4, the dataset gave this rank 3 samples; one step needs 4: use a "
        "smaller batch or more data"
    )
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["0", "1", "0"]
    assert signal.getsignal(signal.SIGALRM) == handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_loader_workers_are_not_started_for_it() -> None:
    assert too_short(replace(case_of("Stream", 4), loader_workers=2)) == ""


@pytest.mark.parametrize(
    ("name", "within_s"), [("AsksTorch", STREAMS_S), ("Slow", SLOW_S / 2), ("Swallows", SLOW_S / 2)]
)
def test_what_cannot_be_known_in_time_is_left_to_the_proof(name: str, within_s: float) -> None:
    assert too_short(case_of(name, 5), within_s) == ""
    if name == "Slow":
        assert "on rank 4" in too_short(case_of(name, 5))


def test_a_process_that_has_all_replicas_has_all_samples() -> None:
    assert too_short(case_of("Stream", 5, "data_parallel")) == ""


class Server:
    def __init__(self) -> None:
        self.largest: Case | None = None

    def inspect(self, case: Case, folder: Path, timeout_s: float, largest: Case) -> dict[str, Any]:
        self.largest = largest
        return inspect_workload(case, largest)


def test_a_sweep_asks_for_the_largest_of_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = Server()
    monkeypatch.setattr("ddpbench.runtime.trial.inspected", Server.inspect)
    cases = [case_of("Stream", world_size) for world_size in (1, 5, 2)]
    with pytest.raises(WorkloadError, match="at 5 ranks, on rank 4, the dataset gave this rank 3 samples"):
        inspect_own(server, cases, tmp_path)
    assert server.largest == cases[1]
