"""How cases stand in their groups, read from the comparisons: the words for best, as good, and cannot tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import MARGIN
from ddpbench.analysis.summary import RunSummary
from ddpbench.units import format_at_most

BEST, AS_GOOD, SLOWER, CANNOT_TELL, TOO_FEW = "best", "as good", "slower", "cannot tell", "too few"
METHOD = (
    f"Best: every other is shown to be slower (Tukey's all pairs). As good as best: shown to be within "
    f"{100 * MARGIN:g} % of it. Intervals hold for all cases at one number of ranks at once, with 95 % confidence."
)
"""What the words mean, for a caption."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    """A case's verdict, and its step time over that of the best of the others."""

    verdict: str
    against: str
    """The best of the others, by its id."""
    ratio: Interval

    @property
    def good(self) -> bool:
        """Whether it is shown to be best or as good."""
        return self.verdict in (BEST, AS_GOOD)

    @property
    def longer(self) -> float:
        """The most by which its step is longer than the best's, as a fraction; infinite where nothing bounds it."""
        return max(0.0, self.ratio.high - 1) if self.ratio.high is not None else float("inf")

    def words(self, what: str = "") -> str:
        """Return the verdict in words; `what` names the kind of case, such as `strategy`."""
        best = f"the best {what}" if what else "best"
        told = self.longer not in (0.0, float("inf"))  # 0: it may be the best itself
        bound = f"at most {format_at_most(self.longer)} longer" if told else ""
        return {
            BEST: f"best {what}".rstrip(),
            AS_GOOD: f"as good as {best}{bound and f' ({bound})'}",
            SLOWER: SLOWER,
            CANNOT_TELL: f"cannot tell: {bound} than the fastest other {what}".rstrip()
            if bound
            else f"cannot tell {best}",
        }.get(self.verdict, "too few rounds to compare")


def stands(summary: RunSummary, topic: str) -> dict[str, Stand]:
    """Return how each case of a topic stands, by its id."""
    return {
        one.case_id: Stand(verdict=one.verdict, against=one.best_case_id, ratio=one.ratio)
        for one in summary.steps.comparisons
        if one.topic == topic
    }


def widest(found: Iterable[Stand]) -> str:
    """`at most 1.6 % longer`, of the widest bound."""
    return f"at most {format_at_most(max(one.longer for one in found))} longer"
