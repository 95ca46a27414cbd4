"""Choose the case to use among comparable cases (a panel): the reference, unless it is shown to be slower.

Which of several equal cases is measured as fastest is luck, so the reference (DDP) is preferred. `families.py` decides
which cases are slower.

Cases whose parameters may differ from those of synchronous training are not ranked. The choice is made at a panel's
largest number of ranks with several ranked cases, or else with one. A smaller number is chosen if it trains measurably
more samples per second; these tests divide the 5 % among all numbers of ranks in all panels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import exchanges_gradients, fair_panels, reference_of
from ddpbench.analysis.findings.wording import takes_another_path
from ddpbench.analysis.judging import judge_pair, rate_ratio
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import Judgement, Standing, above_one, under_one
from ddpbench.analysis.statistics.stats import ALPHA, MIN_ROUNDS
from ddpbench.spec import Case, grouping
from ddpbench.strategies.traits import traits_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The case chosen among comparable cases, and how the other cases at its number of ranks compare with it."""

    chosen: CaseRun
    ranked: tuple[CaseRun, ...]
    """Cases from which `chosen` was taken, including `chosen`."""
    best: bool
    """True if all other ranked cases are shown to be slower."""
    tied: tuple[CaseRun, ...]
    """Cases that are not distinguished from `chosen`."""
    standings: dict[str, Standing]
    gain: Interval | None
    """Samples/s divided by those of the base case; None without a base case, or if the two share no rounds."""
    rounds: int
    """Number of rounds that `chosen` and its base case share or, if too few, number of launches of `chosen`."""
    slower_worlds: tuple[int, ...]
    """Larger numbers of ranks that train measurably fewer samples per second."""
    alone: tuple[CaseRun, ...]
    """The only case that can be ranked, for each larger number of ranks that has only one."""
    below_base: tuple[CaseRun, ...]
    """Other ranked cases that are shown to train fewer samples per second than one rank."""
    doubt: tuple[CaseRun, Judgement] | None
    """The case in `tied` whose comparison with `chosen` has the widest interval, and that comparison's judgement."""
    ties: tuple[Judgement, ...]
    """Judgements of the cases in `tied`, each compared with `chosen`."""
    unranked: tuple[tuple[CaseRun, str], ...]
    """Cases of the panel at the same number of ranks that could not be ranked, each with the reason."""

    @property
    def world(self) -> int:
        """Return the chosen case's number of ranks."""
        return self.chosen.case.world_size

    @property
    def loses(self) -> bool:
        """Return whether the chosen case is shown to train fewer samples per second than one rank."""
        return self.gain is not None and under_one(self.gain)

    @property
    def gains(self) -> bool:
        """Return whether the chosen case is shown to train more samples per second than one rank."""
        return self.gain is not None and above_one(self.gain)

    @property
    def standing(self) -> Standing | None:
        """Return the chosen case's standing if a case is tied with it; otherwise None."""
        return self.standings[self.chosen.case_id] if self.tied else None

    @property
    def behind(self) -> list[tuple[CaseRun, Interval]]:
        """Return the other ranked cases, each with its step time divided by that of the fastest other."""
        return [(run, self.standings[run.case_id].ratio) for run in self.ranked if run is not self.chosen]


def planned_panels(cases: Sequence[CaseRun]) -> list[Case]:
    """Return one case of each panel (group of comparable cases) that is to be judged.

    A panel is included if it has a case that aggregates gradients and was not skipped.
    """
    found: dict[grouping.GroupKey, Case] = {}
    for run in cases:
        if exchanges_gradients(run) and run.status != "skipped":
            found.setdefault(grouping.panel(run.case), run.case)
    return list(found.values())


def choices_of(cases: Sequence[CaseRun]) -> list[Choice]:
    """Choose a case in each group of comparable cases in which cases can be ranked.

    Only cases that aggregate gradients, with separate cores for each rank, are ranked.
    """
    compared = Families(cases)
    panels = [(members, _families(members)) for members in fair_panels(cases)]
    smaller = sum(len(families) - 1 for _, families in panels if families)
    alpha = ALPHA / max(1, smaller)
    found = [_choice(members, families, cases, compared, alpha) for members, families in panels]
    return [one for one in found if one is not None]


