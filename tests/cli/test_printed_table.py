"""The table that a sweep prints: what tells its rows apart is in it, and nothing that all share."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis import load
from ddpbench.cli.sweep import _print_table
from ddpbench.records.plan import read_plan
from ddpbench.spec import Case
from tests.emulated import write_emulated
from tests.report.handmade import case_row

PLANNED: dict[str, Case] = {}
"""Every case of these tests, by its id."""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    run = write_emulated(tmp_path_factory.mktemp("run") / "run", rounds=2)
    PLANNED.update({planned.case.case_id: planned.case for planned in read_plan(run).cases})
    return load(run.path)


def printed(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    _print_table(frame, PLANNED)
    return capsys.readouterr().out.splitlines()


def test_links_and_nodes_are_told_where_they_vary(
    emulated: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = printed(emulated, capsys)
    assert head.split()[:5] == ["strategy", "ranks", "bucket", "nodes", "link"]
    assert sum(not row.startswith(" ") for row in rows) == len(emulated)  # long words go on in a second line
    assert any("1 Gbit/s, node 3" in row for row in rows)


def test_one_fabric_for_all_needs_no_column(
    emulated: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    same = emulated[emulated["fabric"].isin(["", "1 Gbit/s"]) | emulated["fabric"].isna()]
    assert "link" not in printed(same, capsys)[0]


def test_choices_and_options_are_told_where_they_vary(capsys: pytest.CaptureFixture[str]) -> None:
    def row(**changes: Any) -> dict[str, Any]:
        values: dict[str, Any] = {
            "workload": "replay:x",
            "strategy": "ddp",
            "schedule": "overlapped",
            "world_size": 2,
        }
        case = Case(**values | {"bucket_cap_mb": "default"} | changes)
        PLANNED[case.case_id] = case
        return case_row(case, rate=None)

    rows = [
        row(algorithm=algorithm, options_json=f'{{"accumulate": {parts}}}')
        for algorithm in ("ring", "naive_ring")
        for parts in (1, 2)
    ]
    head, *told = printed(pd.DataFrame(rows), capsys)
    assert head.split()[:5] == ["strategy", "ranks", "bucket", "algorithm", "accumulate"]
    assert [" ".join(row.split()[3:-2]) for row in told] == ["ring", "ring", "naive ring", "naive ring"]
    assert [row.split()[-2] for row in told] == ["1", "2", "1", "2"]
    both = [row(scaling=kind, algorithm="ring") for kind in ("weak", "strong")]
    assert "scaling" in printed(pd.DataFrame(both), capsys)[0]


def test_the_time_to_a_loss_has_a_column_where_one_was_asked_for(
    emulated: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "loss" not in printed(emulated, capsys)[0]
    asked = emulated.iloc[:2].assign(target_loss=2.5, time_to_loss_s=[12.3456, None])
    head, first, second = printed(asked, capsys)
    assert "s to a loss of 2.5" in head
    assert first.split()[-2:] == ["12.3", "ok"]
    assert second.split()[-1] == "ok"
    assert "nan" not in second
