"""Input of the rule that ends a sweep: intervals' half-widths and the cases' common rounds, from timed blocks alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddpbench.analysis.read.alternation import Alternated, anchor_corrections, corrected
from ddpbench.analysis.read.steptime import BlockTimes, time_blocks
from ddpbench.analysis.statistics.correlation import Correlation, correlation_of
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.narrowing import first_narrow, half_width_after, median_half_width_after
from ddpbench.analysis.statistics.stats import compare, step_time
from ddpbench.analysis.statistics.timings import Timing, TimingKey
from ddpbench.errors import RecordError
from ddpbench.records import Address, Block, LaunchDir, LaunchOutcome, RankStart, RunDir
from ddpbench.records.files import MOST_RECORDS, read_bytes
from ddpbench.records.plan import read_plan
from ddpbench.records.reader import read_outcome, stray_rank
from ddpbench.records.schema import record_from_json
from ddpbench.records.sessions import UNKNOWN, Sessions


def width_of(timings: Sequence[Timing], baseline: Sequence[Timing] | None) -> float | None:
    """Return the half-width of the 95 % interval that the stopping rule compares with its target.

    With a baseline, the interval is that of the log ratio within rounds; None for fewer than three rounds. Otherwise it
    is that of the median launch's log step time; None for fewer than five launches.
    """
    if not baseline:
        step = step_time(timings) if timings else Interval(value=math.nan)
        return None if step.low is None or step.high is None else math.log(step.high / step.low) / 2
    comparison = compare(timings, baseline)
    return comparison.half_width() if comparison is not None and comparison.paired else None


@dataclass(frozen=True, slots=True)
class SoFar:
    """State of the stopping rule between two rounds, by case id."""

    widths: dict[str, float | None]
    """Half-width of each case's interval; None while the case has too few rounds."""
    rounds: dict[str, frozenset[TimingKey]]
    bases: dict[str, str] = field(default_factory=dict)
    """The case that each interval compares with. Without one, the interval is that of the case's median."""
    correlation: Correlation = field(default_factory=Correlation)

    @property
    def made(self) -> int:
        """Return the number of rounds so far."""
        return max(map(len, self.rounds.values()), default=0)

    def widest_at(self, rounds: int, case_ids: Iterable[str]) -> float | None:
        """Return the expected largest half-width of these cases' intervals once the run has this many rounds.

        Further rounds are assumed to scatter like those so far. None while the width of a case is unknown.
        """
        found = [self._width_after(case_id, rounds - self.made) for case_id in case_ids]
        known = [width for width in found if width is not None]
        return max(known) if known and len(known) == len(found) else None

    def _width_after(self, case_id: str, more: int) -> float | None:
        width, own = self.widths.get(case_id), self.rounds.get(case_id, frozenset())
        if width is None:
            return None
        if case_id not in self.bases:
            return median_half_width_after(width, len(own), len(own) + more)
        common = len(own & self.rounds[self.bases[case_id]])
        return half_width_after(width, common, common + more, self.correlation)

    def rounds_to(self, target: float, case_ids: Iterable[str], least: int, most: int) -> int | None:
        """Return the number of rounds, from `least` to `most`, at which all these cases' intervals reach the target.

        None if more are needed, or while the width of a case is unknown.
        """
        known = tuple(case_ids)
        return first_narrow(lambda rounds: self.widest_at(rounds, known), target, least, most)

    def apart(self, case_ids: Iterable[str], rounds_min: int) -> list[str]:
        """Return the cases that share fewer than `rounds_min` rounds with at least one other case.

        This occurs if a round was split between two sessions, or if a case failed in a round.
        """
        members: dict[frozenset[TimingKey], list[str]] = {}
        for case_id in case_ids:
            members.setdefault(self.rounds.get(case_id, frozenset()), []).append(case_id)
        return [
            case_id
            for own, found in members.items()
            if any(len(own & others) < rounds_min for others in members)
            for case_id in found
        ]


