"""The rule for axes, in every figure: logarithmic over decades, ticks at round numbers, and no label on another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ddpbench.analysis import summarize
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import drawing
from ddpbench.report.draw.rows import Point, grouped_rows
from ddpbench.report.draw.scales import DECADE, log_ticks, scale, spans_decades
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Picture
from tests.emulated import write_emulated
from tests.report.handmade import bucket_comparisons, handmade_summary, sections_of
from tests.synthetic import case_of, write_everything

KEPT = sorted(path.parent for path in (Path(__file__).parents[2] / "reports").glob("*/plan.json"))
LINEAR = ("efficiency", "GB/s", "ranks", "%", "loss", "samples")
"""Words of linear axes by design: shares and rates that begin at 0, and counts."""
SIZES = ("ranks", "nodes", "bandwidth")
"""Words of axes with a tick at each value that was run."""


def faults_of(summary: RunSummary) -> list[str]:
    pictures = [picture for section in sections_of(summary) for picture in section.pictures]
    assert pictures
    return [f"{picture.file_name}: {fault}" for picture in pictures for fault in faults(picture)]


def faults(picture: Picture) -> Iterator[str]:
    wide = (picture.paint, (picture.width_in, picture.height_in))
    for paint, size in (wide, *([(picture.narrow, picture.narrow_in)] if picture.narrow else [])):
        assert paint is not None
        figure = Figure(figsize=size)
        with drawing():
            paint(Sheet(figure, width_in=size[0], height_in=size[1], lifted_in=0.0))
            yield from faults_of_figure(figure)


def faults_of_figure(figure: Figure) -> Iterator[str]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer: Any = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis, along in ((axes.xaxis, True), (axes.yaxis, False)):
            low, high = sorted(axis.get_view_interval())
            shown = [
                (place, label)
                for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
                if label.get_text() and label.get_visible() and low <= place <= high
            ]
            boxes = [label.get_window_extent(renderer) for _, label in shown]
            ends = sorted((box.x0, box.x1) if along else (box.y0, box.y1) for box in boxes)
            if any(after[0] < before[1] for before, after in pairwise(ends)):
                yield f"labels collide: {[label.get_text() for _, label in shown]}"
            if any(character.isalpha() for _, label in shown for character in label.get_text()):
                continue  # names of cases, or categories
            title, kind = axis.get_label_text(), axis.get_scale()
            sized = any(word in title for word in SIZES)
            if not sized and not are_round([place for place, _ in shown], kind):
                yield f"{title!r} has ticks at {[label.get_text() for _, label in shown]}"
            if not sized and not all(states(label.get_text(), place) for place, label in shown):
                yield f"{title!r} has labels {[label.get_text() for _, label in shown]} that are not their ticks"
            values = points_on(axes, along=along)
            if title and kind == "linear" and not any(word in title for word in LINEAR):
                positive = [value for value in values if value > 0]
                if len(positive) == len(values) > 1 and max(positive) / min(positive) > DECADE:
                    yield f"{title!r} spans {min(positive):g} to {max(positive):g} on a linear axis"


def are_round(ticks: Sequence[float], kind: str) -> bool:
    """Return whether ticks are at multiples of 1, 2 or 5 times a power of ten or, on a log axis, at such numbers."""
    if kind == "linear":
        return not ticks or digits(min(after - before for before, after in pairwise(sorted(ticks)))) in (
            1,
            2,
            5,
        )
    return all(math.log2(tick).is_integer() or digits(tick) in (1, 1.5, 2, 3, 4, 5, 6, 8) for tick in ticks)


def states(label: str, tick: float) -> bool:
    """Return whether a label is the tick's number, and not a rounded one. Words, as in `4 KiB`, are not checked."""
    try:
        number = float(label.replace(",", "").replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return True
    return math.isclose(number, tick, rel_tol=1e-9, abs_tol=1e-12)


def digits(value: float) -> float:
    """Return the leading digits of a number, from 1 to below 10."""
    return float(f"{value:.5e}".split("e")[0])


def points_on(axes: Any, *, along: bool) -> list[float]:
    """Return the coordinates of all markers on the axes."""
    lines = [line for line in axes.lines if line.get_marker() not in ("", "None", None, "|")]
    return [
        float(value)
        for line in lines
        for value in (line.get_xdata() if along else line.get_ydata())
        if math.isfinite(float(value))
    ]


@pytest.mark.parametrize("run", KEPT, ids=lambda path: path.name)
def test_axes_of_a_kept_run(run: Path) -> None:
    assert "\n".join(faults_of(summarize(RunDir(run)))) == ""


def test_axes_of_synthetic_runs(tmp_path: Path) -> None:
    found = [
        *faults_of(summarize(write_everything(tmp_path / "whole"))),
        *faults_of(summarize(write_emulated(tmp_path / "emulated", dilation=10.0, shrink=4))),
        *faults_of(handmade_summary(comparisons=bucket_comparisons())),
    ]
    assert "\n".join(found) == ""


@pytest.mark.parametrize("length_in", [0.8, 3.0, 7.0])
@pytest.mark.parametrize("span", [(0.9, 1.1), (3, 29), (100, 610), (1e-3, 2e4), (0.2, 9e6)])
def test_labels_of_a_logarithmic_axis_are_round_and_apart(
    length_in: float, span: tuple[float, float]
) -> None:
    ticks = log_ticks(*span, length_in, along=True)
    assert all(span[0] <= tick <= span[1] for tick in ticks)
    per_in = length_in / math.log(span[1] / span[0])
    places = [math.log(tick) * per_in for tick in ticks]
    assert all(after - before > style.TICK_PT / 72 for before, after in pairwise(places))
    assert {f"{tick:.1e}"[:3] for tick in ticks} <= {"1.0", "1.5", "2.0", "3.0", "4.0", "5.0", "6.0", "8.0"}


def test_an_axis_is_logarithmic_from_a_decade_on() -> None:
    assert not spans_decades(1.0, 9.9)
    assert spans_decades(1.0, 10.0)
    assert not spans_decades(0.0, 10.0), "it has no 0"
    for values, kind in (((2.0, 15.0), "linear"), ((2.0, 150.0), "log")):
        axes = Figure().add_subplot()
        scale(axes.xaxis, *values)
        assert axes.get_xscale() == kind
        assert axes.get_xlim()[0] < values[0]
        assert axes.get_xlim()[1] > values[1]


def rows_drawn(values: Sequence[float]) -> Any:
    axes = Figure().add_subplot()
    points = [
        Point(
            name=f"case {value}",
            estimate=Interval(value),
            launches=(),
            look=style.look(case_of("ddp", 2)),
            hollow=False,
            words="",
        )
        for value in values
    ]
    grouped_rows(axes, [("2 ranks", False, points)], "samples/s")
    return axes


def test_rows_of_points_begin_at_0_unless_they_span_a_decade() -> None:
    near, far = rows_drawn([10.0, 20.0]), rows_drawn([10.0, 2000.0])
    assert (near.get_xscale(), near.get_xlim()[0], near.get_xlabel()) == ("linear", 0, "samples/s")
    assert (far.get_xscale(), far.get_xlabel()) == ("log", "samples/s (log scale)")
