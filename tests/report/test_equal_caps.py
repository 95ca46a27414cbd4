"""A row that stands for several bucket caps says so: in the table of cases, on the page and where it is printed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.cli.results import table
from ddpbench.records import RunDir
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import buckets
from ddpbench.report.tables.cases import summary_table
from ddpbench.spec import Budget, PlannedCase
from tests.frames import framed
from tests.synthetic import MS, ORIGIN_NS, RankLaunch, case_of, write_launch, write_plan

SINGLE, DDP = case_of("single", 1), case_of("ddp", 2)
STANDING = PlannedCase(case=DDP, stands_for=(1.0, 2.5), caps_worth=(0.18,))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    write_plan(run, [SINGLE, STANDING], Budget(rounds_min=1, rounds_max=1))
    for case in (SINGLE, DDP):
        write_launch(run, case, 0, [RankLaunch(blocks=[[10 * MS] * 10])] * case.world_size)
    return run


def test_the_table_of_cases_has_a_column_for_it(run: RunDir) -> None:
    frame = load(run).set_index("case_id")["same_buckets_mb"]
    assert pd.isna(frame[SINGLE.case_id])
    assert frame[DDP.case_id] == "1; 2.5"


def test_the_page_says_it_beside_the_cap_and_among_what_limits_the_numbers(run: RunDir) -> None:
    summary = summarize(run)
    assert (
        "gpt:nano: bucket caps default, 1 MiB and 2.5 MiB make the same buckets and are run once; caps that make "
        "others: 0.18 MiB."
    ) in summary.conclusions.validity
    rows = rows_of(summary)
    assert [row.same_buckets for row in rows] == ["", "1 MiB, 2.5 MiB"]
    table = summary_table(summary, rows)
    place = [column.title for column in table.columns].index("Bucket")
    assert [(cells[place].text, cells[place].under) for cells in table.rows] == [
        ("", ""),
        ("default", "as 1 MiB, 2.5 MiB"),
    ]
    assert buckets.section(summary.steps, rows).absent == (
        "All bucket caps of this sweep (default, 1 MiB, 2.5 MiB) make the same buckets: they were run once, and "
        "there is nothing to compare."
    )


def test_so_does_the_printed_table(run: RunDir) -> None:
    lines = table(load(run), {case.case_id: case for case in (SINGLE, DDP)}, 100)
    assert "default = 1; 2.5" in "\n".join(lines)


def test_caps_that_turn_out_equal_are_not_ranked_against_each_other(tmp_path: Path) -> None:
    """Without a probe, as in a plan for another launcher: 2 MiB is faster by chance, in all five rounds."""
    caps = {cap: case_of("ddp", 2, bucket_cap_mb=cap) for cap in ("default", 2.0, 25.0)}
    sizes = {"default": (1_200_000, 2_300_000), 2.0: (3_500_000,), 25.0: (3_500_000,)}
    step_ms = {"default": 30, 2.0: 21, 25.0: 25}
    run = RunDir(tmp_path)
    write_plan(run, [SINGLE, *caps.values()])
    for number in range(5):
        write_launch(run, SINGLE, number, [RankLaunch(blocks=[[20 * MS] * 10])])
        for cap, case in caps.items():
            step = step_ms[cap] * MS + number * 1000
            steps = [(ORIGIN_NS, ORIGIN_NS + step, [("forward", ORIGIN_NS, ORIGIN_NS + step)], [])]
            rank = RankLaunch(blocks=[[step] * 10], steps=steps, buckets=sizes[cap])
            write_launch(run, case, number, [rank] * 2)
    summary = summarize(run)
    held = framed(summary.steps.comparisons)
    assert set(held.loc[held["topic"] == "buckets", "case_id"]) == {
        caps[cap].case_id for cap in ("default", 2.0)
    }
    assert caps[25.0].case_id not in set(held["case_id"])
    assert (
        "gpt:nano at 2 ranks: DDP built the same buckets under caps 2 MiB and 25 MiB: they are one configuration, "
        "compared by 2 MiB alone."
    ) in summary.conclusions.validity
