"""The section on a job's work other than training: evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.checkpoints import CheckpointCost
from ddpbench.report.parts import Section
from ddpbench.report.rows import Row
from ddpbench.report.sections.checkpoints.costs import checkpoint_picture, costs_of
from ddpbench.report.sections.checkpoints.evaluation import evaluation_picture
from ddpbench.report.words import series_of
from ddpbench.strategies.traits import traits_of

MOST_CASES = 8


def section(saved: Sequence[CheckpointCost], rows: Sequence[Row]) -> Section | None:
    """Return the section on evaluation and checkpoints; None if no case has results on either."""
    evaluated = [row for row in rows if row.ok and row.evaluation_samples_per_s is not None]
    evaluated.sort(key=lambda row: (row.oversubscribed, -row.case.world_size))
    costs = costs_of(saved, rows)
    if not evaluated and not costs:
        return None
    shown = _ordered(evaluated[:MOST_CASES])
    names = list(dict.fromkeys(cost.row.case_id for cost in costs))[: MOST_CASES // 2]
    drawn = [cost for cost in costs if cost.row.case_id in names]
    notes = []
    if len(evaluated) > len(shown):
        notes.append(
            f"{len(shown)} of {len(evaluated)} evaluated cases are drawn, those with most ranks first."
        )
    if len({cost.row.case_id for cost in costs}) > len(names):
        notes.append("Not all checkpoints are drawn; cases.csv has them all.")
    bare = [row.strategy_name for row in shown if traits_of(row.case).one_process and row.case.world_size > 1]
    if bare:
        notes.append(f"{bare[0]} evaluates the bare model on one device: its replicas are not used for it.")
    if any(traits_of(row.case).role == "bound" for row in evaluated) and costs:
        notes.append("Independent ranks have no common state to save: no checkpoints.")
    parted = list(
        dict.fromkeys(row.strategy_name for row in rows if row.ok and traits_of(row.case).parts_state)
    )
    if parted:
        notes.append(f"Not timed for {series_of(parted)}, whose ranks hold parts of model or optimizer.")
    pictures = [evaluation_picture(shown)] if shown else []
    pictures += [checkpoint_picture(drawn)] if drawn else []
    return Section(
        anchor="checkpoints",
        title="Checkpoints and evaluation",
        question="What does a job cost besides its training steps?",
        pictures=tuple(pictures),
        notes=tuple(notes),
    )


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.case.world_size, row.strategy_name))
