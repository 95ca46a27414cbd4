"""Shrinking changes nothing but bytes: one emulated job with its gradients whole and divided by four, in turn."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

import ddpbench
from ddpbench.analysis import summarize
from ddpbench.records import RunDir
from tests.benchmarks.conftest import Say
from tests.benchmarks.ratio import paired_ratio

pytestmark = [pytest.mark.multiprocess, pytest.mark.root]
if os.geteuid():
    pytestmark.append(pytest.mark.skip(reason="needs root: makes network namespaces"))

TEXT = """
question = "Does shrinking change anything?"
[base]
workload = "replay:resnet50-v100"
strategy = "ddp"
dilation = {dilation}
[axes]
shrink = [{shrinks}]
[fabric]
nodes = {nodes}
bandwidth = "10 Gbit/s"
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = {measured}
total = "15 min"
"""


def test_a_shrunk_job_takes_as_long(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: the 95 % interval of m = 1 / m = 4 lies within 0.97 to 1.03, at 3 nodes, 10 Gbit/s, dilated x4."""
    path = tmp_path / "shrink.toml"
    shrinks = "1, 4" if full else "200, 400"
    size = {"nodes": 3, "rounds": 8, "dilation": 4.0, "measured": 2.0}
    small = {"nodes": 2, "rounds": 1, "dilation": 1.0, "measured": 0.1}
    path.write_text(TEXT.format(shrinks=shrinks, **(size if full else small)), encoding="utf-8")
    run = ddpbench.sweep(path, out=tmp_path / "run")
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}
    jobs = frame[frame["strategy"] == "ddp"].set_index("shrink")
    # Each parameter is rounded up to a whole number: a hundred-thousandth in all.
    assert jobs["gradient_bytes"].max() == pytest.approx(jobs["gradient_bytes"].min(), rel=2e-3)
    buckets = jobs["actual_bucket_bytes"].map(lambda text: len(str(text).split(";")))
    assert buckets.nunique() == 1
    launches = summarize(RunDir(run)).launches
    times: pd.DataFrame = launches.pivot_table(index="round", columns="case_id", values="step_time_s")
    whole, shrunk = (times[jobs.loc[int(shrink), "case_id"]] for shrink in shrinks.split(", "))
    assert (whole > 0).all()
    if full:
        ratio = paired_ratio(list(zip(whole, shrunk, strict=True)))
        say(f"step with m = 1 / with m = 4, ResNet-50 on 3 nodes at 10 Gbit/s: {ratio}, within 0.97 to 1.03")
        assert 0.97 <= ratio.low <= ratio.high <= 1.03
