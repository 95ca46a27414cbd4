"""Names and counts of a run's cases, for sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import capital
from ddpbench.naming import Namer
from ddpbench.units import counted

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun


class Names:
    """Names and counts of a run's cases, as sentences use them."""

    def __init__(self, among: Sequence[CaseRun]) -> None:
        """Store `among`, all cases that a name must distinguish."""
        self._count = len(among)
        self.names = Namer(run.case for run in among)

    def of(self, run: CaseRun) -> str:
        """Return the name of one case."""
        return self.names.spoken(run.case)

    def count(self, cases: Sequence[CaseRun]) -> str:
        """Return words for the number of cases, to begin a sentence: `1 case`, `3 cases`, `All 24 cases`."""
        return capital(self.within(cases))

    def within(self, cases: Sequence[CaseRun]) -> str:
        """Return words for the number of cases, within a sentence: `all 24 cases`."""
        every = "all " if len(cases) == self._count > 1 else ""
        return f"{every}{counted(len(cases), 'case')}"

    def not_reached(self, cases: Sequence[CaseRun]) -> str:
        """Return the beginning of a sentence on cases that missed something: `None of the 24 cases reached`.

        If some of the run's cases did reach it, it begins like `3 cases did not reach`.
        """
        if len(cases) == self._count > 1:
            return f"None of the {len(cases)} cases reached"
        return f"{self.count(cases)} did not reach"

    def listed(self, cases: Sequence[CaseRun]) -> str:
        """Return the first few names, in brackets; empty if these are all cases."""
        if len(cases) == self._count > 1:
            return ""
        words = [self.of(run) for run in cases[:4]]
        more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
        return f" ({', '.join(words)}{more})"
