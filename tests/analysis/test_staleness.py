"""Staleness of an asynchronous server's gradients: in the table, and in a sentence."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.analysis.read.staleness import added, mean_of, percentile_of
from ddpbench.records import RunDir
from ddpbench.spec import Budget
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

SINGLE = case_of("single", 1)
ASYNC = case_of(
    "async_server",
    4,
    algorithm="async_server",
    schedule="after_backward",
    backend="gloo",
    global_batch=3 * 8,  # the server trains on none
)
BLOCKS = [[10 * MS] * 10] * 2


def run_of(path: Path) -> RunDir:
    """Write two launches of two blocks; the second launch's server saw other counts."""
    run = RunDir(path / "run")
    write_plan(run, [SINGLE, ASYNC], Budget(rounds_min=2, rounds_max=2))
    for number, counts in enumerate([(1, 4, 15), (0, 0, 19, 0, 1)]):
        write_launch(run, SINGLE, number, [RankLaunch(blocks=BLOCKS)])
        server = RankLaunch(blocks=BLOCKS, staleness=counts, samples_per_step=0)
        write_launch(run, ASYNC, number, [server, *[RankLaunch(blocks=BLOCKS)] * 3])
    return run


def test_the_table_has_its_mean_and_its_largest_over_all_launches(tmp_path: Path) -> None:
    frame = load(run_of(tmp_path)).set_index("strategy")
    # each launch's counts come twice, once per block: 2 · (0·1 + 1·4 + 2·15 + 2·19 + 4·1) updates over 80
    # gradients
    assert frame.loc["async_server", "staleness_mean"] == pytest.approx(2 * 76 / 80)
    assert frame.loc["async_server", "staleness_max"] == 4
    assert pd.isna(frame.loc["single", "staleness_mean"])
    assert pd.isna(frame.loc["single", "staleness_max"])


def test_only_the_workers_samples_count(tmp_path: Path) -> None:
    frame = load(run_of(tmp_path)).set_index("strategy")
    assert frame.loc["async_server", "samples_per_s"] == pytest.approx(3 * 8 / 0.010)


def test_a_sentence_says_how_old_the_gradients_were(tmp_path: Path) -> None:
    (text,) = [
        text for text in summarize(run_of(tmp_path)).conclusions.validity if "older parameters" in text
    ]
    assert text.startswith("1 case applied gradients of older parameters")
    assert "1.90 on average, 95th percentile 2, at most 4 (the asynchronous server at" in text


def test_counts_are_added_whatever_their_lengths() -> None:
    assert added([(1, 2), (3,), (0, 0, 5)]) == (4, 2, 5)
    assert added([]) == ()
    assert mean_of((1, 0, 3)) == 1.5
    assert percentile_of((19, 0, 1), 0.95) == 0
    assert percentile_of((18, 0, 2), 0.95) == 2
