"""The answer to what frameworks cost: compare frameworks that train a torch model with plain DDP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import exchanges_gradients, fair_panels, reference_of
from ddpbench.analysis.findings.wording import called, conditions, fitting, launch_tags, listed
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import MARGIN, MARGIN_WORDS, Judgement, longer
from ddpbench.naming import Namer, ranks_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import SCALE, VARIANT, Label
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted, format_at_most

FEWEST = 2
"""Smallest number of frameworks for which this is the answer."""


def wrappers_finding(cases: Sequence[CaseRun]) -> Finding | None:
    """Return the finding on frameworks that take longer than plain DDP; None for fewer than `FEWEST` frameworks.

    Only frameworks that compute the model with torch are compared. A group of comparable cases with strategies other
    than DDP and frameworks is left out.
    """
    families = Families(cases)
    for members in fair_panels(cases):
        reference = reference_of(members)
        if traits_of(reference.case).role != "reference" or _compares_more(members, reference):
            continue
        judged = [
            (run, found)
            for run in members
            if run.case.world_size == reference.case.world_size
            and (traits := traits_of(run.case)).framework
            and traits.engine == "torch"
            and (found := families.judge(run, reference)) is not None
            and found.verdict != "too few"
            and found.ratio.low is not None
            and found.ratio.high is not None
        ]
        if len(judged) >= FEWEST:
            comparisons = max(families.comparisons(run, reference) for run, _ in judged)
            left_out = [
                run
                for run in members
                if run.case.world_size == reference.case.world_size
                and (traits := traits_of(run.case)).framework
                and traits.engine != "torch"
            ]
            return _finding(judged, reference, left_out, comparisons)
    return None


def _compares_more(members: Sequence[CaseRun], reference: CaseRun) -> bool:
    return any(
        exchanges_gradients(run)
        and run.case.strategy != reference.case.strategy
        and not traits_of(run.case).framework
        for run in members
    )


def _finding(
    judged: Sequence[tuple[CaseRun, Judgement]],
    reference: CaseRun,
    left_out: Sequence[CaseRun],
    comparisons: int,
) -> Finding:
    family = [reference, *(run for run, _ in judged)]
    slower = [one for one in judged if one[1].verdict == "slower"]
    slower.sort(key=lambda one: -one[1].ratio.value)
    others = [one for one in judged if one[1].verdict != "slower"]
    full = [f"{called(run, family)} by {longer(found.ratio)}" for run, found in slower]
    texts = list(_texts(slower, others, reference, full))
    text, ranks = fitting(texts), ranks_of(reference.case)
    named = _names([run for run, _ in others], family)
    runs = [run for run, _ in judged]
    rounds = min(found.rounds for _, found in judged)
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(
            *([] if f" at {ranks}" in text else [Label(ranks)]),
            *(
                word
                for word in grouping.qualifiers(reference.case)
                if all(word in grouping.qualifiers(run.case) for run in runs)
            ),
            *_not_counted(left_out),
            *([f"{_open(others)}: {named}"] if named and named not in text else []),
            *([", ".join(full)] if slower and not all(one in text for one in full) else []),
            *(
                f"the difference of {called(run, family)} may be under {MARGIN_WORDS}"
                for run, found in slower
                if (found.ratio.low or 1.0) < 1 + MARGIN
            ),
            *conditions([reference, *runs]),
            *launch_tags(rounds, comparisons),
        ),
        evidence="strategies",
        verdict="slower" if slower else "note",
        cases=tuple(run.case_id for run in (*runs, reference)),
    )


def _texts(
    slower: Sequence[tuple[CaseRun, Judgement]],
    others: Sequence[tuple[CaseRun, Judgement]],
    reference: CaseRun,
    full: Sequence[str],
) -> Iterator[str]:
    judged = [*slower, *others]
    family = [reference, *(run for run, _ in judged)]
    than, at = f"slower than {called(reference, family)}", f" at {ranks_of(reference.case)}"
    head = f"{len(slower)} of {len(judged)} wrappers {'are' if len(slower) > 1 else 'is'} {than}"
    if not slower:
        head = f"no cost over {called(reference, family)}{at} is shown for {len(judged)} wrappers"
    most = _most(others)
    bound = f" (up to {format_at_most(most)})" if most > 0 else ""
    named = f"{bound}: {_names([run for run, _ in others], family)}" if others else ""
    if not slower:
        yield f"{head}{named}"
        yield f"{head}{bound}"
        return
    bare = [f"{called(run, family)} by {longer(found.ratio, bare=True)}" for run, found in slower]
    for costs in (full, bare):
        for where in (at, "") if named else ():
            yield f"{head}{where}: {', '.join(costs)}; {_open(others)}{named}"
    head = f"{head}{at}"
    rest = f"; others: {_open(others)}{bound}" if others else ""
    yield f"{head}: {', '.join(full)}{rest}"
    for count in range(len(slower), -1, -1):
        left = [f"{counted(len(slower) - count, 'other')} by less"] if 0 < count < len(slower) else []
        yield f"{head}{': ' if count else ''}{', '.join([*bare[:count], *left])}{rest}"


def _most(others: Sequence[tuple[CaseRun, Judgement]]) -> float:
    return max((found.ratio.high or 1.0 for _, found in others), default=1.0) - 1


def _open(others: Sequence[tuple[CaseRun, Judgement]]) -> str:
    """Return the word for wrappers not shown to be slower; they may still be clearly slower if their bound is large."""
    return "undecided" if _most(others) > MARGIN else "no cost shown"


def _names(runs: Sequence[CaseRun], family: Sequence[CaseRun]) -> str:
    names = Namer(run.case for run in family)
    found: dict[str, list[str]] = {}
    for run in runs:
        details = names.details(run.case, (*VARIANT, *SCALE))
        found.setdefault(names.strategy(run.case), []).extend([", ".join(details)] if details else [])
    return ", ".join(f"{name} ({', '.join(words)})" if words else name for name, words in found.items())


def _not_counted(runs: Sequence[CaseRun]) -> list[str]:
    names = listed([called(run, runs) for run in runs])
    return [f"not counted: {names}, which compute with other kernels"] if runs else []
