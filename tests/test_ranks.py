"""Ranks of tests are forked with all that they need."""

from __future__ import annotations

import sys
from multiprocessing import forkserver

import pytest

from tests.ranks import run_ranks

NEEDED = ("torch.distributed.fsdp", "torch._dynamo.utils", "tests.strategies.sharding", "pandas")
"""What takes each rank seconds that has to import it, and this module does not import."""

pytestmark = pytest.mark.ranks


def imported(_rank: int, _processes: int) -> list[str]:
    return [name for name in NEEDED if name in sys.modules]


def test_it_is_there_whatever_else_in_this_process_has_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    other = forkserver.ForkServer()
    other.set_forkserver_preload(["json"])
    other.ensure_running()
    for name in ("ensure_running", "connect_to_new_process"):
        monkeypatch.setattr(forkserver, name, getattr(other, name))
    try:
        assert run_ranks(imported, 2) == [list(NEEDED)] * 2
    finally:
        other._stop()  # type: ignore[attr-defined]
