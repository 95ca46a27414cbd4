"""The answer for a sweep that trains to a loss: which case reaches the loss first."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import called, fitting, launch_tags, listed
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.best import standings
from ddpbench.analysis.statistics.judgement import above_one, plain
from ddpbench.analysis.statistics.stats import step_time
from ddpbench.analysis.time_to_loss import loss_curves_of, to_loss
from ddpbench.naming import ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import PANEL
from ddpbench.units import counted, format_number


def first_to_loss(cases: Sequence[CaseRun]) -> Finding | None:
    """Return the finding that says which case reaches the loss first; None if no case trained to a loss.

    It is about the largest group of cases with the same target, data and links.
    """
    able = [run for run in cases if run.status == "ok" and not run.oversubscribed and loss_curves_of(run)]
    groups = sorted(grouped(able, _same_loss).values(), key=lambda group: -len(group))
    if not groups:
        return None
    group = groups[0]
    target = loss_curves_of(group[0])[0].target
    family = [run for run in group if to_loss(run)]
    found = standings({run.case_id: to_loss(run) for run in family})
    judged = [run for run in family if run.case_id in found and found[run.case_id].verdict != "too few"]
    names: list[str] = []
    ahead = [run for run in judged if not above_one(found[run.case_id].ratio)]
    if not family:
        texts = [f"no case reached a loss of {target:g} in every launch"]
    elif len(family) == 1:
        texts = [
            f"1 case reached a loss of {target:g} in every launch: {_who(family[0], group)}, after {_time(family[0])}"
        ]
    elif not judged or not ahead:
        texts = [f"no case is shown to reach a loss of {target:g} first: too few rounds"]
    elif len(ahead) == 1:
        who = _who(ahead[0], group)
        end = "all others that reach it in every launch take longer"
        texts = [f"{_time(ahead[0])} is the shortest time to a loss of {target:g}, by {who}; {end}"]
    else:
        names = [f"{_who(run, group)} ({format_number(step_time(to_loss(run)).value)} s)" for run in ahead]
        start = f"{counted(len(names), 'case')} are first to a loss of {target:g}, and cannot be told apart"
        texts = [f"{start}: {listed(names)}", start]
    text = fitting(texts)
    unnamed = (", ".join(names),) if len(texts) > 1 and text == texts[-1] else ()
    rounds = min((len(to_loss(run)) for run in judged or family), default=0)
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(
            *unnamed,
            *_limits(group, family, judged, len(groups)),
            *(launch_tags(rounds) if rounds else ()),
        ),
        evidence="time-to-loss",
        verdict="faster" if len(ahead) == 1 else "note",
        cases=tuple(run.case_id for run in ahead or family),
    )


def _same_loss(run: CaseRun) -> grouping.GroupKey:
    return (*grouping.deciding("loss", run.case), loss_curves_of(run)[0].target)


def _who(run: CaseRun, group: Sequence[CaseRun]) -> str:
    same = [other for other in group if other.case.world_size == run.case.world_size]
    return f"{called(run, same, PANEL)} at {ranks_of(run.case)}"


def _time(run: CaseRun) -> str:
    return f"{plain(step_time(to_loss(run)))} s"


def _limits(
    group: Sequence[CaseRun], family: Sequence[CaseRun], judged: Sequence[CaseRun], groups: int
) -> list[str]:
    limits = [workload_of(group[0].case)]
    limits += list(dict.fromkeys(word for run in group for word in grouping.qualifiers(run.case)))
    missed = [run for run in group if run not in family]
    if missed and family:
        limits.append(f"not in every launch: {listed([_who(run, group) for run in missed])}")
    few = [run for run in family if run not in judged]
    if few and judged:
        limits.append(f"too few rounds: {listed([_who(run, group) for run in few])}")
    if groups > 1:
        limits.append(f"one of {groups} groups of comparable cases; the others are under Time to the loss")
    return [*limits, "one seed: every launch trains the same steps"]
