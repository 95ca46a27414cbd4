"""The answer to an experiment's question: one or two sentences, from what was decided.

The first says what to use, at the most ranks that had cores of their own: the case that is shown to be best; else
the reference (DDP), unless it is shown to be slower, for the fastest of cases that cannot be told apart is luck. Who
is best is `statistics/best.py`'s. Cases that train on another path are not ranked here. A sweep that trains to a loss
is answered by who is there first, and one that varies links, input data or precision has its finding on that beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpbench.analysis.findings.groups import exchanges_gradients, fair_panels, grouped, reference_of
from ddpbench.analysis.findings.wording import (
    RATIO_THRESHOLD,
    launch_tags,
    name_of,
    plain,
    sentence,
    takes_another_path,
)
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.best import Standing, standings
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, Interval, Timing, compare
from ddpbench.analysis.summary import Finding, FindingKind
from ddpbench.analysis.time_to_loss import cost_of, loss_curves_of, to_loss
from ddpbench.spec import grouping
from ddpbench.spec.grouping import FACETS, PANEL, SCALE, VARIANT
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted

MOST_NAMES = 2
"""Cases named in a sentence; more are counted."""
MOST_SETTINGS = 3
"""Settings with different answers named in a sentence."""
ASKED: tuple[FindingKind, ...] = ("loss", "lead", "links", "inputs", "precision")
"""Findings that sweeps ask for, the most telling first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """What to use of a panel's cases at the most ranks, and how the others stand."""

    family: tuple[CaseRun, ...]
    chosen: CaseRun
    best: bool
    """Every other one is shown to be slower."""
    tied: tuple[CaseRun, ...]
    """Those that are not."""
    standings: dict[str, Standing]
    speedup: Interval | None
    """In samples/s over the base case's; None where that was not run beside it."""
    inexact: tuple[CaseRun, ...]
    """Those of another path of training, which are not ranked."""

    @property
    def name(self) -> str:
        return _call(self.chosen, self.family)

    @property
    def ranked(self) -> list[CaseRun]:
        """Those with rounds enough."""
        return [run for run in self.family if self.standings[run.case_id].verdict != "too few"]