def so_far(run: RunDir) -> SoFar:
    """Return the state of the stopping rule for each runnable case, from a run's finished launches.

    Raises:
        IdentityError: the run's plan cannot be read.
    """
    plan = read_plan(run)
    sessions = Sessions.of(run)
    order = frozenset(plan.order)
    timings: dict[str, list[Timing]] = {}
    factors: dict[tuple[str, TimingKey], float] = {}
    alone: set[tuple[str, TimingKey]] = set()
    baselines: dict[str, str] = {}
    for planned, case_id in zip(plan.cases, plan.ids, strict=True):
        if planned.skip_reason is None:
            found = (
                _quick(
                    directory,
                    Address(planned.case, case_id, "measure", directory.number or 0, plan.run_id),
                    sessions,
                )
                for directory in run.launches(case_id)
                if not order or (directory.number, case_id) in order
            )
            timings[case_id] = []
            for timing, groups, corrections in filter(None, found):
                timings[case_id].append(timing)
                factors |= {(other, timing.pair): factor for other, factor in corrections.items()}
                if not groups:
                    alone.add((case_id, timing.pair))
            baselines[case_id] = planned.case.baseline().case_id
    factors = {key: factor for key, factor in factors.items() if key not in alone}
    timings = {case_id: corrected(own, case_id, factors) for case_id, own in timings.items()}
    correlation = correlation_of(list(timings.values()))
    timings = {
        case_id: [replace(one, correlation=correlation.reckoned) for one in own]
        for case_id, own in timings.items()
    }
    bases = {case_id: base for case_id, base in baselines.items() if base != case_id and timings.get(base)}
    widths = {
        case_id: width_of(own, timings[bases[case_id]] if case_id in bases else None)
        for case_id, own in timings.items()
    }
    rounds = {case_id: frozenset(timing.pair for timing in own) for case_id, own in timings.items()}
    return SoFar(widths, rounds, bases, correlation)


def cases_without_target(widths: Mapping[str, float | None], target: float) -> list[str]:
    """Return the ids of cases whose half-width is unknown or above the target."""
    return [case_id for case_id, width in widths.items() if width is None or width > target]


def quick_timing(directory: LaunchDir, address: Address, sessions: Sessions = UNKNOWN) -> Timing | None:
    """Return a launch's timing from its timed blocks alone, which is fast.

    None if the launch is unfinished, not ok or damaged, or if the folder has another launch's files.
    """
    found = _quick(directory, address, sessions)
    return found[0] if found is not None else None


def _quick(
    directory: LaunchDir, address: Address, sessions: Sessions
) -> tuple[Timing, Alternated, Mapping[str, float]] | None:
    """Like `quick_timing`, with the groups with which it alternated, and its corrections of others as their anchor."""
    try:
        outcome = read_outcome(directory)
        if outcome.status != "ok" or address.misfit(outcome, directory):
            return None
        paths = [path for path in directory.rank_files() if stray_rank(path, outcome) is None]
        blocks = [_quick_blocks(path, address, outcome) for path in paths]
    except (OSError, ValueError, RecordError):
        return None
    own = [of for of in blocks if of is not None]
    if len(own) < len(outcome.exit_codes):
        return None
    timing = time_blocks(outcome.round, own)
    if timing is None:
        return None
    session = sessions.session_of(outcome.session, outcome.started_utc)
    corrections = anchor_corrections(outcome.alternated, timing, own)
    return replace(timing, session=session), outcome.alternated, corrections


def _quick_blocks(path: Path, address: Address, outcome: LaunchOutcome) -> dict[int, BlockTimes] | None:
    """Return a rank's timed blocks; None if the file belongs to another launch.

    Raises:
        ValueError: a block is damaged.
    """
    blocks: dict[int, BlockTimes] = {}
    for line in read_bytes(path, MOST_RECORDS).splitlines():
        head = line[:80]
        if b'"start"' in head or (b'"block"' in head and b'"timed"' in head):
            record = record_from_json(line)
            if isinstance(record, RankStart) and address.misfit_rank(record, path, outcome):
                return None
            if isinstance(record, Block):
                length_ns = record.end_ns - record.start_ns
                blocks[record.index] = BlockTimes(
                    length_ns, record.steps, record.samples, record.step_ns, record.group
                )
    return blocks
