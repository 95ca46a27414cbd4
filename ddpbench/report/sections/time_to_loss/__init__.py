"""The section on training to a target loss, for runs in which cases were trained to a loss."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.summary import TrainingResults
from ddpbench.report.drawn import split
from ddpbench.report.parts import Section
from ddpbench.report.rows import Row
from ddpbench.report.sections.time_to_loss.figure import drawn_lines, picture
from ddpbench.report.sections.time_to_loss.lines import TrainedCase, apart_words, groups_of, setting_words
from ddpbench.report.sections.time_to_loss.table import loss_table
from ddpbench.report.words import not_drawn, series_of
from ddpbench.strategies.traits import traits_of

MOST_FIGURES = 3


def section(training: TrainingResults, rows: Sequence[Row]) -> Section | None:
    """Return the section on training to a target loss; None if no case was trained to a loss."""
    groups = groups_of(training, rows)
    if not groups:
        return None
    shown, others = split(groups, MOST_FIGURES)
    notes = list(not_drawn([", ".join(setting_words(group)) for group in others]))
    drawn: list[list[TrainedCase]] = []
    for group in shown:
        lines, omitted = drawn_lines(group)
        drawn.append(lines)
        if omitted:
            names = series_of([line.name for line in omitted])
            notes.append(f"Not drawn, to keep lines apart; the table has them: {names}.")
    every = [line for group in groups for line in group]
    undefined = [line for lines in (*shown, *others) for line in lines if line.not_finite_from is not None]
    if undefined:
        names = series_of([f"{line.name} (from step {line.not_finite_from:,})" for line in undefined])
        notes.append(f"Not drawn where the mean loss is not a finite number: {names}.")
    apart = apart_words(shown)
    if any(traits_of(row.case).role == "bound" and row.ok for row in rows):
        notes.append("Independent ranks train separate models: they have no common loss to bring down.")
    if any(line.row.case.data == "memory" for line in every):
        notes.append(
            "With data in memory the same few batches come again and again: that loss is one of learning them."
        )
    return Section(
        anchor="time-to-loss",
        title="Time to a loss",
        question="Who reaches the loss first, and who trains the most samples for it?",
        pictures=tuple(
            picture(number, lines, group, rows, apart[number])
            for number, (lines, group) in enumerate(zip(drawn, shown, strict=True))
            if lines
        ),
        tables=tuple(loss_table(group, words) for group, words in zip(shown, apart, strict=True)),
        notes=tuple(notes),
    )
