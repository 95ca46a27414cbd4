"""The leader's watch over other slots, with times by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.errors import LaunchError
from ddpbench.worker import leader
from ddpbench.worker.leader import LEADER_LOST_S, LOST_S
from ddpbench.worker.roster import Seat

JOB = 3


class Told:
    """The meeting and the clock of a leader that watches one other slot."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state: dict[str, Any] = {"tick": 1, "job": JOB - 1}

    def get(self, *_keys: str) -> list[dict[str, Any]]:
        return [self.state]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told()
    monkeypatch.setattr(leader.time, "monotonic", lambda: found.now)
    return found


def watch_of(told: Told) -> Any:
    slot: Any = SimpleNamespace(meeting=told)
    other = Seat(rank=1, node=1, local_rank=0, host="b", cores=(0,), physical=1, gpus=0, gpu_cores=())
    watch = leader._Watch(slot, JOB, [other], hang_timeout_s=1e9)
    watch.look()
    return watch


def test_a_slot_whose_rank_is_under_way_is_soon_missed(told: Told) -> None:
    told.state = {"tick": 2, "job": JOB, "steps": 0, "phase": "starting"}
    watch = watch_of(told)
    told.now = LOST_S
    watch.look()
    told.now += 0.1
    with pytest.raises(LaunchError, match="has not been heard of for 20 s"):
        watch.look()


def test_a_slot_may_take_its_time_to_import_before_its_rank_is_there(told: Told) -> None:
    watch = watch_of(told)
    told.now = LEADER_LOST_S
    watch.look()
    told.state = {"tick": 2, "job": JOB, "steps": 0, "phase": "starting"}
    told.now += 0.1
    watch.look()
    assert watch.states == [told.state]
    told.state = {"tick": 2, "job": JOB - 1}
    told.now += LEADER_LOST_S + 0.1
    with pytest.raises(LaunchError, match="has not been heard of for 180 s"):
        watch.look()
