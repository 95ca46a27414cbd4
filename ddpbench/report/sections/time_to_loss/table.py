"""The table of the time and samples that each case needs to reach the target loss."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.statistics.estimands import MEDIAN
from ddpbench.analysis.time_to_loss import FIRST_STEPS
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.sections.time_to_loss.lines import TrainedCase
from ddpbench.units import counted, format_number


def loss_table(group: Sequence[TrainedCase], apart: str) -> Table:
    """Return a table with the steps, samples and time that each case needs to reach the loss, and its speed-ups."""
    notes = {line.row.case_id: _notes(line) for line in group}
    noted = any(notes.values())
    held = any(line.apart is not None for line in group)
    what = (
        " Apart from one device: the largest relative difference of a step's loss from that of single with as large a "
        f"batch, over the first {FIRST_STEPS} steps."
    )
    columns = (
        Column("Case"),
        Column("Steps", number=True),
        Column("Samples", number=True),
        Column("Time to the loss, s", number=True),
        Column("Speed-up to it", number=True),
        Column("Speed-up in samples/s", number=True),
        *([Column("Apart from one device", number=True)] if held else []),
        Column("Reached it", number=True),
        *([Column("Notes")] if noted else []),
    )
    return Table(
        caption=(
            f"To a loss of {group[0].target:g}{f' ({apart})' if apart else ''}; times: {MEDIAN}; in brackets 95 % "
            f"intervals.{what if held else ''}"
        ),
        columns=columns,
        rows=tuple(
            (
                Cell(text=line.name),
                _mean_cell(line.steps),
                _mean_cell(line.samples),
                Cell.estimate(line.time_s),
                Cell.estimate(line.speedup),
                Cell.estimate(line.row.speedup),
                *([_apart_cell(line.apart)] if held else []),
                Cell(text=f"{line.reached} of {line.launches}", key=line.reached, number=True),
                *([Cell(text=notes[line.row.case_id])] if noted else []),
            )
            for line in group
        ),
    )


def _apart_cell(value: float | None) -> Cell:
    return Cell(text="" if value is None else f"{value:.1g}", key=value, number=True)


def _mean_cell(value: float | None) -> Cell:
    return Cell(text="" if value is None else f"{value:,.0f}", key=value, number=True)


def _notes(line: TrainedCase) -> str:
    words = ["oversubscribed"] if line.row.oversubscribed else []
    if line.time_s is None:
        steps = counted(line.steps_trained, "step")
        lowest = line.lowest
        words.append(
            f"ended after {steps}"
            if lowest is None
            else f"lowest mean {format_number(lowest)} in up to {steps}"
        )
    return "; ".join(words)
