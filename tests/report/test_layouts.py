"""Layouts as an axis: compared with each other, distinguished in every figure, and drawn only if there are
several.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.collectives import TABLE
from ddpbench.records import RunDir
from ddpbench.report.draw.canvas import draw
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import layouts
from ddpbench.report.series import panels_of
from ddpbench.report.tables.cases import summary_table
from ddpbench.spec import Budget, Case
from tests.frames import framed
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan, write_sessions

ROUNDS = 6
STEP_NS = {1: 10 * MS, 2: 12 * MS, 4: 12 * MS}
"""Step time by nodes: 4 x 1 takes as long as 2 x 2, and 1 x 4 is shorter."""


def laid_out(world: int, nodes: int, strategy: str = "ddp") -> Case:
    return case_of(strategy, world, nodes=nodes, ranks_per_node=world // nodes, launcher="torchrun")


def run_of(folder: Path, cases: list[Case]) -> RunSummary:
    run = RunDir(folder)
    write_plan(run, cases, Budget(rounds_min=ROUNDS, rounds_max=ROUNDS))
    for case in cases:
        for number in range(ROUNDS):
            # A round's drift affects all; a little noise per launch keeps the intervals from being 0.
            own = 1 + 0.002 * ((number * 7 + case.nodes * 3) % 5)
            step = int(STEP_NS[case.nodes] * (1 + 0.01 * number) * own)
            hosts = [f"host{rank * case.nodes // case.world_size}" for rank in range(case.world_size)]
            ranks = [RankLaunch(blocks=[[step] * 10] * 2, host=host) for host in hosts]
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return summarize(run)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    cases = [laid_out(4, nodes) for nodes in (1, 2, 4)]
    return run_of(tmp_path_factory.mktemp("three"), [laid_out(1, 1, "single"), *cases])


def test_layouts_are_held_against_the_best_of_them(three: RunSummary) -> None:
    ids = {nodes: laid_out(4, nodes).case_id for nodes in (1, 2, 4)}
    frame = framed(three.steps.comparisons)
    assert set(frame["topic"]) == {"layouts", "ranks"}  # one strategy, one cap: nothing else to compare
    found = {row.case_id: row for row in frame[frame["topic"] == "layouts"].itertuples()}
    assert set(found) == set(ids.values())
    assert found[ids[1]].verdict == "best"
    assert found[ids[1]].ratio == pytest.approx(1 / 1.2, rel=0.01)
    for nodes in (2, 4):
        assert found[ids[nodes]].best_case_id == ids[1]
        assert found[ids[nodes]].verdict == "slower"
        assert found[ids[nodes]].ratio == pytest.approx(1.2, rel=0.01)


def test_a_sentence_names_both_layouts(three: RunSummary) -> None:
    texts = [finding.line for finding in three.conclusions.findings if finding.evidence == "layouts"]
    assert len(texts) == 2
    assert texts[0].startswith("DDP (1 x 4) is ")
    assert "faster than DDP (2 x 2) at 4 ranks" in texts[0]


@pytest.mark.usefixtures("painted")
def test_the_section_says_which_is_best_and_draws_all(three: RunSummary) -> None:
    section = layouts.section(three.steps, rows_of(three))
    assert section is not None
    (picture,) = section.pictures
    assert picture.heading.startswith("DDP, 4 ranks: 1 x 4 is best; 4 x 1 takes ")
    assert [row[1].text for row in picture.table.rows] == ["1 x 4", "2 x 2", "4 x 1"]
    assert [row[4].text for row in picture.table.rows] == ["best", "slower", "slower"]
    assert draw(picture).png.startswith(b"\x89PNG")


def test_what_is_as_good_as_best_says_how_much_worse_it_may_be(tmp_path: Path) -> None:
    summary = run_of(tmp_path, [laid_out(1, 1, "single"), laid_out(4, 2), laid_out(4, 4)])
    records = [
        record
        for record in framed(summary.steps.comparisons).to_dict("records")
        if record["topic"] == "layouts"
    ]
    assert [record["verdict"] for record in records] == ["as good", "as good"]
    section = layouts.section(summary.steps, rows_of(summary))
    assert section is not None
    left = [f"at most {100 * max(record['ratio_ci_high'] - 1, 0):.1f} % longer" for record in records]
    assert f"2 x 2 and 4 x 1 are as good as best ({max(left)})" in section.pictures[0].heading
    notes = [text for text in _notes(summary) if "as good" in text]
    assert notes == [f"as good as the best layout ({one})" for one in left]


def _notes(summary: RunSummary) -> list[str]:
    return [cell.text for row in summary_table(summary, rows_of(summary)).rows for cell in row]


def test_layouts_are_series_of_their_own_in_every_figure(three: RunSummary) -> None:
    (panel,) = panels_of(rows_of(three))
    series, _ = panel.of_strategies()
    names = {
        item.name: [row.case.world_size for row in item.rows] for item in series if item.strategy == "ddp"
    }
    assert names == {"DDP 1 x 4": [4], "DDP 2 x 2": [4], "DDP 4 x 1": [4]}


def test_curves_over_nodes_stay_whole_where_no_size_comes_twice(tmp_path: Path) -> None:
    cases = [laid_out(1, 1, "single"), laid_out(2, 1), laid_out(4, 2)]
    summary = run_of(tmp_path, cases)
    assert layouts.section(summary.steps, rows_of(summary)) is None
    (panel,) = panels_of(rows_of(summary))
    series, _ = panel.of_strategies()
    assert [row.case.world_size for item in series if item.name == "DDP" for row in item.rows] == [2, 4]


def test_curves_of_one_and_of_two_nodes_are_two(tmp_path: Path) -> None:
    cases = [laid_out(1, 1, "single"), *(laid_out(world, nodes) for world in (2, 4) for nodes in (1, 2))]
    (panel,) = panels_of(rows_of(run_of(tmp_path, cases)))
    series, _ = panel.of_strategies()
    names = {
        item.name: [row.case.world_size for row in item.rows] for item in series if item.strategy == "ddp"
    }
    assert names == {"DDP on 1 node": [2, 4], "DDP on 2 nodes": [2, 4]}


def test_strategies_are_compared_in_the_same_layout(tmp_path: Path) -> None:
    cases = [laid_out(1, 1, "single")]
    cases += [laid_out(4, nodes, strategy) for strategy in ("ddp", "master") for nodes in (1, 2)]
    frame = framed(run_of(tmp_path, cases).steps.comparisons)
    between = frame[frame["topic"] == "strategies"]
    nodes = {case.case_id: case.nodes for case in cases}
    assert len(between) == 4
    assert all(nodes[row.case_id] == nodes[row.best_case_id] for row in between.itertuples())
    assert len(frame[frame["topic"] == "layouts"]) == 4


def test_what_is_alike_in_all_cases_is_told_in_the_tables_caption(tmp_path: Path) -> None:
    def table_of(name: str, caps: list[float]) -> tuple[str, list[str]]:
        cases = [replace(laid_out(2, 1), bucket_cap_mb=cap) for cap in caps]
        summary = run_of(tmp_path / name, [laid_out(1, 1, "single"), *cases])
        table = summary_table(summary, rows_of(summary))
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert table.reading == (
            "Speed-up: geometric mean of the ratios within rounds, so not quite the quotient of two cells. "
            "Exposed: from instrumented steps, not a part of the timed step next to it."
        )
        return table.caption, [column.title for column in table.columns]

    caption, titles = table_of("one", [25.0])
    assert caption == (
        f"All cases; buckets, where there are any: 25 MiB; samples/s and step: median over launches, {ROUNDS} each; "
        "in brackets 95 % intervals."
    )
    assert not {"Bucket", "Launches"} & set(titles)
    caption, titles = table_of("two", [25.0, 1.0])
    assert "buckets" not in caption
    assert "Bucket" in titles


def test_eight_algorithms_fit_beside_the_base_case(tmp_path: Path) -> None:
    names = ["all_reduce", *TABLE][:8]
    cases = [replace(laid_out(2, 2), algorithm=name) for name in names]
    summary = run_of(tmp_path, [laid_out(1, 1, "single"), *cases])
    series, notes = panels_of(rows_of(summary))[0].of_strategies()
    assert len(names) == 8
    assert {item.rows[0].case.algorithm for item in series} == {"", *names}
    assert notes == []