def answer_of(cases: Sequence[CaseRun], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return one or two sentences; always one, which says why where there is no answer.

    Args:
        cases: a run's.
        findings: the run's, of which one may be the answer.
    """
    panels = fair_panels(cases)
    to_use = _to_the_loss(cases) or _to_use([one for one in map(_choice, panels) if one is not None])
    asked = sorted(
        (
            one
            for one in findings
            if one.kind in ASKED and one.verdict not in ("too few", "note", "unresolved")
        ),
        key=lambda one: ASKED.index(one.kind),
    )
    told = [one for one in (to_use, *asked[:1]) if one is not None]
    alone = next((one for one in findings if one.kind == "speed-up"), None)
    if not told and alone is not None:
        told = [alone]
    return tuple(told) or (_none(cases, panels),)


def _choice(members: Sequence[CaseRun]) -> _Choice | None:
    """Return what to use of a panel; None where there is nothing to choose, or too few rounds to."""
    reference = reference_of(members)
    world = reference.case.world_size
    able = [run for run in members if exchanges_gradients(run) and run.case.world_size == world]
    family = [run for run in able if not takes_another_path(run)]
    found = standings({run.case_id: run.timings for run in family})
    chosen, best, tied = _chosen(family, reference, found)
    if chosen is None:
        return None
    base = next((run for run in members if run.case_id == chosen.baseline_id), None)
    gain = compare(chosen.timings, base.timings) if base is not None else None
    return _Choice(
        family=tuple(family),
        chosen=chosen,
        best=best,
        tied=tied,
        standings=found,
        speedup=gain.rate_ratio() if gain is not None and gain.paired and gain.rounds >= MIN_ROUNDS else None,
        inexact=tuple(run for run in able if takes_another_path(run)),
    )


def _chosen(
    family: Sequence[CaseRun], reference: CaseRun, found: dict[str, Standing]
) -> tuple[CaseRun | None, bool, tuple[CaseRun, ...]]:
    """Return the case to use, whether it is shown to be best, and those that cannot be told from it."""
    judged = [run for run in family if run.case_id in found and found[run.case_id].verdict != "too few"]
    if not judged:  # or it is alone
        return None, False, ()
    best = [run for run in judged if found[run.case_id].verdict == "best"]
    if best:
        return best[0], True, ()
    ahead = [run for run in judged if found[run.case_id].verdict != "slower"]
    fastest = min(judged, key=lambda run: found[run.case_id].ratio.value)
    chosen = reference if reference in ahead else fastest
    return chosen, False, tuple(run for run in ahead if run is not chosen)


def _to_use(choices: Sequence[_Choice]) -> Finding | None:
    """Return what to use, of one panel or of several."""
    if not choices:
        return None
    first = choices[0]
    ranks = counted(first.chosen.case.world_size, "rank")
    if len(choices) == 1:
        text = f"{_advice(first, ranks)}{_gain(first)}{_rest(first)}"
        tags = (*_sure(first), *grouping.told(first.chosen.case))
    else:
        text, tags = _over_settings(choices, ranks), ()
    more = [run for one in choices for run in one.inexact]
    skipped = list(dict.fromkeys(name_of(run) for run in more))
    others = (f"not ranked, as they train on another path: {', '.join(skipped)}",) if skipped else ()
    rounds = min(one.standings[one.chosen.case_id].rounds for one in choices)
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(*tags, *others, *launch_tags(rounds)),
        evidence="scaling",
        verdict="faster" if all(one.best for one in choices) else "note",
        cases=tuple(dict.fromkeys(one.chosen.case_id for one in choices)),
    )


def _sure(choice: _Choice) -> tuple[str, ...]:
    """Return how much slower than the best of the others it may be, and what was not ranked."""
    most = choice.standings[choice.chosen.case_id].ratio.high
    bound = (
        (f"its step at most {100 * (most - 1):.2g} % longer than the best one's",)
        if choice.tied and most
        else ()
    )
    few = len(choice.family) - len(choice.ranked)
    return (*bound, *((f"{counted(few, 'case')} not ranked: too few rounds",) if few else ()))


def _advice(choice: _Choice, ranks: str) -> str:
    """Return what to use, or to stay on one rank where more are slower."""
    if choice.speedup is not None and choice.speedup.high is not None and choice.speedup.high < 1:
        return f"stay on one rank: at {ranks} {choice.name}"
    return f"use {choice.name} at {ranks}"


def _gain(choice: _Choice) -> str:
    if choice.speedup is None:
        return ""
    lost = choice.speedup.high is not None and choice.speedup.high < 1
    return f"{' has' if lost else ':'} {plain(choice.speedup)} times one rank's samples/s"


def _rest(choice: _Choice) -> str:
    """Return how the others stand."""
    others = [run for run in choice.ranked if run is not choice.chosen]
    if not choice.best:
        names = _listed([_call(run, choice.family) for run in choice.tied])
        return f"; {names} cannot be told from it" if choice.tied else ""
    behind = [choice.standings[run.case_id].ratio.value for run in others]
    if len(others) == 1:
        return f"; {_call(others[0], choice.family)} takes {_gap(behind[0])}"
    return f"; the other {len(others)} take {_gap(min(behind))} or more"


def _gap(ratio: float) -> str:
    return f"{ratio:.3g} times as long" if ratio >= RATIO_THRESHOLD else f"{100 * (ratio - 1):.3g} % longer"


def _over_settings(choices: Sequence[_Choice], ranks: str) -> str:
    """Return what to use on each of several panels."""
    cases = [one.chosen.case for one in choices]
    fields = grouping.differing(cases, PANEL)
    by_name = grouped_by_name(choices)
    what = FACETS[fields[0]].title.lower() if len(fields) == 1 else "setting"
    if len(by_name) == 1:
        first = choices[0]
        rest = (
            "the others are slower"
            if all(one.best for one in choices)
            else "not every other is shown to be slower"
        )
        gains = [one.speedup.value for one in choices if one.speedup is not None]
        gain = f": {min(gains):.3g} to {max(gains):.3g} times one rank's samples/s" if gains else ""
        return f"use {first.name} at {ranks} on all {len(choices)} {what}s{gain}; {rest}"
    parts = []
    for name, members in by_name.items():
        places = [", ".join(grouping.words(one.chosen.case, fields, cases)) for one in members]
        where = _listed(places) if len(places) <= MOST_SETTINGS else f"{len(places)} {what}s"
        parts.append(f"{name} ({where})")
    more = len(parts) - MOST_SETTINGS
    return f"at {ranks} use {'; '.join(parts[:MOST_SETTINGS])}{f'; and {more} more' if more > 0 else ''}"


def grouped_by_name(choices: Iterable[_Choice]) -> dict[str, list[_Choice]]:
    """Return the choices by what they choose, in order of the first."""
    found: dict[str, list[_Choice]] = {}
    for one in choices:
        found.setdefault(one.name, []).append(one)
    return found


def _call(run: CaseRun, family: Sequence[CaseRun]) -> str:
    """Return a case's strategy, with what tells it from others of that strategy."""
    same = [other.case for other in family if other.case.strategy == run.case.strategy]
    fields = [name for name in (*VARIANT, *SCALE) if name in grouping.differing(same)]
    words = grouping.words(run.case, fields, same)
    return _with(traits_of(run.case).spoken, words)


def _with(name: str, words: Sequence[str]) -> str:
    return f"{name} with {', '.join(words)}" if words else name


def _listed(names: Sequence[str]) -> str:
    """Return a few names, and how many more."""
    if len(names) > MOST_NAMES + 1:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} others"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))


