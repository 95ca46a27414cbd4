"""Name a run's cases in sentences and tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ddpbench.spec import Case, labels
from ddpbench.strategies.traits import rings_among, spoken_of
from ddpbench.units import counted

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun


def short_workloads(workloads: Collection[str]) -> dict[str, str]:
    """Return what each of them is called in a sentence: own ones by their class, whose path would fill it."""
    own = {name: name.rpartition(".py:")[2] for name in workloads}
    return own if len(set(own.values())) == len(own) else {name: name for name in workloads}


def names_of(cases: Sequence[Case]) -> dict[str, str]:
    """Return what sentences and tables call each of these, by its id: by what of their labels is not said of all."""
    workloads = short_workloads({case.workload for case in cases})
    telling = len(workloads) > 1
    words = {name: label.split(" \N{MIDDLE DOT} ")[1:] for name, label in labels(cases).items()}
    alike: defaultdict[str, list[set[str]]] = defaultdict(list)
    for case in cases:
        alike[case.strategy].append(set(words[case.case_id]))
    shared = {strategy: set.intersection(*each) for strategy, each in alike.items()}
    shapes = {(case.world_size, case.nodes) for case in cases}
    alone = len({ranks for ranks, _ in shapes}) == len(shapes)  # the ranks say how many nodes there are
    layouts = {(case.strategy, case.world_size, case.nodes) for case in cases}
    several = Counter((strategy, ranks) for strategy, ranks, _ in layouts)
    rings = rings_among(cases)
    names: dict[str, str] = {}
    for case in cases:
        ranks = counted(case.world_size, "rank")
        layout = f"{case.nodes} x {case.ranks_per_node}"
        rest = [
            *([workloads[case.workload].removeprefix("replay:")] if telling else []),
            *(
                word
                for word in words[case.case_id]
                if word not in shared[case.strategy]
                and word not in (ranks, case.workload.removeprefix("replay:"))
            ),
        ]
        if several[case.strategy, case.world_size] > 1:
            rest.append(layout)  # which a label leaves out of one node
        rest = [word for word in dict.fromkeys(rest) if not (alone and word == layout)]
        details = f" ({', '.join(rest)})" if rest else ""
        names[case.case_id] = f"{spoken_of(case, rings=rings)} at {ranks}{details}"
    return names


class Names:
    """Names of a run's cases, as sentences use them."""

    def __init__(self, among: Sequence[CaseRun]) -> None:
        """`among` are all that could be meant."""
        self._count = len(among)
        self._names = names_of([run.case for run in among])

    def of(self, run: CaseRun) -> str:
        """Return one case's."""
        return self._names.get(run.case_id, run.case.label)

    def count(self, cases: Sequence[CaseRun]) -> str:
        """Return how many: `1 case`, `3 cases`, `All 24 cases`."""
        every = "All " if len(cases) == self._count > 1 else ""
        return f"{every}{len(cases)} case{'s' if len(cases) != 1 else ''}"

    def not_reached(self, cases: Sequence[CaseRun]) -> str:
        """Return that so many did not reach something: `None of the 24 cases reached`, `3 cases did not reach`."""
        if len(cases) == self._count > 1:
            return f"None of the {len(cases)} cases reached"
        return f"{self.count(cases)} did not reach"

    def listed(self, cases: Sequence[CaseRun]) -> str:
        """Return the first few of them, in brackets; empty where all are meant."""
        if len(cases) == self._count > 1:
            return ""
        words = [self.of(run) for run in cases[:4]]
        more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
        return f" ({', '.join(words)}{more})"
