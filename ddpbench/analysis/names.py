"""Names of a run's cases, and phrases for their number, for sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import capital
from ddpbench.naming import Namer
from ddpbench.units import counted

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun


class Names:
    """Names of a run's cases, and phrases for numbers of cases, as sentences use them."""

    def __init__(self, among: Sequence[CaseRun]) -> None:
        self._count = len(among)
        self.names = Namer(run.case for run in among)

    def of(self, run: CaseRun) -> str:
        """Return the name of a case."""
        return self.names.spoken(run.case)

    def count(self, cases: Sequence[CaseRun]) -> str:
        """State the number of cases, to begin a sentence: `1 case`, `3 cases`, `All 24 cases`."""
        return capital(self.within(cases))

    def within(self, cases: Sequence[CaseRun]) -> str:
        """State the number of cases, for use within a sentence: `1 case`, `3 cases`, `all 24 cases`."""
        every = "all " if len(cases) == self._count > 1 else ""
        return f"{every}{counted(len(cases), 'case')}"

    def not_reached(self, cases: Sequence[CaseRun]) -> str:
        """Return the beginning of a sentence on cases that missed a target, such as `3 cases did not reach`.

        If no case of the run reached the target, the beginning is, for example, `None of the 24 cases reached`.
        """
        if len(cases) == self._count > 1:
            return f"None of the {len(cases)} cases reached"
        return f"{self.count(cases)} did not reach"

    def listed(self, cases: Sequence[CaseRun]) -> str:
        """Return up to four names of cases and the number of further cases, in brackets: ` (A, B, C, D and 2 more)`.

        Empty if these are all cases of the run.
        """
        if len(cases) == self._count > 1:
            return ""
        words = [self.of(run) for run in cases[:4]]
        more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
        return f" ({', '.join(words)}{more})"