def _rankable(members: Sequence[CaseRun]) -> dict[int, list[CaseRun]]:
    able = [
        run
        for run in members
        if exchanges_gradients(run) and not takes_another_path(run) and len(run.timings) >= MIN_ROUNDS
    ]
    worlds = sorted({run.case.world_size for run in able}, reverse=True)
    return {world: [run for run in able if run.case.world_size == world] for world in worlds}


def _families(members: Sequence[CaseRun]) -> dict[int, list[CaseRun]]:
    """Return the rankable cases by number of ranks. Numbers with one case are dropped if another number has several."""
    rankable = _rankable(members)
    return {world: family for world, family in rankable.items() if len(family) > 1} or rankable


def _choice(
    members: Sequence[CaseRun],
    families: Mapping[int, Sequence[CaseRun]],
    every: Sequence[CaseRun],
    compared: Families,
    alpha: float,
) -> Choice | None:
    """Return the choice; fewer ranks are chosen if they are shown, at level `alpha`, to train more samples/s."""
    picks = [pick for family in families.values() if (pick := _pick(family, compared)) is not None]
    if not picks:
        return None
    taken, slower = picks[0], []
    for pick in picks[1:]:
        faster = rate_ratio(pick[0], taken[0], alpha)
        if faster is not None and above_one(faster):
            slower.append(taken[0].case.world_size)
            taken = pick
    chosen, tied, found = taken
    ranked = [run for run in families[chosen.case.world_size] if not found or _stands(found, run)]
    base = next((run for run in members if run.case_id == chosen.baseline_id), None)
    gain = judge_pair(chosen, base) if base is not None else None
    return Choice(
        chosen=chosen,
        ranked=tuple(ranked),
        best=len(ranked) > 1 and not tied,
        tied=tuple(tied),
        standings=found,
        gain=rate_ratio(chosen, base) if base is not None else None,
        rounds=gain.rounds if gain is not None and gain.rounds >= MIN_ROUNDS else len(chosen.timings),
        slower_worlds=tuple(slower),
        alone=tuple(
            family[0]
            for world, family in _rankable(members).items()
            if world > chosen.case.world_size and world not in families
        ),
        below_base=tuple(_below(base, [run for run in ranked if run is not chosen])),
        doubt=max(
            (
                (run, one)
                for run in tied
                if (one := compared.judge(run, chosen)) is not None and one.bound is not None
            ),
            key=lambda pair: (pair[1].ratio.high or 1.0) / (pair[1].ratio.low or 1.0),
            default=None,
        ),
        ties=tuple(one for run in tied if (one := compared.judge(run, chosen)) is not None),
        unranked=tuple(_unranked(chosen, ranked, every)),
    )


def _below(base: CaseRun | None, others: Sequence[CaseRun]) -> list[CaseRun]:
    if base is None:
        return []
    found = [(run, judge_pair(run, base, ALPHA / len(others))) for run in others]
    return [run for run, one in found if one is not None and one.verdict == "slower"]


_Pick = tuple[CaseRun, list[CaseRun], dict[str, Standing]]


def _stands(found: dict[str, Standing], run: CaseRun) -> bool:
    return run.case_id in found and found[run.case_id].verdict != "too few"


def _pick(family: Sequence[CaseRun], compared: Families) -> _Pick | None:
    if len(family) == 1:
        return family[0], [], {}
    found = compared.standings(family)
    judged = [run for run in family if _stands(found, run)]
    if len(judged) < 2:
        return None  # no two cases have enough rounds in common
    ahead = [run for run in judged if not above_one(found[run.case_id].ratio)]
    reference = reference_of(judged)
    fastest = min(judged, key=lambda run: found[run.case_id].ratio.value)
    chosen = reference if reference in ahead else fastest
    return chosen, [run for run in ahead if run is not chosen], found


def _unranked(
    chosen: CaseRun, ranked: Sequence[CaseRun], every: Sequence[CaseRun]
) -> list[tuple[CaseRun, str]]:
    found: list[tuple[CaseRun, str]] = []
    panel = grouping.panel(chosen.case)
    for run in every:
        same_setting = (
            run.case.world_size == chosen.case.world_size
            and grouping.panel(run.case) == panel
            and traits_of(run.case).exchanges
        )
        if not same_setting or run in ranked:
            continue
        if run.status != "ok" or not run.timings:
            found.append((run, run.status if run.status != "ok" else "no launch"))
        elif run.oversubscribed:
            found.append((run, "more threads than cores"))
        elif takes_another_path(run):
            found.append((run, "another path of training"))
        else:
            found.append((run, "too few rounds"))
    return found
