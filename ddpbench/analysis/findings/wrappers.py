"""The answer to what frameworks cost: compare frameworks that train a torch model with plain DDP."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import exchanges_gradients, fair_panels, reference_of
from ddpbench.analysis.findings.wording import called, conditions, fitting, launch_tags, listed
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import MARGIN, MARGIN_WORDS, Judgement, longer
from ddpbench.naming import ranks_of
from ddpbench.spec import grouping
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted, format_at_most

FEWEST = 2
"""Smallest number of frameworks for which this is the answer."""


def wrappers_finding(cases: Sequence[CaseRun]) -> Finding | None:
    """Return the finding that says which frameworks take longer than plain DDP; None for fewer than `FEWEST` of them.

    Frameworks that compute the model with another library than torch, such as TensorFlow, are left out, because a
    difference from DDP would be due to that library. None, too, if the run compares other strategies with DDP, because
    then its question is which strategy to use.
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
    """Return whether the cases include a strategy that aggregates gradients and is neither DDP nor a framework's."""
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
    others = [found for _, found in judged if found.verdict != "slower"]
    name, ranks = called(reference, family), ranks_of(reference.case)
    kinds = f"{len(judged)} framework set-ups"
    if slower:
        head = f"{len(slower)} of {kinds} {'are' if len(slower) > 1 else 'is'} slower than {name} at {ranks}"
    else:
        head = f"no framework set-up (of {len(judged)}) is shown to be slower than {name} at {ranks}"
    most = max((found.ratio.high or 1.0 for found in others), default=1.0) - 1
    rest = ""
    if others and most > 0:
        bound = format_at_most(most)
        of_others = f"others: no cost shown (up to {bound} possible)"
        rest = f"; {of_others if slower else f'a step takes {bound} longer at most'}"
    full = [f"{called(run, family)} by {longer(found.ratio)}" for run, found in slower]
    bare = [f"{called(run, family)} by {100 * (found.ratio.value - 1):.0f} %" for run, found in slower]
    texts = [f"{head}{': ' if slower else ''}{', '.join(full)}{rest}"]
    for count in range(len(slower), -1, -1):
        left = [f"{counted(len(slower) - count, 'other')} by less"] if 0 < count < len(slower) else []
        texts.append(f"{head}{': ' if count else ''}{', '.join([*bare[:count], *left])}{rest}")
    text = fitting(texts)
    runs = [run for run, _ in judged]
    rounds = min(found.rounds for _, found in judged)
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(
            *(
                word
                for word in grouping.qualifiers(reference.case)
                if all(word in grouping.qualifiers(run.case) for run in runs)
            ),
            *([", ".join(full)] if slower and text != texts[0] else []),
            *(
                f"the difference of {called(run, family)} may be under {MARGIN_WORDS}"
                for run, found in slower
                if (found.ratio.low or 1.0) < 1 + MARGIN
            ),
            *_not_counted(left_out),
            *conditions([reference, *runs]),
            *launch_tags(rounds, comparisons),
        ),
        evidence="strategies",
        verdict="slower" if slower else "note",
        cases=tuple(run.case_id for run in (*runs, reference)),
    )


def _not_counted(runs: Sequence[CaseRun]) -> list[str]:
    names = listed([called(run, runs) for run in runs])
    return [f"not counted: {names}, which compute with other kernels"] if runs else []