def _to_the_loss(cases: Sequence[CaseRun]) -> Finding | None:
    """Return who reaches the loss first; None where fewer than two cases on the same links reached it."""
    able = [
        run for run in cases if run.status == "ok" and not run.planned.oversubscribed and loss_curves_of(run)
    ]
    groups = sorted(grouped(able, _same_loss).values(), key=lambda group: -len(group))
    family = [run for run in groups[0] if to_loss(run)] if groups else []
    if len(family) < 2 or len({run.case.fabric for run in family} - {""}) > 1:
        return None
    times: dict[str, Sequence[Timing]] = {run.case_id: to_loss(run) for run in family}
    found = standings(times)
    judged = [run for run in family if run.case_id in found and found[run.case_id].verdict != "too few"]
    if not judged:
        return None
    first = min(judged, key=lambda run: found[run.case_id].ratio.value)
    standing = found[first.case_id]
    cost = cost_of(first)
    if cost is None or cost.time_s is None:
        return None
    tied = [
        run for run in judged if run is not first and found[run.case_id].verdict in ("as good", "cannot tell")
    ]
    names = _listed([_with_ranks(run, family) for run in tied])
    rest = (
        f"; {names} cannot be told from it"
        if tied and standing.verdict != "best"
        else "; all others take longer"
    )
    missed = len(groups[0]) - len(family)
    late = (f"{counted(missed, 'case')} did not reach it in every launch",) if missed else ()
    text = f"{_with_ranks(first, family)} reaches a loss of {cost.target:g} first, after {plain(cost.time_s)} s{rest}"
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(first.case.workload, *grouping.told(first.case), *late, *launch_tags(standing.rounds)),
        evidence="time-to-loss",
        verdict="faster" if standing.verdict == "best" else "note",
        cases=(first.case_id,),
    )


def _same_loss(run: CaseRun) -> grouping.Key:
    return (*grouping.deciding("loss", run.case), loss_curves_of(run)[0].target)


def _with_ranks(run: CaseRun, family: Sequence[CaseRun]) -> str:
    """Return strategy and ranks, and the samples per step where these do not tell it from others."""
    name = f"{name_of(run)} at {counted(run.case.world_size, 'rank')}"
    same = [
        other.case
        for other in family
        if (name_of(other), other.case.world_size) == (name_of(run), run.case.world_size)
    ]
    fields = [field for field in (*VARIANT, *SCALE, *PANEL) if field in grouping.differing(same)]
    words = grouping.words(run.case, fields, same)
    return _with(name, words)


def _none(cases: Sequence[CaseRun], panels: Sequence[Sequence[CaseRun]]) -> Finding:
    """Return why there is no answer."""
    several = [run for run in cases if run.case.world_size > 1 and run.status == "ok" and run.timings]
    if not several:
        why = "no case of several ranks was measured"
    elif not panels:
        why = "no case that aggregates had cores of its own"
    else:
        rounds = max((len(run.timings) for run in several), default=0)
        why = f"{counted(rounds, 'round')} cannot tell cases apart, {MIN_ROUNDS} may: resume the sweep"
    return Finding(kind="answer", text=sentence(f"no answer: {why}"), evidence="summary", verdict="too few")
