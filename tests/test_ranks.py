"""Ranks of tests are forked with all modules that they need."""

from __future__ import annotations

import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.ranks import run_ranks

NEEDED = (
    "torch.distributed.fsdp",
    "torch._dynamo.utils",
    "tests.strategies.sharding",
    "ddpbench.worker.rank.rank",
)
"""Modules that take a rank seconds to import, and that this file does not import."""

pytestmark = pytest.mark.ranks


def imported(_rank: int, _processes: int) -> list[str]:
    return [name for name in NEEDED if name in sys.modules]


def test_ranks_have_it_whatever_else_has_forked_and_wherever_that_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    other = forkserver.ForkServer()
    other.set_forkserver_preload(["json"])
    try:
        other.ensure_running()
        for name in ("ensure_running", "connect_to_new_process"):
            monkeypatch.setattr(forkserver, name, getattr(other, name))
        assert run_ranks(imported, 2) == [list(NEEDED)] * 2
    finally:
        other._stop()  # type: ignore[attr-defined]
