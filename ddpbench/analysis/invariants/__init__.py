"""Self-checks of a report: rules (`INVARIANTS`) that every case's numbers must obey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench.analysis.bound import bounds_of
from ddpbench.analysis.invariants import asked, links, rates, steps
from ddpbench.analysis.invariants.checked import (
    Bounded,
    Checked,
    CheckedCase,
    Invariant,
    Rule,
    Violation,
    ViolationKind,
    ViolationUnit,
)
from ddpbench.analysis.names import Names
from ddpbench.analysis.read.fabrics import FabricRun
from ddpbench.analysis.read.traffic import FEWEST, MOST
from ddpbench.analysis.table.result import CaseResult
from ddpbench.spec import grouping

__all__ = [
    "INVARIANTS",
    "Bounded",
    "Checked",
    "CheckedCase",
    "Invariant",
    "Rule",
    "Violation",
    "ViolationKind",
    "ViolationUnit",
    "check_cases",
]


def _always(case: CheckedCase, number: Bounded) -> bool:
    return True


_WRONG = "A record or the analysis is wrong: do not use this case's numbers."
INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        name="parts_add_up",
        statement="the parts of a step add up to the step, and none is negative",
        meaning=_WRONG,
        kind="impossible",
        check=steps.parts_add_up,
        withholds=_always,
    ),
    Invariant(
        name="communication_within",
        statement="exposed communication is at most all communication and at most the step; overlapped communication "
        "is at most the computation",
        meaning="Its transfers are timed or attributed wrongly: do not use its communication columns.",
        kind="impossible",
        check=steps.communication_within,
        by_construction=True,
    ),
    Invariant(
        name="instrumented_as_timed",
        statement=f"no instrumented step is shown to be over {100 * steps.AGREEMENT:g} % from the timed one",
        meaning=f"Its whole interval over launches is further away, or its mean further than "
        f"{100 * steps.HARD_AGREEMENT:g} %. Its breakdown does not describe its timed steps; neither do its "
        "communication columns, its losses of efficiency and the step drawn in One step.",
        kind="doubtful",
        check=steps.instrumented_as_timed,
        unseen=steps.instrumented_may_differ,
    ),
    Invariant(
        name="single_steps",
        statement="a mean step is not longer than the longest single step",
        meaning="Blocks and single steps were timed differently: do not use this case's step time.",
        kind="impossible",
        check=steps.single_steps,
        withholds=_always,
    ),
    Invariant(
        name="time_spent",
        statement="timed steps fit into their launch's measured time, and that into its wall time",
        meaning="Times were counted twice, or on two clocks: do not use this case's numbers.",
        kind="impossible",
        check=steps.time_spent,
        withholds=_always,
    ),
    Invariant(
        name="ran_as_asked",
        statement="ranks ran with the threads, ranks, device, types, backend, loader workers and bucket cap of their "
        "case",
        meaning="Code of the workload decides otherwise than the experiment: what is said of this setting is not so, "
        "and cases of another setting cannot be compared by it.",
        kind="doubtful",
        check=asked.ran_as_asked,
    ),
    Invariant(
        name="links_carry",
        statement="no node sends or receives faster than its link; where its ranks have separate links, no rank "
        "faster than that",
        meaning="Its step time is too short, or the link was not held to its rate: do not use this case's numbers.",
        kind="impossible",
        check=links.links_carry,
        withholds=_always,
    ),
    Invariant(
        name="bus_bandwidth",
        statement="no transfer's bus bandwidth is above what its link can carry, with what passes at once",
        meaning="Its transfers are taken to begin too late or to end too early: do not use its communication columns.",
        kind="impossible",
        check=links.bus_bandwidth,
    ),
    Invariant(
        name="network_time",
        statement="a step's network time is at least what its bytes need on the link, and at most the time between "
        f"any rank's first moment in it and any's last (to {100 * links.STEP_TOLERANCE:g} %)",
        meaning="Its transfers are taken to begin or end at the wrong moment: do not use its communication columns.",
        kind="impossible",
        check=links.network_time,
    ),
    Invariant(
        name="sent_as_by_formula",
        statement="an algorithm of ddpbench's own sends exactly the bytes of its formula",
        meaning="The algorithm sends something else than it is named for, or the formula is wrong.",
        kind="impossible",
        check=links.sent_as_by_formula,
    ),
    Invariant(
        name="counted_as_by_formula",
        statement=f"bytes counted at the busiest node's link are {FEWEST:g} to {MOST:g} times those of "
        "the algorithm's formula",
        meaning="It moved other bytes than the algorithm's formula says, beyond what headers and acknowledgements "
        "explain. Of short messages, as shrinking makes them, headers are a larger part.",
        kind="doubtful",
        check=links.counted_as_by_formula,
    ),
    Invariant(
        name="buckets_hold_gradients",
        statement="buckets hold each gradient once",
        meaning="The buckets told are not those of the measured steps.",
        kind="impossible",
        check=links.buckets_hold_gradients,
    ),
    Invariant(
        name="intervals_hold_points",
        statement="each interval has its value in it",
        meaning=_WRONG,
        kind="impossible",
        check=rates.intervals_hold_points,
        by_construction=True,
        withholds=_always,
    ),
    Invariant(
        name="columns_agree",
        statement="samples_per_s times step_time_s is the global batch",
        meaning=_WRONG,
        kind="impossible",
        check=rates.columns_agree,
        withholds=_always,
    ),
    Invariant(
        name="within_the_machine",
        statement="ranks use no more time than their cores have, and no more operations than a GPU's peak",
        meaning="A counter or the peak is wrong: do not use this case's host_share or MFU.",
        kind="impossible",
        check=rates.within_the_machine,
    ),
    Invariant(
        name="held_in_memory",
        statement="what a rank holds fits into its peak of memory",
        meaning="Pages were swapped out or never touched: the peak is not what the case needs.",
        kind="doubtful",
        check=rates.held_in_memory,
    ),
    Invariant(
        name="at_most_the_ranks",
        statement="a speed-up is at most the number of ranks",
        meaning="More than linear: caches may hold a rank's smaller share, or the base case was measured too slow. Do "
        "not extrapolate it.",
        kind="doubtful",
        check=rates.at_most_the_ranks,
        withholds=rates.caches_cannot_explain,
    ),
    Invariant(
        name="under_the_bound",
        statement="no strategy is faster than independent ranks, which exchange nothing",
        meaning="The bound was disturbed, or the strategy leaves out work: do not say how far it is from ideal.",
        kind="doubtful",
        check=rates.under_the_bound,
        withholds=_always,
    ),
)
"""The rules, in the order of the report."""


def check_cases(results: Sequence[CaseResult], fabrics: Iterable[FabricRun] = ()) -> Checked:
    """Check the numbers of all cases of a run that have timed launches, by all rules."""
    results = [one for one in results if one.timings]
    measured = [one.run for one in results]
    names = Names(measured)
    bounds = bounds_of(measured)
    reached = _reached(fabrics)
    subjects = [
        CheckedCase(
            result=one,
            bound=bounds.get(grouping.deciding("compute", one.case)),
            reached=reached.get(one.case.fabric, 1.0),
        )
        for one in results
    ]
    rules: list[Rule] = []
    violations: list[Violation] = []
    for invariant in INVARIANTS:
        touched = numbers = 0
        before = len(violations)
        for subject in subjects:
            found = list(invariant.check(subject))
            touched += bool(found)
            numbers += len(found)
            broken = [one for one in found if not one.holds]
            if broken:
                violations.append(_violation(invariant, subject, broken, names.of(subject.run)))
        rules.append(
            Rule(
                name=invariant.name,
                statement=invariant.statement,
                cases=touched,
                numbers=numbers,
                broken=len(violations) - before,
                counted=not invariant.by_construction or len(violations) > before,
                unseen=max((invariant.unseen(one) or 0.0 for one in subjects), default=0.0)
                if invariant.unseen is not None
                else 0.0,
            )
        )
    return Checked(cases=len(subjects), rules=tuple(rules), violations=tuple(violations))


def _violation(
    invariant: Invariant, subject: CheckedCase, broken: Sequence[Bounded], label: str
) -> Violation:
    return Violation(
        invariant=invariant.name,
        statement=invariant.statement,
        meaning=invariant.meaning,
        kind=invariant.kind,
        case_id=subject.run.case_id,
        label=label,
        broken=max(broken, key=lambda one: one.excess),
        count=len(broken),
        withholds=any(invariant.withholds(subject, one) for one in broken),
    )


def _reached(fabrics: Iterable[FabricRun]) -> dict[str, float]:
    found: dict[str, float] = {}
    for fabric in fabrics:
        pairs = zip(fabric.asked_bit_per_s, fabric.reached_bit_per_s, strict=False)
        fastest = max((reached / asked for asked, reached in pairs if asked > 0), default=1.0)
        found[fabric.links] = max(found.get(fabric.links, 1.0), fastest)
    return found
