"""The table that a sweep prints: what tells its rows apart is in it, and nothing that all share."""

from __future__ import annotations

import pandas as pd
import pytest

from ddpbench.analysis import load
from ddpbench.cli.sweep import _print_table
from tests.emulated import write_emulated


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return load(write_emulated(tmp_path_factory.mktemp("run") / "run", rounds=2).path)


def printed(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    _print_table(frame)
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
    base = {
        "workload": "replay:x",
        "world_size": 2,
        "bucket_cap_mb": "default",
        "precision": "full",
        "data": "loader",
        "scaling": "weak",
        "target_loss": None,
    }
    numbers = dict.fromkeys(
        ("samples_per_s", "samples_per_s_ci_low", "samples_per_s_ci_high", "speedup", "efficiency")
    )
    rows = [
        {
            **base,
            **numbers,
            "strategy": "ddp",
            "algorithm": algorithm,
            "schedule": "overlapped",
            "loader_workers": 0,
            "nodes": 1,
            "fabric": None,
            "options_json": f'{{"accumulate": {parts}}}',
            "workload_options_json": "{}",
            "status": "ok",
            "oversubscribed": False,
        }
        for algorithm in ("ring", "naive_ring")
        for parts in (1, 2)
    ]
    head, *told = printed(pd.DataFrame(rows), capsys)
    assert head.split()[:5] == ["strategy", "ranks", "bucket", "algorithm", "accumulate"]
    assert [" ".join(row.split()[3:-2]) for row in told] == ["ring", "ring", "naive ring", "naive ring"]
    assert [row.split()[-2] for row in told] == ["1", "2", "1", "2"]
    both = [
        row | {"scaling": kind, "algorithm": "ring"}
        for row, kind in zip(rows, ("weak", "strong"), strict=False)
    ]
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
