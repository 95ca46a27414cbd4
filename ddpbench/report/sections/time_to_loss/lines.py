"""Group the cases that were trained to a loss, so that losses can be compared within a group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpbench.analysis.results import TrainedToLoss
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.summary import TrainingResults
from ddpbench.naming import EVERY, Namer
from ddpbench.report.captions import fullest, setting_of
from ddpbench.report.rows import Row
from ddpbench.spec import grouping
from ddpbench.spec.grouping import FACETS, PANEL, GroupKey
from ddpbench.strategies.traits import traits_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedCase:
    """A case that was trained to a loss. Times are seconds; `points` are (step, samples, time, finite mean loss)."""

    row: Row
    words: str
    """The case's name without the scaling."""
    scaling: str
    """Words for the scaling, which end the name if several lines have the same `words`; otherwise empty."""
    target: float
    window: int
    batch: int
    launches: int
    reached: int
    lowest: float | None
    steps_trained: int
    apart: float | None
    time_s: Interval | None
    steps: float | None
    samples: float | None
    speedup: Interval | None
    points: tuple[tuple[int, int, float, float], ...]
    not_finite_from: int | None = None
    """The first step after which the mean loss is not a finite number; None if there is none."""

    @property
    def name(self) -> str:
        """Return the case's name in tables, which list a single device once for each kind of scaling."""
        return f"{self.words}{self.scaling}"

    @property
    def drawn_name(self) -> str:
        """Return the case's name in the figure. A single device has one line for both kinds of scaling."""
        return self.words if traits_of(self.row.case).role == "base" else self.name


def groups_of(training: TrainingResults, rows: Sequence[Row]) -> list[list[TrainedCase]]:
    """Return the cases trained to a loss, in groups whose losses can be compared. Large groups come first."""
    if not training.time_to_loss:
        return []
    by_id = {row.case_id: row for row in rows if row.ok}
    points: dict[str, list[tuple[int, int, float, float]]] = {}
    for one in training.loss_curves:
        points.setdefault(one.case_id, []).append((one.step, one.samples, one.time_s, one.loss))
    found: dict[tuple[Any, ...], list[tuple[Row, TrainedToLoss]]] = {}
    for entry in training.time_to_loss:
        if (row := by_id.get(entry.case_id)) is not None:
            found.setdefault((task(row), entry.target), []).append((row, entry))
    groups = []
    for members in found.values():
        names = _names([row for row, _ in members])
        groups.append(
            [_line(row, names[row.case_id], entry, points.get(row.case_id, ())) for row, entry in members]
        )
    return sorted(groups, key=lambda group: -len(group))


def task(row: Row) -> GroupKey:
    """Return a grouping key. Losses can be compared between cases with the same key."""
    return grouping.deciding("loss", row.case)


def _line(
    row: Row,
    name: tuple[str, str],
    entry: TrainedToLoss,
    points: Sequence[tuple[int, int, float, float]],
) -> TrainedCase:
    cost = row.to_loss
    return TrainedCase(
        row=row,
        words=name[0],
        scaling=name[1],
        target=entry.target,
        window=entry.window,
        batch=entry.batch,
        launches=entry.launches,
        reached=entry.reached,
        lowest=entry.lowest_loss,
        steps_trained=entry.steps_trained,
        apart=entry.apart,
        time_s=cost.time_s if cost else None,
        steps=cost.steps if cost else None,
        samples=cost.samples if cost else None,
        speedup=row.speedup_to_loss,
        points=tuple(point for point in points if math.isfinite(point[3])),
        not_finite_from=min((point[0] for point in points if not math.isfinite(point[3])), default=None),
    )


def _names(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    namer = rows[0].names.of(row.case for row in rows)
    settings = [name for name in EVERY if name not in ("local_batch", "global_batch", "scaling")]
    names = {
        row.case_id: f"{namer.short(row.case, settings)}, batch {row.case.global_batch:,}" for row in rows
    }
    counts = Counter(names.values())
    return {
        row.case_id: (
            names[row.case_id],
            f", {FACETS['scaling'].word(row.case)}" if counts[names[row.case_id]] > 1 else "",
        )
        for row in rows
    }


def setting_words(group: Sequence[TrainedCase]) -> tuple[str, ...]:
    """Return a group's setting in words, without the scaling and the batch, which differ between lines."""
    return setting_of(fullest([line.row for line in group]), but=("scaling",))


def apart_words(groups: Sequence[Sequence[TrainedCase]]) -> list[str]:
    """Return a phrase that distinguishes each group; empty for a single group."""
    cases = [fullest([line.row for line in group]).case for group in groups]
    names = [name for name in PANEL if name not in ("local_batch", "global_batch", "scaling")]
    namer = Namer(cases)
    return [", ".join(namer.apart(case, names)) for case in cases]
