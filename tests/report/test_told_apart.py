"""A page's statements on several workloads, layouts and variants: each was wrong for the records of kept
runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.statistics.interval import Interval, decimals_of
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import (
    breakdown,
    claims,
    heatmap,
    network,
    one_step,
    scaling,
    strategies,
    waterfall,
)
from ddpbench.report.standing import stands
from ddpbench.report.tables.data_parallel import phases_table
from ddpbench.spec import grouping
from tests.frames import framed
from tests.report.test_on_a_phone import collisions
from tests.synthetic import case_of, write_run

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def data_parallel() -> RunSummary:
    return summarize(RunDir(REPORTS / "claim_data_parallel"))


def test_a_heading_ranks_all_series_that_have_a_base_case_of_their_framework() -> None:
    summary = summarize(RunDir(REPORTS / "frameworks"))
    (picture,) = scaling.section(summary.conclusions.claims, rows_of(summary)).pictures
    assert "Efficiency at 2 ranks: DDP 0.65 " in picture.alt
    assert "(3 more beneath)" in picture.alt
    assert picture.heading.startswith("At 2 ranks training is 0.95 (DeepSpeed) to 1.3 (DDP) times")
    assert "TF" not in picture.alt, "its base case is torch's"


def test_cases_of_several_workloads_are_told_apart(data_parallel: RunSummary) -> None:
    rows = rows_of(data_parallel)
    (ratios,) = strategies.section(
        data_parallel.steps.launches, data_parallel.conclusions.findings, rows
    ).tables
    assert {tuple("Narrow" in row[at].text for at in (0, 1)) for row in ratios.rows} == {
        (True, True),
        (False, False),
    }
    phases = phases_table(data_parallel.steps.phases, rows)
    assert phases is not None
    names = [column.title for column in phases.columns]
    assert len(set(names)) == len(names) > 2
    parts = breakdown.section(data_parallel.steps.breakdown, data_parallel.conclusions.checks, rows)
    (note,) = (one for one in parts.notes if "marks cases" in one)
    assert "mlp:large (7.0 % longer)" in note
    assert "Narrow (6.5 % shorter)" in note
    (picture,) = one_step.section(data_parallel.steps, rows).pictures
    assert "Narrow" in picture.group or "mlp:large" in picture.group


def test_a_finding_says_of_which_layout_it_is() -> None:
    summary = summarize(RunDir(REPORTS / "claim_one_node_or_many"))
    about = [
        one.text for one in summary.conclusions.findings if one.kind in ("strategies", "speed-up", "parts")
    ]
    assert len(about) == 3
    assert all("at 4 ranks (1 x 4)" in text for text in about)
    assert {pair.a_name for one in summary.conclusions.claims for pair in one.pairs} >= {
        "ring (DDP) at 4 ranks (1 x 4)"
    }


def test_a_correction_is_told_as_it_was_made() -> None:
    """All 11 comparisons of the run's claims share the error, and are counted; not only the two of a
    sentence.
    """
    summary = summarize(RunDir(REPORTS / "claim_input_bound"))
    found = [one for one in summary.conclusions.findings if one.kind == "inputs"]
    assert len(found) == 2
    assert all("corrected for 11 comparisons" in one.tags for one in found)


def test_an_end_of_a_decided_ratio_is_not_rounded_to_no_difference() -> None:
    summary = summarize(RunDir(REPORTS / "hybrid"))
    cells = [
        row[2].under
        for table in claims.section(summary.conclusions.claims, rows_of(summary)).tables
        for row in table.evenly_rounded().rows
    ]
    assert not any(float(end) == 1 for text in cells for end in text.strip("[]").split(", ") if text)

    def shown(ratio: Interval) -> str:
        return " ".join(ratio.texts(null=1))

    assert shown(Interval(0.785, 0.352, 0.951)) == "0.79 [0.35, 0.95]"
    assert shown(Interval(0.785, 0.352, 0.9996)) == "0.8 [0.4, just below 1]"
    assert shown(Interval(0.785, 0.352, 1.0)) == "0.8 [0.4, 1.0]"
    assert shown(Interval(0.785, 0.352, 0.999999)) == "0.8 [0.4, just below 1]"
    assert shown(Interval(0.785, 0.352, 0.997)) == "0.785 [0.352, 0.997]"
    column = [Interval(0.785, 0.352, 0.997), Interval(12.3, 11.9, 12.7)]
    assert decimals_of(column, null=1) == 3


def test_the_least_time_is_less_than_any_that_was_measured() -> None:
    """A link passes a burst at once, and frames counted this way hold 95.6 % of payload."""
    for name in ("claim_master_congestion", "ring-vs-master-emulated"):
        frame = framed(summarize(RunDir(REPORTS / name)).communication.network)
        assert (frame["network_s"] > frame["bound_s"]).all()


def test_what_a_link_passes_at_once_is_told() -> None:
    summary = summarize(RunDir(REPORTS / "claim_master_congestion"))
    (picture,) = network.section(summary.communication.network, rows_of(summary)).pictures
    assert "After a pause a link passes 0.5 ms of its rate at once" in picture.caption


def test_many_variables_are_counted() -> None:
    def words(count: int) -> list[str]:
        return grouping.qualifiers(
            case_of("ddp", 2, env_json=json.dumps({f"A{n}": "1" for n in range(count)}))
        )

    assert words(2) == ["A0=1, A1=1"]
    assert words(3) == ["3 environment variables set"]


def test_the_heat_map_tells_the_paired_difference_as_the_figure_beside_it_does(tmp_path: Path) -> None:
    summary = summarize(write_run(tmp_path / "run", 30))
    standings = stands(summary.steps.comparisons, "buckets")
    rows = [row for row in rows_of(summary) if row.case_id in standings]
    line = [
        row for row in rows if row.panel == rows[0].panel and row.case.world_size == rows[0].case.world_size
    ]
    found = {row.case_id: heatmap._longer(row, line, standings) for row in line}
    (lowest,) = (case_id for case_id, value in found.items() if value == 0)
    others = {case_id: value for case_id, value in found.items() if case_id != lowest}
    assert len(others) > 1
    assert others == {case_id: standings[case_id].ratio.value - 1 for case_id in others}
    quotients = {case_id: heatmap._longer(row, line, {}) for case_id, row in zip(found, line, strict=True)}
    assert all(quotients[case_id] != value for case_id, value in others.items())


def test_names_and_losses_of_a_waterfall_share_a_phones_line(data_parallel: RunSummary) -> None:
    made = waterfall.section(data_parallel.steps.waterfall, rows_of(data_parallel))
    found = [words for picture in made.pictures for words in collisions(picture, narrow=True)]
    assert made.pictures
    assert found == []
