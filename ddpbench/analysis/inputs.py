"""Input-bound training: the only definition of when training waits for its input.

A case that gets its batches through a loader is compared with its twin. The twin is the same case with its batches in
memory, where no step loads anything. The case is

    input-bound       if its step takes longer than the twin's, paired by round, with the entire corrected
                      interval beyond the margin of 2 %;
    not input-bound   if the interval shows that its step is faster, or within the margin of the twin's;
    unresolved        if the interval shows neither;
    too few           if the case and its twin share fewer than five rounds.

Without a twin, only the share of a step spent waiting for a batch is known, from instrumented steps. If the entire
interval of this share is above `WAITED_LIMIT`, the case "looks input-bound". This is weaker evidence for two reasons. A
step also waits if loading is short but cannot be hidden. And workers that share the ranks' cores slow computation,
which does not show as waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.judging import judge_pairs
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.shares import share_of_step
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import Judgement
from ddpbench.analysis.statistics.stats import shows_more
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import GroupKey

WAITED_LIMIT = 0.05
"""Share of a step spent waiting for data above which a case without a twin looks input-bound."""

InputVerdict = Literal[
    "memory",
    "input-bound",
    "not input-bound",
    "unresolved",
    "too few",
    "looks input-bound",
    "does not look input-bound",
    "unknown",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputCase:
    """A case of an `InputGroup`, its wait for data, and whether it is input-bound.

    `ratio` is its step time divided by the twin's, with the interval that decided the verdict.
    """

    run: CaseRun
    twin: CaseRun | None
    verdict: InputVerdict
    waited_s: float | None
    waited_share: float | None
    ratio: Interval | None = None
    judged: Judgement | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputGroup:
    """Cases that differ only in where their batches come from.

    The case with batches in memory is first; the others are ordered by number of workers.
    """

    members: tuple[InputCase, ...]

    @property
    def loaded(self) -> list[InputCase]:
        """Return the cases that have a loader, ordered by number of workers."""
        return [member for member in self.members if member.run.case.data == "loader"]

    @property
    def memory(self) -> InputCase | None:
        """Return the case with its batches in memory; None if there is none."""
        return next((member for member in self.members if member.run.case.data == "memory"), None)

    @property
    def bound(self) -> list[InputCase]:
        """Return the cases that are input-bound, ordered by number of workers."""
        return [member for member in self.loaded if member.verdict == "input-bound"]

    @property
    def fixed_by(self) -> InputCase | None:
        """Return the case with the fewest loader workers that is not input-bound, unlike one with fewer; else None."""
        if not self.bound:
            return None
        fewest = self.bound[0].run.case.loader_workers
        able = [
            m for m in self.loaded if m.verdict == "not input-bound" and m.run.case.loader_workers > fewest
        ]
        return able[0] if able else None


def input_key(case: Case) -> GroupKey:
    """Return a key that is equal for cases that differ only in where their batches come from."""
    return grouping.alike(case, but=("data", "loader_workers"))


def input_groups(cases: Sequence[CaseRun]) -> list[InputGroup]:
    """Group the measured cases that differ only in where their batches come from, with a verdict on each case.

    Groups are in the plan's order. The comparisons of all groups are judged as one family.
    """
    groups: dict[GroupKey, list[CaseRun]] = {}
    for run in cases:
        if run.status == "ok" and run.timings:
            groups.setdefault(input_key(run.case), []).append(run)
    ordered = [
        sorted(members, key=lambda run: (run.case.data != "memory", run.case.loader_workers))
        for members in groups.values()
    ]
    twins = [next((run for run in members if run.case.data == "memory"), None) for members in ordered]
    judged = judge_pairs(
        {
            run.case_id: (run, twin)
            for members, twin in zip(ordered, twins, strict=True)
            for run in members
            if twin is not None and run is not twin
        }
    )
    return [
        InputGroup(members=tuple(_member(run, twin, judged.get(run.case_id)) for run in members))
        for members, twin in zip(ordered, twins, strict=True)
    ]


def _member(run: CaseRun, twin: CaseRun | None, judged: Judgement | None) -> InputCase:
    parts = run.parts
    waited = parts.parts["data"] if parts is not None else None
    share = waited / parts.step_s if waited is not None and parts is not None and parts.step_s > 0 else None
    if run is twin:
        return InputCase(run=run, twin=twin, verdict="memory", waited_s=waited, waited_share=share)
    if judged is not None:
        verdict = _verdict(judged)
    elif share is None:
        verdict = "unknown"
    else:
        assert parts is not None
        shown = shows_more(share_of_step(parts, "data"), WAITED_LIMIT)
        verdict = "looks input-bound" if shown else "does not look input-bound"
    return InputCase(
        run=run,
        twin=twin,
        verdict=verdict,
        waited_s=waited,
        waited_share=share,
        ratio=judged.ratio if judged is not None else None,
        judged=judged,
    )


def _verdict(judged: Judgement) -> InputVerdict:
    if judged.verdict == "too few":
        return "too few"
    if judged.verdict == "slower" and not judged.small:
        return "input-bound" if judged.beyond else "unresolved"
    return "unresolved" if judged.verdict == "unresolved" else "not input-bound"
