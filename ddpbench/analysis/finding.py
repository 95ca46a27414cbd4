"""Sentences that the data support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import CELLS
from ddpbench.analysis.statistics.stats import shows_less, shows_more

FindingKind = Literal[
    "claim",
    "strategies",
    "bound",
    "buckets",
    "layouts",
    "links",
    "growth",
    "lead",
    "precision",
    "inputs",
    "loss",
    "recovery",
    "law",
    "speed-up",
    "threads",
    "parts",
    "uncompared",
    "answer",
]
"""The subject of a finding; `bound`: a comparison with ranks that exchange nothing."""


FindingVerdict = Literal[
    "faster",
    "slower",
    "equivalent",
    "unresolved",
    "too few",
    "note",
    "holds",
    "does not hold",
    "holds in part",
]
"""The result for the first of two cases, or for a claim; `unresolved`: the data do not decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A sentence that the data support, its sources, and the section or figure that shows it."""

    kind: FindingKind
    text: Sentence
    """The sentence, of 30 words at most. No code parses it."""
    tags: tuple[str, ...] = ()
    """Its qualifications: links, computation, size, launches."""
    evidence: str
    """The anchor of the section that shows it: `scaling`, `breakdown`, `strategies`, `buckets`, ..."""
    verdict: FindingVerdict
    cases: tuple[str, ...] = ()
    """Ids of its cases: first the one that is judged, last the one that it is compared with."""
    ratio: Interval | None = None
    """The first case's step time over the last one's, where the sentence compares two by that."""
    ratios: tuple[Interval, ...] = ()
    """Ratios of one kind, of each of several cases to the last one, in the order of `cases`."""

    def __post_init__(self) -> None:
        """Refuse a finding whose interval does not leave out what it denies.

        Raises:
            ValueError: it says faster, slower or equivalent, and its interval does not.
        """
        if self.ratio is None or self.verdict not in ("faster", "slower", "equivalent"):
            return
        low, high = self.ratio.low, self.ratio.high
        shown = low is not None and high is not None
        if shown and self.verdict != "equivalent":
            shown = shows_less(self.ratio, 1) if self.verdict == "faster" else shows_more(self.ratio, 1)
        if not shown:
            raise ValueError(f"{self.verdict}, which {self.ratio} does not show: {self.text}")

    @property
    def badge(self) -> str:
        """The verdict in a word or two; empty where there is none. To be behind an upper bound is not `slower`."""
        if self.kind == "bound" and self.verdict == "slower":
            return "cost"
        if self.kind == "claim":
            return "claim"
        return "" if self.verdict == "note" else CELLS.get(self.verdict, self.verdict)

    @property
    def line(self) -> str:
        """The sentence with what qualifies it in brackets, for plain text."""
        return self.text.qualified(self.tags)
