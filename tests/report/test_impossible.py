"""Numbers that cannot be right, or that compare two frameworks' kernels, are neither drawn nor in a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpbench.analysis import RunSummary
from ddpbench.analysis.invariants.checked import IMPOSSIBLE
from ddpbench.cli.results import print_results
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import laws, scaling
from ddpbench.report.tables.cases import summary_table
from tests.analysis.test_findings import DDP, MASTER, SINGLE, summary_of
from tests.synthetic import case_of

FOUR, EIGHT = case_of("ddp", 4), case_of("ddp", 8)
TENSORFLOW = [case_of("tf_mirrored", ranks) for ranks in (1, 2, 4)]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """Return a run in which DDP trains 9.69 times as fast on 2 ranks as one rank."""
    steps = {SINGLE: 10, DDP: 20 / 9.69, MASTER: 15, FOUR: 20, EIGHT: 30}
    return summary_of(tmp_path_factory.mktemp("fast"), steps)


def test_a_speed_up_beyond_the_ranks_is_neither_drawn_nor_in_a_table(fast: RunSummary) -> None:
    rows = {row.name: row for row in rows_of(fast)}
    assert rows["DDP, 2 ranks"].status == IMPOSSIBLE
    assert [name for name, row in rows.items() if not row.ok] == ["DDP, 2 ranks"]
    (picture,) = scaling.section((), list(rows.values())).pictures
    assert picture.missing[DDP.case_id] == "DDP, 2 ranks (cannot be right)"
    table = summary_table(fast, list(rows.values()))
    (cells,) = [
        row for row in table.rows if row[0].text == "DDP, 2 ranks" or "cannot be right" in row[-1].text
    ]
    assert not any(cell.measured for cell in cells)
    for shown in (picture.table, table):
        measured = [cell.measured.value for row in shown.rows for cell in row if cell.measured is not None]
        assert measured
        assert not any(9 < value < 10.5 for value in measured if value != pytest.approx(10, abs=0.6)), (
            measured
        )
    assert laws.section(fast.steps.laws, list(rows.values())).pictures == ()


def test_a_framework_of_other_kernels_has_no_speed_up_over_torch(tmp_path: Path) -> None:
    """TensorFlow's kernels may be faster than torch's: its efficiency over torch's single rank may be above 1."""
    steps = {SINGLE: 10, DDP: 12, FOUR: 13, **dict(zip(TENSORFLOW, (5.0, 5.5, 6.0), strict=True))}
    found = summary_of(tmp_path, steps)
    assert found.cases.set_index("case_id").loc[TENSORFLOW[1].case_id, "speedup"] > 2, "the data keep it"
    rows = rows_of(found)
    assert {row.strategy_name for row in rows if row.speedup is not None} == {"single", "DDP"}
    assert all(row.samples_per_s is not None for row in rows)
    (picture,) = scaling.section((), rows).pictures
    assert "No speed-up of TF Mirrored: its base case is torch's." in picture.caption
    efficiencies = [row[3].measured.value for row in picture.table.rows if row[3].measured is not None]
    assert efficiencies
    assert max(efficiencies) <= 1
    assert {curve.case.strategy for curve in found.steps.laws} == {"ddp"}


def test_the_printed_table_has_neither(
    fast: RunSummary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_results(fast)
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("ddp") and " 2 " in line
    ]
    assert line.endswith("cannot be right"), line
    assert re.findall(r"\d+", line) == ["2"], line
    print_results(summary_of(tmp_path, {SINGLE: 10, DDP: 12, TENSORFLOW[1]: 5}))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tf_mirrored")]
    assert not re.search(r" \d\.\d\d ", line)
    assert line.endswith("ok")
