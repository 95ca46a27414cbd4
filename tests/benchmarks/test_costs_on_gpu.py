"""Launches of all cases take turns, failed ones are not tried again, and pairs are kept; needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import costs_on_gpu
from tests.benchmarks.kept_pairs import Launch, read


def test_cases_are_launched_in_turn_and_one_that_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[tuple[str, str, bool]] = []
    outs: list[Path] = []

    def launched(
        loop: str, world: int, against: str, out: Path, more: Sequence[object], *, other_first: bool, **_: Any
    ) -> Launch:
        workload = str(more[1])
        begun.append((workload, loop, other_first))
        outs.append(out)
        if len(begun) == 12:
            monkeypatch.setattr(costs_on_gpu.time, "monotonic", lambda: float("inf"))
        assert (workload, loop) != ("gpt:small", "fabric"), "it broke"
        return Launch([(1.5, 1.0), (1.5, 1.0)], 10)

    monkeypatch.setattr(costs_on_gpu, "launched", launched)
    monkeypatch.setattr(costs_on_gpu, "AT_ONCE", 1)
    assert costs_on_gpu.main([str(tmp_path), "--seconds", "60", "--loop", "ddp", "fabric"]) == 1
    # Three cases of `cnn:large` and `gpt:small` each; the side whose model is made first changes with the round.
    cases = [(workload, loop) for loop in ("ddp", "ddp", "fabric") for workload in ("cnn:large", "gpt:small")]
    assert [(workload, loop) for workload, loop, _ in begun] == [*cases, *cases[:5], cases[0]]
    assert [first for *_, first in begun] == [False] * 6 + [True] * 5 + [False]
    assert len(set(outs)) == len(outs), "several are under way at once"
    output = capsys.readouterr()
    assert "gpt:small, fabric: it broke" in output.err
    assert "cnn:large: step of fabric / of ddp: 1.5000" in output.out
    assert len(read(tmp_path / "cnn-large" / "ddp-1-bare.csv")) == 3
    assert len(read(tmp_path / "gpt-small" / "ddp-1-ddp.csv")) == 2
    assert not (tmp_path / "gpt-small" / "fabric-1-ddp.csv").exists()
    assert not (tmp_path / "lock").exists()
