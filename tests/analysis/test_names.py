"""Names of cases in sentences: as in the findings, each by its distinguishing words."""

from __future__ import annotations

from pathlib import Path

from ddpbench.analysis.names import Names
from ddpbench.spec import Case
from tests.analysis.test_conditions import runs
from tests.synthetic import case_of


def names(folder: Path, *cases: Case) -> list[str]:
    found = runs(folder, *cases)
    listed = Names(found)
    return [listed.of(run) for run in found]


def test_what_all_of_a_strategy_share_is_left_out(tmp_path: Path) -> None:
    cases = (case_of("single", 1), case_of("ddp", 2), case_of("ddp", 4), case_of("async_server", 4))
    assert names(tmp_path, *cases) == [
        "single at 1 rank",
        "DDP at 2 ranks",
        "DDP at 4 ranks",
        "the asynchronous server at 4 ranks",
    ]


def test_what_tells_two_apart_is_said(tmp_path: Path) -> None:
    caps = (case_of("ddp", 2, bucket_cap_mb=1.0), case_of("ddp", 2, bucket_cap_mb=25.0))
    assert names(tmp_path / "a", *caps) == [
        "DDP at 2 ranks (1 MiB buckets)",
        "DDP at 2 ranks (25 MiB buckets)",
    ]
    layouts = (case_of("ddp", 4, nodes=2, ranks_per_node=2), case_of("ddp", 4, nodes=4, ranks_per_node=1))
    assert names(tmp_path / "b", *layouts) == ["DDP at 4 ranks (2 x 2)", "DDP at 4 ranks (4 x 1)"]
