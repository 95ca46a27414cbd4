"""How narrow the intervals are so far: read between rounds, from the timed blocks alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpbench.analysis.stats import Timing, compare, log_half_width
from ddpbench.analysis.steptime import BlockTimes, time_blocks
from ddpbench.records import LaunchDir, RunDir
from ddpbench.records.plan import read_plan


def width_of(timings: Sequence[Timing], baseline: Sequence[Timing] | None) -> float | None:
    """The 95 % half-width that the stopping rule looks at; None under two rounds.

    It is that of the log ratio to the base case within rounds. A base case, and a case whose base case
    has no numbers (`baseline` None or empty), has that of its own log step time.
    """
    if not baseline:
        return log_half_width(timings)
    comparison = compare(timings, baseline)
    return comparison.half_width() if comparison is not None else None


def half_widths(run: RunDir) -> dict[str, float | None]:
    """Each runnable case's half-width so far, None while it has fewer than two rounds.

    Raises:
        IdentityError: the run's plan cannot be read.
    """
    plan = read_plan(run)
    timings: dict[str, list[Timing]] = {}
    baselines: dict[str, str] = {}
    for planned, case_id in zip(plan.cases, plan.ids, strict=True):
        if planned.skip_reason is None:
            found = (quick_timing(directory) for directory in run.launches(case_id))
            timings[case_id] = [timing for timing in found if timing is not None]
            baselines[case_id] = planned.case.baseline().case_id
    return {
        case_id: width_of(own, None if baselines[case_id] == case_id else timings.get(baselines[case_id]))
        for case_id, own in timings.items()
    }


def cases_without_target(widths: Mapping[str, float | None], target: float) -> list[str]:
    """The cases whose half-width is unknown or above the target."""
    return [case_id for case_id, width in widths.items() if width is None or width > target]


def quick_timing(directory: LaunchDir) -> Timing | None:
    """A launch's timing from its timed blocks alone; None where it is unfinished, not ok or damaged.

    Only the lines of timed blocks are parsed, and nothing but their times is looked at.
    """
    try:
        outcome: dict[str, Any] = json.loads(directory.outcome.read_bytes())
        if outcome["status"] != "ok":
            return None
        paths = directory.rank_files()
        if len(paths) < len(outcome["exit_codes"]):
            return None
        return time_blocks(outcome["round"], [_quick_blocks(path) for path in paths])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _quick_blocks(path: Path) -> dict[int, BlockTimes]:
    """A rank's timed blocks by index."""
    blocks: dict[int, BlockTimes] = {}
    for line in path.read_bytes().splitlines():
        head = line[:80]
        if b'"block"' in head and b'"timed"' in head:
            block = json.loads(line)
            length_ns = block["end_ns"] - block["start_ns"]
            times = BlockTimes(length_ns, block["steps"], block["samples"], block.get("step_ns", ()))
            blocks[block["index"]] = times
    return blocks
