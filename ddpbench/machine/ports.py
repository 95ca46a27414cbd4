"""A port at which processes that start later will meet."""

from __future__ import annotations

import random
import socket

_NOT_GIVEN_AWAY = range(20_000, 30_000)
"""Ports below those that Linux by default gives to any process that asks, and above those of services."""
_TRIES = 50


def free_port() -> int:
    """Return a port that nothing uses and the system gives to no process: its later user first imports torch."""
    for port in random.SystemRandom().sample(_NOT_GIVEN_AWAY, _TRIES):
        if (found := _bound(port)) is not None:
            return found
    return _bound(0) or 0


def _bound(port: int) -> int | None:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
