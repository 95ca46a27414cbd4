"""The answer of an experiment whose claims compare values of one option, such as a pipeline's microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import conditions, fitting, launch_tags
from ddpbench.analysis.judging import rate_ratio
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import is_faster
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.naming import Namer
from ddpbench.spec import grouping
from ddpbench.strategies.traits import traits_of
from ddpbench.units import series_of

FEWEST_VALUES = 3


def option_answer(cases: Sequence[CaseRun], claims: Sequence[DecidedClaim]) -> Finding | None:
    """Return the finding that says which value of a numeric option trains fastest, and how fast.

    It compares the fastest value with one rank and with the reference strategy. None if no claim compares two values of
    one option, if fewer than `FEWEST_VALUES` values were measured, or if one rank is not shown to be slower.
    """
    families = Families(cases)
    by_id = {run.case_id: run for run in cases}
    for members, key in _varied(cases, claims):
        standings = families.standings(members)
        judged = [
            run for run in members if run.case_id in standings and standings[run.case_id].verdict != "too few"
        ]
        if len(judged) < FEWEST_VALUES:
            continue
        best = min(judged, key=lambda run: standings[run.case_id].ratio.value)
        base = by_id.get(best.baseline_id)
        gain = rate_ratio(best, base) if base is not None else None
        if gain is None or gain.low is None or gain.low <= 1:
            continue
        ahead = [run for run in judged if (standings[run.case_id].ratio.low or 0.0) <= 1]
        values = sorted(run.case.options[key] for run in (ahead or [best]))
        open_still = len(values) > 1
        name = Namer(run.case for run in cases).spoken_strategy(best.case)
        with_best = f" (no difference shown): with {best.case.options[key]:g}, {name}"
        which = with_best if open_still else f": {name}"
        head = f"{series_of([f'{value:g}' for value in values], 'or')} {key}{which} trains"
        ends = [f"; {rival}" for rival in _rival(best, cases, families)]
        return Finding(
            kind="answer",
            text=sentence(
                fitting(f"{head} {is_faster(gain, than=True)} one rank{end}" for end in (*ends, ""))
            ),
            tags=(
                *grouping.qualifiers(best.case),
                *conditions(judged),
                *launch_tags(min(standings[run.case_id].rounds for run in judged)),
            ),
            evidence="strategies",
            verdict="note" if open_still else "faster",
            cases=tuple(run.case_id for run in (best, *(run for run in judged if run is not best))),
        )
    return None


def _varied(cases: Sequence[CaseRun], claims: Sequence[DecidedClaim]) -> Iterator[tuple[list[CaseRun], str]]:
    """Yield groups of cases that differ only in a numeric option which a claim compares, each with the option's key."""
    named = {
        key
        for claim in claims
        for held in claim.pairs
        for key in _keys([run for run in cases if run.case_id in (held.a, held.b)])
    }
    able = [run for run in cases if run.status == "ok" and run.timings]
    for members in grouped(able, lambda run: grouping.alike(run.case, but=("options_json",))).values():
        keys = _keys(members)
        if len(members) >= FEWEST_VALUES and len(keys) == 1 and named.issuperset(keys):
            (key,) = keys
            if all(isinstance(run.case.options.get(key), int | float) for run in members):
                yield members, key


def _keys(members: Sequence[CaseRun]) -> list[str]:
    """Return the options in which these cases differ; empty if they differ in anything else."""
    cases = [run.case for run in members]
    if len({grouping.alike(case, but=("options_json",)) for case in cases}) != 1:
        return []
    return grouping.varied(cases, "options_json")


def _rival(best: CaseRun, cases: Sequence[CaseRun], families: Families) -> Iterator[str]:
    """Yield phrases that compare the reference strategy with `best`, the longest first; none if it is undecided."""
    for run in cases:
        if traits_of(run.case).role != "reference" or run.case.world_size != best.case.world_size:
            continue
        found = families.judge(run, best)
        if found is None or found.verdict not in ("faster", "slower"):
            continue
        name = Namer([run.case, best.case]).spoken_strategy(run.case)
        if found.verdict == "faster":
            yield f"{name} is {is_faster(found.by, than=True)} that"
            yield f"{name} is faster than that"
        else:
            yield f"that is {is_faster(found.by, than=True)} {name}"
        return
