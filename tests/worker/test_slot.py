"""A slot's messages to the others when it has to leave, with the store as a dictionary."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpbench.worker.slot import entry
from ddpbench.worker.slot.ending import EXIT_INTERRUPTED, EXIT_NOT_OK, EXIT_REQUEST
from ddpbench.worker.slot.leader import Leader
from ddpbench.worker.slot.sealing import Seals
from ddpbench.worker.slot.slot import Slot


class Meeting:
    """The store of a job, without a network."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.signals: tuple[signal.Signals, ...] = ()
        """Signals that arrive while a slot reports its end."""
        self.seals = Seals(b"k" * 32, "ddpbench/job/0")

    def put(self, key: str, value: dict[str, Any]) -> None:
        self.values[key] = value

    def stop(self, why: str, code: int) -> None:
        self.values.setdefault("stop", {"why": why, "code": code})
        for number in self.signals:
            os.kill(os.getpid(), number)

    def has(self, key: str) -> bool:
        return key in self.values

    def get(self, *keys: str) -> list[dict[str, Any]]:
        return [self.values[key] for key in keys]

    def take(self, key: str, timeout_s: float) -> dict[str, Any] | None:
        return self.values.get(key)

    def leave(self, timeout_s: float) -> None:
        self.put("bye", {})


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    stand_in = Meeting()
    monkeypatch.setattr(entry, "_meet", lambda place, lives, key: stand_in)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield stand_in
    for number, handler in before.items():
        signal.signal(number, handler)


def environment(rank: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    return {key: str(value) for key, value in place.items()}


def test_a_plan_that_the_leader_alone_cannot_read_ends_all_slots_at_once(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def attend(self: Slot, **_: object) -> int:
        return Leader(self, retry_failed=False).lead()

    def follow(self: Slot, **_: object) -> int:
        return int(self.await_key("nonce", 180.0)["nonce"])

    monkeypatch.setattr(Slot, "attend", attend)
    assert entry.run(tmp_path / "a", env=environment(0)) == EXIT_REQUEST
    why = f"{tmp_path / 'a'} does not exist: give a run directory"
    assert f"ddpbench: {why}" in capsys.readouterr().err
    monkeypatch.setattr(Slot, "attend", follow)
    assert entry.run(tmp_path / "b", env=environment(1)) == EXIT_REQUEST
    printed = capsys.readouterr().err
    assert why in printed
    assert "slot 0 on " in printed
    assert "can be resumed" not in printed


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_further_signals_do_not_cut_an_interrupted_slots_last_words_short(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: signal.Signals
) -> None:
    def attend(self: Slot, **_: object) -> int:
        os.kill(os.getpid(), first)
        raise AssertionError("not interrupted")

    meeting.signals = (signal.SIGINT, signal.SIGTERM)
    monkeypatch.setattr(Slot, "attend", attend)
    assert entry.run(tmp_path, env=environment(1)) == EXIT_INTERRUPTED
    assert "slot 1 on " in meeting.values["stop"]["why"]
    assert meeting.values["stop"]["code"] == EXIT_NOT_OK
    assert "bye" in meeting.values
