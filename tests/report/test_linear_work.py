"""The work for four times the cases is four times as much: no function looks through all cases for each of
them.
"""

from __future__ import annotations

import cProfile
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from ddpbench.analysis import summarize
from ddpbench.report import page
from ddpbench.report.draw.canvas import DrawnPicture
from ddpbench.report.parts import Picture
from tests.synthetic import WORKLOADS, matrix, write_run

FEW, FACTOR = 2, 4
"""Numbers of local batches; each with all strategies and two workloads, so that both runs differ in the same
settings.
"""
MOST_GROWTH = 2 * FACTOR
"""Most growth of a function's calls: some depend on what only larger runs have, and a quadratic one's grow
sixteenfold.
"""
TELLING = 500
"""Fewest calls: with fewer the growth is not significant."""


class _Unpainted:
    """A painter that draws nothing: matplotlib's work per figure does not depend on the number of cases."""

    def start(self, pictures: Sequence[Picture]) -> None:
        self._pictures = pictures

    def drawn(self) -> list[DrawnPicture]:
        return [DrawnPicture(svg=b"<svg/>", png=b"", narrow=b"", files={}) for _ in self._pictures]


def _calls(folder: Path, batches: int) -> dict[tuple[str, int, str], int]:
    """Return how often each function of the package is called for the page of a run with that many local batches."""
    of_a_batch = 17 * len(WORKLOADS)
    cases = [one for one in matrix(batches * of_a_batch) if one.case.workload in WORKLOADS[:2]]
    assert len({one.case.local_batch for one in cases}) == batches
    run = write_run(folder, cases, rounds=3)
    profile = cProfile.Profile()
    painter: Any = _Unpainted()
    profile.runcall(lambda: page.build(summarize(run), painter))
    counts: dict[tuple[str, int, str], int] = {}
    for entry in profile.getstats():  # pstats keeps only one of several generators on one line
        code = entry.code
        if isinstance(code, CodeType) and "/ddpbench/" in code.co_filename:
            where = (code.co_filename, code.co_firstlineno, code.co_name)
            counts[where] = counts.get(where, 0) + entry.callcount
    return counts


def test_no_function_is_called_for_each_pair_of_cases(tmp_path: Path) -> None:
    _calls(tmp_path / "first", 1)  # work that is done once per process
    few, many = _calls(tmp_path / "few", FEW), _calls(tmp_path / "many", FEW * FACTOR)
    grown = {
        where: (few.get(where, 0), count)
        for where, count in many.items()
        if count > TELLING and count > MOST_GROWTH * max(few.get(where, 0), 1)
    }
    assert not grown
    assert sum(many.values()) > sum(few.values()) > 100_000, "the profile counts nothing"
