"""Choose a free network port for processes that start later."""

from __future__ import annotations

import random
import socket

_NOT_GIVEN_AWAY = range(20_000, 30_000)
"""Ports that Linux by default does not assign to processes, and that services rarely use."""
_TRIES = 50


def free_port() -> int:
    """Return an unused port, if possible one that the system does not assign by itself.

    Otherwise another process might get it while the intended one imports torch.
    """
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
