"""Words for cases: what must stand beside a number that no real link or device gave, and how they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from ddpbench.spec import Links, labels
from ddpbench.units import format_bit_rate

if TYPE_CHECKING:
    from ddpbench.analysis.launches import CaseRun

MOST_ODD = 3
"""Nodes of another rate that are told one by one."""


class Virtual(Protocol):
    """What says how far a case is from the machine's own training: a `Case`, or a row of the report."""

    @property
    def fabric(self) -> str: ...

    @property
    def compute(self) -> str: ...

    @property
    def dilation(self) -> float: ...

    @property
    def shrink(self) -> int: ...


def links_of(fabric: str) -> Links | None:
    """A case's links; None for the machine's own, and for a text that this version cannot read."""
    try:
        return Links.parse(fabric) if fabric else None
    except ValueError:
        return None


@cache
def short_links(fabric: str) -> str:
    """The links in few words: of nodes with rates of their own the usual one first.

    `1 Gbit/s, 1 Gbit/s, 1 Gbit/s, 100 Mbit/s` becomes `1 Gbit/s, node 3 at 100 Mbit/s`; nodes count from 0.
    """
    rate, rest = _parts(fabric)
    return ", ".join([rate, rest]) if rest.startswith("node") else "; ".join(filter(None, [rate, rest]))


@cache
def link_words(fabric: str) -> str:
    """The links as a label: `emulated 1 Gbit/s link`, `emulated 1 Gbit/s link (node 3 at 100 Mbit/s)`."""
    if not fabric:
        return ""
    rate, rest = _parts(fabric)
    return f"emulated {rate} link{f' ({rest})' if rest else ''}"


def _parts(fabric: str) -> tuple[str, str]:
    """The usual rate, and whatever else there is to say of the links."""
    links = links_of(fabric)
    if links is None:
        return fabric, ""
    usual = Counter(links.bandwidth).most_common(1)[0][0]
    odd = [(node, rate) for node, rate in enumerate(links.bandwidth) if rate != usual]
    words = [f"node {node} at {format_bit_rate(rate)}" for node, rate in odd[:MOST_ODD]]
    if len(odd) > MOST_ODD:
        low, high = min(rate for _, rate in odd), max(rate for _, rate in odd)
        span = format_bit_rate(low) if low == high else f"{format_bit_rate(low)} to {format_bit_rate(high)}"
        words = [f"nodes {', '.join(str(node) for node, _ in odd)} at {span}"]
    rest = fabric.split("; ")[1:]
    return format_bit_rate(usual), "; ".join([", ".join(words), *rest] if words else rest)


def is_virtual(case: Virtual) -> bool:
    """Whether links were shaped, or computation replayed, dilated or shrunk."""
    return bool(case.fabric) or case.compute != "real" or case.dilation != 1 or case.shrink != 1


def virtual_words(case: Virtual) -> list[str]:
    """A case's labels, each a few words; none where it trained on the machine's own links."""
    words = [link_words(case.fabric)] if case.fabric else []
    words += [f"{case.compute} computation"] if case.compute != "real" else []
    words += [f"dilated x{case.dilation:g}"] if case.dilation != 1 else []
    words += [f"shrunk /{case.shrink}"] if case.shrink != 1 else []
    return words


class Names:
    """How sentences name a run's cases: by what of their labels is not said of all."""

    def __init__(self, among: Sequence[CaseRun]) -> None:
        """`among` are all that could be meant."""
        self._count = len(among)
        telling = len({run.case.workload for run in among}) > 1
        words = {name: label.split(" · ") for name, label in labels(run.case for run in among).items()}
        joined = [set(words[run.case_id]) for run in among if run.case.fabric or run.case.world_size > 1]
        shared = set.intersection(*joined) if len(joined) > 1 else set()
        self._names = {
            run.case_id: " · ".join(
                dict.fromkeys(
                    [
                        words[run.case_id][0],
                        *([run.case.workload.removeprefix("replay:")] if telling else []),
                        *(
                            word
                            for word in words[run.case_id][1:]
                            if word not in shared or word.endswith(" ranks")
                        ),
                    ]
                )
            )
            for run in among
        }

    def of(self, run: CaseRun) -> str:
        """One case's."""
        return self._names.get(run.case_id, run.case.label)

    def count(self, cases: Sequence[CaseRun]) -> str:
        """How many: `1 case`, `3 cases`, `All 24 cases`."""
        every = "All " if len(cases) == self._count > 1 else ""
        return f"{every}{len(cases)} case{'s' if len(cases) != 1 else ''}"

    def listed(self, cases: Sequence[CaseRun]) -> str:
        """The first few of them, in brackets; empty where all are meant."""
        if len(cases) == self._count > 1:
            return ""
        words = [self.of(run) for run in cases[:4]]
        more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
        return f" ({', '.join(words)}{more})"
