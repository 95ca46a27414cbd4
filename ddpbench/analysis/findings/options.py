"""The answer of an experiment whose claims compare values of one option, such as a pipeline's microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import conditions, fitting, launch_tags, tied_words
from ddpbench.analysis.judging import rate_ratio
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    CANNOT_TELL,
    EQUAL,
    above_one,
    is_faster,
    takes_longer,
    under_one,
)
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.naming import Namer
from ddpbench.spec import grouping
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_at_most, series_of

FEWEST_VALUES = 3


def option_answer(
    cases: Sequence[CaseRun], claims: Sequence[DecidedClaim], counted: Sequence[str] = ()
) -> Finding | None:
    """Return the finding that says which value of a numeric option trains fastest, and how fast.

    The fastest value is compared with one rank and with the reference strategy. None without a claim that compares two
    of at least `FEWEST_VALUES` values, or if one rank is not shown to be slower.

    Args:
        cases: the run's cases.
        claims: the run's claims, decided.
        counted: tags to put after the tag on the smallest value.
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
        if gain is None or not above_one(gain):
            continue
        tied = [run for run in judged if run is not best and not above_one(standings[run.case_id].ratio)]
        name = Namer(run.case for run in cases).spoken_strategy(best.case)
        apart = standings[best.case_id].apart
        ties = [*tied_words([families.judge(run, best) for run in tied], apart)]
        ties[-1:-1] = [f"{CANNOT_TELL}: within {apart}"] if len(ties) > 1 else []
        text, beneath = _sentence(best, tied, key, name, gain, [*_rival(best, cases, families), ""], ties)
        least = min(judged, key=lambda run: run.case.options[key])
        cut = f"{name} with {key}={least.case.options[key]:g}"
        return Finding(
            kind="answer",
            text=sentence(text),
            tags=(
                *grouping.qualifiers(best.case),
                *([] if least is best else _smallest(least, by_id, cut)),
                *beneath,
                *counted,
                *conditions(judged),
                *launch_tags(min(standings[run.case_id].rounds for run in judged)),
            ),
            evidence="strategies",
            verdict="note" if tied else "faster",
            cases=tuple(run.case_id for run in (best, *(run for run in judged if run is not best))),
        )
    return None


def _sentence(
    best: CaseRun,
    tied: Sequence[CaseRun],
    key: str,
    name: str,
    gain: Interval,
    rivals: Sequence[str],
    ties: Sequence[str],
) -> tuple[str, list[str]]:
    numbers = sorted(run.case.options[key] for run in (best, *tied))
    values = [f"{number:g}" for number in numbers]
    with_best = f"with {best.case.options[key]:g}, {name}"
    which = [f" ({tie}): {with_best}" for tie in ties] if tied else [f": {name}"]
    head, gained = f"{series_of(values, 'or')} {key}", f"trains {is_faster(gain, than=True)} one rank"
    text = fitting(f"{head}{tie} {rival}{gained}" for rival in rivals for tie in which)
    bounded = any(tie in text for tie in ties[:-1] or ties)
    beneath = [f"between {series_of(values, 'and')} {key} {ties[0]}"] if tied and not bounded else []
    return text, beneath


def _varied(cases: Sequence[CaseRun], claims: Sequence[DecidedClaim]) -> Iterator[tuple[list[CaseRun], str]]:
    named = {
        key
        for claim in claims
        for held in claim.pairs
        for key in _keys([run for run in cases if run.case_id in (held.a, held.b)])
    }
    able = [run for run in cases if run.status == "ok" and run.timings and not run.oversubscribed]
    for members in grouped(able, lambda run: grouping.alike(run.case, but=("options_json",))).values():
        keys = _keys(members)
        if len(members) >= FEWEST_VALUES and len(keys) == 1 and named.issuperset(keys):
            (key,) = keys
            if all(isinstance(run.case.options.get(key), int | float) for run in members):
                yield members, key


def _keys(members: Sequence[CaseRun]) -> list[str]:
    cases = [run.case for run in members]
    if len({grouping.alike(case, but=("options_json",)) for case in cases}) != 1:
        return []
    return grouping.varied(cases, "options_json")


def _rival(best: CaseRun, cases: Sequence[CaseRun], families: Families) -> Iterator[str]:
    for run in cases:
        if traits_of(run.case).role != "reference" or run.case.world_size != best.case.world_size:
            continue
        found = families.judge(best, run)
        if found is None or found.verdict == "too few":
            continue
        name = Namer([run.case, best.case]).spoken_strategy(run.case)
        if found.verdict == "slower":
            yield f"takes {takes_longer(found.by, than=True)} {name} and "
            yield f"is slower than {name} and "
        elif found.verdict == "faster":
            yield f"is {is_faster(found.by, than=True)} {name} and "
        elif found.verdict == "equivalent":
            yield f"is {EQUAL} to {name} and "
        else:
            yield f"is not told apart from {name} and "
        return


def _smallest(run: CaseRun, by_id: Mapping[str, CaseRun], name: str) -> Iterator[str]:
    base = by_id.get(run.baseline_id)
    rate = rate_ratio(run, base) if base is not None else None
    if rate is None or rate.low is None:
        return
    if under_one(rate):
        yield f"{name} takes {takes_longer(rate.reciprocal(), than=True)} one rank"
    elif above_one(rate):
        yield f"{name} trains {is_faster(rate, than=True)} one rank"
    else:
        most = 1 / rate.low - 1
        yield f"{name}: no cost over one rank is shown{f', at most {format_at_most(most)}' if most > 0 else ''}"
