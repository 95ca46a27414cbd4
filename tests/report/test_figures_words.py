"""Names in figures and their tables: distinct, explained where they first appear, and no longer than needed."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.figure import Figure

from ddpbench.analysis.results import StepParts
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report import page
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import drawing, wrapped
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row, rows_of
from ddpbench.report.sections import breakdown, scaling
from ddpbench.report.sections.communication.curves import TransferCurve, TransferPoint
from ddpbench.report.sections.communication.figure import picture as transfers
from tests.report.handmade import changed, ddp, handmade_summary, with_cases
from tests.report.reading import read


def painted(picture: Picture) -> Figure:
    figure = Figure(figsize=(picture.width_in, picture.height_in))
    picture.paint(Sheet(figure, width_in=picture.width_in, height_in=picture.height_in, lifted_in=0.0))
    return figure


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return rows_of(handmade_summary())


def with_parts(step: StepParts, **changes: float) -> StepParts:
    """Return the same step with other times of some parts."""
    found = {name: Interval(value) for name, value in changes.items()}
    overlapped = found.pop("overlapped_comm", step.overlapped_comm)
    return dataclasses.replace(
        step, parts=dataclasses.replace(step.parts, **found), overlapped_comm=overlapped
    )


def test_sizes_that_round_to_the_same_words_are_told_apart_by_their_bytes(rows: list[Row]) -> None:
    row = next(row for row in rows if row.case_id == ddp(4).case_id)
    sizes = (1_059_328, 1_060_352, 2_000_000)
    points = [
        TransferPoint(bytes=size, time_ms=Interval(1.0), busbw=None, rounds=5, transfers=10) for size in sizes
    ]
    curve = TransferCurve(op="all_reduce", world_size=4, variant=0, points=tuple(points))
    cells = [line[2] for line in transfers(row, [row], rows, [curve], 0).table.rows]
    assert [(cell.text, cell.under) for cell in cells] == [
        ("1.01 MiB", "1,059,328 B"),
        ("1.01 MiB", "1,060,352 B"),
        ("1.91 MiB", ""),
    ]


def test_the_breakdown_explains_the_parts_whose_names_do_not_where_they_are_drawn() -> None:
    summary = handmade_summary()
    (picture,) = breakdown.section(
        summary.steps.breakdown, summary.conclusions.checks, rows_of(summary)
    ).pictures
    assert "Waiting for ranks: a rank's gradients are ready" in picture.caption
    assert "Overlapped, beneath a bar: gradients travel while the rank still computes" in picture.caption
    none = tuple(with_parts(one, exposed_wait=0.0, overlapped_comm=0.0) for one in summary.steps.breakdown)
    bare = handmade_summary(breakdown=none)
    (picture,) = breakdown.section(bare.steps.breakdown, bare.conclusions.checks, rows_of(bare)).pictures
    assert "Waiting for ranks" not in picture.caption
    assert "Overlapped" not in picture.caption


def test_the_breakdowns_legend_has_no_part_too_thin_to_be_seen() -> None:
    summary = handmade_summary()
    thin = tuple(with_parts(one, data=1e-9) for one in summary.steps.breakdown)
    summary = handmade_summary(breakdown=thin)
    (picture,) = breakdown.section(
        summary.steps.breakdown, summary.conclusions.checks, rows_of(summary)
    ).pictures
    (legend,) = painted(picture).legends
    assert style.PHASES["data"].name not in [text.get_text() for text in legend.get_texts()]


def test_a_bucket_cap_that_all_bars_share_is_told_once() -> None:
    summary = handmade_summary()
    rows = rows_of(summary)
    bars = list(breakdown._bars(summary.steps.breakdown, summary.conclusions.checks, rows).values())
    caps = {bar.row.case.bucket_cap_mb for bar in bars} - {None}
    assert len(caps) > 1
    assert breakdown._labels(bars) == [bar.name for bar in bars], "they tell cases apart"
    same = [bar for bar in bars if bar.row.case.bucket_cap_mb in (None, "default")]
    assert not any("buckets" in label for label in breakdown._labels(same))
    assert "All that have buckets: default buckets." in breakdown._picture("", same, {}).caption


def test_points_that_would_hide_each_other_stand_side_by_side() -> None:
    def places(width: float) -> list[float]:
        summary = handmade_summary()
        near = summary.cases["speedup"].where(summary.cases["world_size"] == 1, 1.9)
        cases = summary.cases.assign(speedup=near, speedup_ci_low=near - width, speedup_ci_high=near + width)
        one = with_cases(summary, cases)
        left = painted(scaling.section(one.conclusions.claims, rows_of(one)).pictures[0]).axes[0]
        return sorted({round(float(x), 3) for line in left.lines for x in line.get_xdata() if 1.7 < x < 2.3})

    assert len(places(0.2)) >= 3
    assert min(places(0.2)) > 1.85, "near enough to be read at 2 ranks"


def test_a_columns_small_values_do_not_give_its_large_ones_more_digits() -> None:
    values = [Interval(5.95959, 5.95, 5.97), Interval(0.0005, 0.00049, 0.00051), Interval(24.863, 24.8, 24.9)]
    table = Table(
        caption="",
        columns=(Column("ms", number=True),),
        rows=tuple((Cell.estimate(value),) for value in values),
    )
    texts = [row[0].text for row in table.evenly_rounded().rows]
    assert texts == ["5.96", "0.00050", "24.86"], "and none is rounded away"


def test_what_qualifies_a_finding_stands_in_brackets_and_not_as_loose_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "FIGURES", {})
    summary = handmade_summary()
    tags = [(f"{n} of 20 launches disturbed", f"corrected for {n} comparisons") for n in range(2, 22)]
    findings = summary.conclusions.findings
    found = [dataclasses.replace(one, tags=own) for one, own in zip(findings, tags, strict=False)]
    assert len(found) == len(findings)
    spans = read(page.build(changed(summary, findings=found)).html).all("span", class_="tags")
    assert spans
    assert {span.text for span in spans} <= {f"({'; '.join(own)})" for own in tags}


@pytest.mark.parametrize("narrow", [True, False])
def test_a_number_in_a_part_leaves_its_edges_free(narrow: bool) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    summary = handmade_summary()
    (picture,) = breakdown.section(
        summary.steps.breakdown, summary.conclusions.checks, rows_of(summary)
    ).pictures
    size = picture.narrow_in if narrow else (picture.width_in, picture.height_in)
    paint = picture.narrow if narrow else picture.paint
    assert paint is not None
    figure = Figure(figsize=size)
    with drawing():
        paint(Sheet(figure, width_in=size[0], height_in=size[1], lifted_in=0.0))
        renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        (axes,) = figure.axes
        bars = [bar.get_window_extent(renderer) for bar in axes.patches]
        texts = [text for text in axes.texts if text.get_ha() == "center"]
        assert texts
        for text in texts:
            box = text.get_window_extent(renderer)
            (part,) = [bar for bar in bars if bar.contains((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)]
            assert min(box.x0 - part.x0, part.x1 - box.x1) >= 1.5, text.get_text()


def slowed(*case_ids: str) -> Section:
    """Return the section of the handmade summary, with steps of these cases 40 times as long."""
    summary = handmade_summary()
    found = tuple(
        dataclasses.replace(
            with_parts(
                one,
                overlapped_comm=40 * one.overlapped_comm.value,
                **{name: 40 * part.value for name, part in one.parts.by_name.items()},
            ),
            step_time_s=40 * one.step_time_s,
        )
        if one.case_id in case_ids
        else one
        for one in summary.steps.breakdown
    )
    other = changed(summary, breakdown=found)
    return breakdown.section(other.steps.breakdown, other.conclusions.checks, rows_of(other))


def test_bars_that_the_longest_would_crush_have_a_figure_of_their_own() -> None:
    tall, short = slowed(ddp(4).case_id, ddp(2).case_id).pictures
    assert len(tall.table.rows) == 2
    assert len(tall.table.rows) + len(short.table.rows) == len(slowed().pictures[0].table.rows)
    assert short.heading.startswith("Of the shorter steps, ")
    assert (tall.file_name, short.file_name) == ("breakdown", "breakdown-2")
    assert len(slowed(ddp(4).case_id).pictures) == 1, "one long bar tells by itself"


def test_a_text_without_end_takes_a_few_lines_of_a_figure() -> None:
    """A stranger's run may have a processor name of megabytes: each line would make the picture higher."""
    for text in ("h " * 1_000_000, "h" * 2_000_000):
        lines = wrapped(f"begins {text} ends", 100)
        assert len(lines) <= 41
        assert "begins" in lines[0]
        assert "ends" in lines[-1]
    assert " ".join(wrapped("as it is " * 300, 100)) == ("as it is " * 300).strip()
