"""The table that a sweep prints has the settings that distinguish its rows, and none that all share."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis import load
from ddpbench.cli.lines import WIDEST
from ddpbench.cli.results import table
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


def printed(frame: pd.DataFrame, width: int = WIDEST) -> list[str]:
    return table(frame, PLANNED, width)


def test_links_and_nodes_are_told_where_they_vary(emulated: pd.DataFrame) -> None:
    head, *rows = printed(emulated)
    assert head.split()[:5] == ["strategy", "ranks", "bucket", "nodes", "link"]
    assert sum(not row.startswith(" ") for row in rows) == len(
        emulated
    )  # long words continue in a second line
    assert any("1 Gbit/s, node" in row for row in rows)


@pytest.mark.parametrize("width", [80, WIDEST])
def test_it_fits_the_width_with_emulated_links_too(emulated: pd.DataFrame, width: int) -> None:
    wide, narrow = printed(emulated, 1000), printed(emulated, width)
    assert max(map(len, wide)) > width
    assert max(map(len, narrow)) <= width
    words = {word for line in narrow for word in line.split()}
    assert {"default", "efficiency", "samples/s", "master", "independent"} <= words
    for case in ("100 Mbit/s", "uplink", "ok"):
        assert any(case in line for line in narrow), case


def test_rates_have_no_exponent_and_oversubscribed_cases_a_mark(emulated: pd.DataFrame) -> None:
    frame = emulated.iloc[:2].assign(samples_per_s=[999.7, 8.25], oversubscribed=[True, False])
    _, first, second, note = printed(frame)
    assert " 1,000 " in first
    assert first.endswith("ok *")
    assert second.endswith("ok")
    assert note.startswith("* oversubscribed")


def test_one_fabric_for_all_needs_no_column(emulated: pd.DataFrame) -> None:
    same = emulated[emulated["fabric"].isin(["", "1 Gbit/s"]) | emulated["fabric"].isna()]
    assert "link" not in printed(same)[0]


def test_choices_and_options_are_told_where_they_vary() -> None:
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
    head, *lines = printed(pd.DataFrame(rows))
    assert head.split()[:5] == ["strategy", "ranks", "bucket", "algorithm", "accumulate"]
    assert [" ".join(row.split()[3:-2]) for row in lines] == ["ring", "ring", "naive ring", "naive ring"]
    assert [row.split()[-2] for row in lines] == ["1", "2", "1", "2"]
    both = [row(scaling=kind, algorithm="ring") for kind in ("weak", "strong")]
    assert "scaling" in printed(pd.DataFrame(both))[0]


def test_the_time_to_a_loss_has_a_column_where_one_was_asked_for(emulated: pd.DataFrame) -> None:
    assert "loss" not in printed(emulated)[0]
    asked = emulated.iloc[:2].assign(target_loss=2.5, time_to_loss_s=[12.3456, None])
    head, first, second = printed(asked)
    assert "s to a loss of 2.5" in head
    assert first.split()[-2:] == ["12.3", "ok"]
    assert second.split()[-1] == "ok"
    assert "nan" not in second
