"""Tables that stay within 1280 pixels: how many columns a summary has, and how closely they are set."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.results import Proved
from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.cells import cells
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import strategies
from ddpbench.report.tables.cases import summary_table
from ddpbench.report.tables.proofs import proofs_line, proofs_table
from tests.report.handmade import changed, handmade_summary


def summary_with(**values: tuple[object, object]) -> Table:
    """Return the summary's table if every other case has another value of these fields."""
    summary = handmade_summary()
    planned = dict(summary.planned)
    for number, case_id in enumerate(summary.cases["case_id"]):
        changes: dict[str, Any] = {name: pair[number % 2] for name, pair in values.items()}
        planned[case_id] = dataclasses.replace(planned[case_id], **changes)
    summary = changed(summary, planned=planned)
    return summary_table(summary, rows_of(summary))


def test_few_settings_that_vary_have_a_column_each() -> None:
    table = summary_with(dtype=("float32", "bfloat16"), loader_workers=(0, 4))
    titles = [column.title for column in table.columns]
    assert titles[3:5] == ["Loader workers", "Type"]
    assert "Other settings" not in titles


def test_many_settings_that_vary_share_one_column() -> None:
    table = summary_with(
        workload=("gpt:nano", "mlp:small"),
        dtype=("float32", "bfloat16"),
        loader_workers=(0, 4),
        precision=("full", "bf16"),
        threads_per_rank=(1, 2),
    )
    titles = [column.title for column in table.columns]
    assert len(titles) <= 13
    at = titles.index("Other settings")
    assert titles[at - 1] == "Workload"
    assert [row[at].text for row in table.rows[:2]] == [
        "threads 1; loader workers 0; type float32; precision full",
        "threads 2; loader workers 4; type bfloat16; precision bf16",
    ]
    assert all(len(row) == len(titles) for row in table.rows)


@pytest.mark.parametrize(("columns", "width"), [(9, ""), (10, "wide"), (12, "wide"), (13, "widest")])
def test_many_columns_are_set_closer(columns: int, width: str) -> None:
    assert Table(caption="", columns=(Column("x"),) * columns, rows=()).width == width


def test_only_words_that_no_column_holds_may_be_broken() -> None:
    assert not Cell(text="best strategy; foreign load 2/5", under="emulated 1 Gbit/s link").unbroken
    assert Cell(text="/home/somebody/training_script.py:LanguageModel").unbroken
    assert not Cell(text="1", under="[1,234,000, 1,235,000]", number=True).has_words
    assert Cell(text="1", under="[14.3, 14.9], as good as best, up to 1.4 % longer not ruled out").has_words


def test_cells_are_escaped_and_say_what_they_are() -> None:
    row = (
        Cell(text="<b>", link="#case-a&b"),
        Cell(text="1.00", under="[0.98, 1.02]", key=1.0, number=True, strong=True),
        Cell(text="x\x1b[31my", key='"'),
        Cell(text="/a/long/path/of/a/workload.py"),
    )
    assert str(cells(row)).splitlines() == [
        '<th scope="row"><a href="#case-a&amp;b">&lt;b&gt;</a></th>',
        '<td class="n" data-key="1.0"><strong>1.00</strong> <span class="under">[0.98, 1.02]</span></td>',
        '<td data-key="&#34;">xy</td>',
        '<td class="unbroken">/a/long/path/of/a/workload.py</td>',
    ]


def test_a_column_of_measured_values_has_one_rounding() -> None:
    speedups = (Interval(1.0512, 1.023, 1.080), Interval(5.31, 4.85, 5.81), Interval(0.596, 0.579, 0.615))
    rows = tuple((Cell(text="ring"), Cell.estimate(value), Cell.count(5)) for value in speedups)
    columns = (Column("Strategy"), Column("Speed-up", number=True), Column("Launches", number=True))
    table = Table(
        caption="", columns=columns, rows=(*rows, (Cell(text="oom"), Cell.estimate(None), Cell.count(0)))
    )
    even = table.evenly_rounded()
    assert [row[1].text for row in table.rows[:2]] == ["1.051", "5.3"], "each for itself"
    # 0.60 needs two decimals, 1.05 has three digits with two
    assert [row[1].text for row in even.rows] == ["1.05", "5.31", "0.60", ""]
    assert [row[1].under for row in even.rows[:2]] == ["[1.02, 1.08]", "[4.85, 5.81]"]
    assert [row[2].text for row in even.rows] == ["5", "5", "5", "0"]
    assert dataclasses.replace(table, mixed=True).evenly_rounded().rows == table.rows


