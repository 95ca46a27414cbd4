"""A port for later is free, and the system gives it to no other process meanwhile."""

from __future__ import annotations

import random
import socket

import pytest

from ddpbench.machine.ports import _NOT_GIVEN_AWAY, free_port


def test_nobody_who_asks_for_any_port_gets_it() -> None:
    assert max(_NOT_GIVEN_AWAY) < 32768  # the lowest that Linux gives by default
    port = free_port()
    assert port in _NOT_GIVEN_AWAY
    with socket.socket() as use:
        use.bind(("127.0.0.1", port))


def test_one_that_is_used_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as used:
        used.bind(("", 0))
        taken, other = used.getsockname()[1], free_port()
        monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: [taken, other])
        assert free_port() == other
        monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: [taken])
        assert free_port() not in (0, taken)
