"""A finding: a sentence that the data support."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import CELLS, above_one, under_one
from ddpbench.spec.grouping import Label

MOST_BENEATH = 2
"""Largest number of qualifications in the line beneath an answer."""

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
"""Subject of a finding; `bound` is a comparison with ranks that exchange nothing."""


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
"""Result for the first of two cases, or for a claim; `unresolved` means that the data do not decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A sentence that the data support, with its cases, and the section or figure that shows the evidence."""

    kind: FindingKind
    text: Sentence
    """The sentence, of 30 words at most. No code parses it."""
    tags: tuple[str, ...] = ()
    """Qualifications of the sentence, the most important first: links, computation, size, launches."""
    evidence: str
    """Anchor of the report's section with the evidence: `scaling`, `breakdown`, `strategies`, `buckets`, ..."""
    verdict: FindingVerdict
    cases: tuple[str, ...] = ()
    """Ids of the cases: the judged case first, the case that it is compared with last."""
    ratio: Interval | None = None
    """Step time of the first case divided by that of the last, if the sentence compares their step times."""
    ratios: tuple[Interval, ...] = ()
    """Step time of each of several cases divided by that of the last case, in the order of `cases`."""

    def __post_init__(self) -> None:
        """Check that the interval supports the verdict.

        Raises:
            ValueError: the verdict is faster, slower or equivalent, and the interval does not show it.
        """
        if self.ratio is None or self.verdict not in ("faster", "slower", "equivalent"):
            return
        low, high = self.ratio.low, self.ratio.high
        shown = low is not None and high is not None
        if shown and self.verdict != "equivalent":
            shown = under_one(self.ratio) if self.verdict == "faster" else above_one(self.ratio)
        if not shown:
            raise ValueError(
                f"the ratio {self.ratio} does not show the verdict {self.verdict!r}: {self.text}"
            )

    @property
    def badge(self) -> str:
        """Return the verdict in a word or two; empty for a note.

        A finding on a claim has the badge `claim`, and a case that is slower than its bound has the badge `cost`.
        """
        if self.kind == "bound" and self.verdict == "slower":
            return "cost"
        if self.kind == "claim":
            return "claim"
        return "" if self.verdict == "note" else CELLS.get(self.verdict, self.verdict)

    @property
    def line(self) -> str:
        """Return the sentence as plain text, followed by its qualifications in brackets."""
        return self.text.qualified(self.tags)

    @property
    def beneath(self) -> tuple[str, ...]:
        """Return the most important qualifications of an answer, which are shown on a separate line beneath it.

        There are at most `MOST_BENEATH`; all labels together count as one.
        """
        labels = [tag for tag in self.tags if isinstance(tag, Label)]
        others = [tag for tag in self.tags if not isinstance(tag, Label)]
        return (*([", ".join(labels)] if labels else []), *others)[:MOST_BENEATH]

    @property
    def further(self) -> tuple[str, ...]:
        """Return the qualifications that `beneath` leaves out."""
        labels = any(isinstance(tag, Label) for tag in self.tags)
        return tuple(tag for tag in self.tags if not isinstance(tag, Label))[MOST_BENEATH - labels :]


def each_tag_once(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, each without the tags that an earlier finding already has."""
    known: list[str] = []
    found = []
    for finding in findings:
        found.append(replace(finding, tags=tuple(tag for tag in finding.tags if tag not in known)))
        known += finding.tags
    return found