def test_what_is_small_keeps_two_digits_in_a_column_of_large_values() -> None:
    values = (Interval(0.332, 0.303, 0.363), Interval(0.0373, 0.0362, 0.0384))
    table = Table(caption="", columns=(Column("E"),), rows=tuple((Cell.estimate(one),) for one in values))
    assert [row[0].text for row in table.evenly_rounded().rows] == ["0.332", "0.037"]


def test_cells_of_cards_have_their_columns_titles() -> None:
    html = cells((Cell(text="DDP"), Cell(text="2"), Cell(text="")), [Column(one) for one in ("S", "R<", "N")])
    assert 'data-title="R&lt;">2</td>' in html
    assert 'data-title="N"' not in html, "an empty cell has no title"
    assert "data-title" not in cells((Cell(text="DDP"),))


def test_findings_on_strategies_have_their_ratios_where_their_evidence_is() -> None:
    summary = handmade_summary()
    a, b = (str(one) for one in summary.cases["case_id"][:2])
    finding = Finding(
        kind="strategies",
        text=Sentence("One is slower"),
        evidence="strategies",
        verdict="slower",
        cases=(a, b),
        ratio=Interval(value=1.2, low=1.02, high=1.42),
    )
    other = dataclasses.replace(finding, evidence="buckets")
    rows = rows_of(summary)
    (table,) = strategies.section(summary.steps.launches, (other, finding), rows).tables
    names = {row.case_id: row.name for row in rows}
    (row,) = table.rows
    assert [cell.text for cell in row] == [names[a], names[b], "1.20", "slower"]
    assert row[2].under == "[1.02, 1.42]"
    assert strategies.section(summary.steps.launches, (other,), rows).tables == ()


def test_what_all_rows_share_is_told_once() -> None:
    summary = handmade_summary()
    rows = [dataclasses.replace(row, ci_reached=False, noise_flag="") for row in rows_of(summary) if row.ok]
    table = summary_table(summary, rows)
    assert table.caption.endswith(" All: target width not reached.")
    assert not any("target width" in row[-1].text for row in table.rows)
    mixed = [dataclasses.replace(rows[0], ci_reached=True), *rows[1:]]
    table = summary_table(summary, mixed)
    assert "All:" not in table.caption
    assert sum("target width" in row[-1].text for row in table.rows) == len(rows) - 1


def test_comparisons_that_were_left_out_are_not_said_to_have_passed() -> None:
    summary = handmade_summary()
    case_id = summary.cases["case_id"].iloc[0]
    shards = [case_id, "gradients, same shards", "float64"]
    left_out = [*shards, 0.0, math.inf, True, "it draws random numbers"]
    made = [case_id, "update, same gradients", "float64", 1e-12, 1e-6, True, ""]

    names = [field.name for field in dataclasses.fields(Proved)]

    def found(*records: list[Any]) -> tuple[str, list[list[str]]]:
        held = changed(summary, proofs=tuple(Proved(**dict(zip(names, one, strict=True))) for one in records))
        table = proofs_table(held.training.proofs, rows_of(held))
        assert table is not None
        return proofs_line(held.training.proofs), [[cell.text for cell in row][3:] for row in table.rows]

    line, rows = found(left_out, made)
    assert line == (
        "Proved before timing: 1 comparison of 1 case with one process passed; 1 other could not be made, for the "
        "reasons in the notes"
    )
    assert rows == [
        ["", "", "0", "not compared", "it draws random numbers"],
        ["1.0e-12", "1.0e-06", "1", "all passed", ""],
    ]
    _, rows = found(left_out, [*shards, 1e-14, 1e-10, True, ""])
    assert rows[0][:4] == ["1.0e-14", "1.0e-10", "1", "all passed; 1 not compared"]
    line, rows = found([*shards, 0.3, 1e-10, False, ""], left_out)
    assert ": 1 comparison of 1 case with one process failed; 1 other could not" in line
    assert rows[0][3] == "1 failed"
    other = [summary.cases["case_id"].iloc[1], *left_out[1:]]
    line, _ = found(made, made, other)
    assert ": all 2 comparisons of 1 case with one process passed; 1 other could not" in line
    line, _ = found(made, [*shards, 0.3, 1e-10, False, ""])
    assert line.endswith(": 1 of 2 comparisons of 1 case with one process failed")
    line, _ = found(left_out, other)
    assert line == (
        "Proved before timing: nothing; 2 comparisons of 2 cases with one process could not be made, for the reasons "
        "in the notes"
    )
