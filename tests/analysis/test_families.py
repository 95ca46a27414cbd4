"""Two cases have one number and one interval in all parts of a report."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis import RunSummary
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.statistics.correlation import widening_of
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.report.standing import stands
from ddpbench.units import format_at_most
from tests.analysis.test_findings import DDP, MASTER, SINGLE, summary_of
from tests.frames import framed
from tests.synthetic import case_of

CAP, BOUND = case_of("ddp", 2, bucket_cap_mb=1.0), case_of("independent", 2)
Ends = tuple[float, float, float]


def in_table(summary: RunSummary, topic: str, case_id: str) -> Ends:
    """Return a case over the best of its group, as the tables and figures have it."""
    (row,) = [
        row
        for row in framed(summary.steps.comparisons).to_dict("records")
        if (row["topic"], row["case_id"]) == (topic, case_id)
    ]
    return row["ratio_ci_low"], row["ratio"], row["ratio_ci_high"]


def found(summary: RunSummary, kind: str) -> Ends:
    """Return the finding's ratio of its first case over its last."""
    (ratio,) = [one.ratio for one in summary.conclusions.findings if one.kind == kind]
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    return ratio.low, ratio.value, ratio.high


@pytest.mark.parametrize("noise", [0.002, 0.05])
def test_findings_tables_and_figures_agree_on_two_cases(tmp_path: Path, noise: float) -> None:
    """Decided or not: of two caps, or two strategies, each is compared with the other alone."""
    steps = {SINGLE: 10, BOUND: 11, DDP: 12, CAP: 12.6, MASTER: 13}
    summary = summary_of(tmp_path, steps, noise=noise)
    caps = in_table(summary, "buckets", CAP.case_id)
    finding = next(one for one in summary.conclusions.findings if one.kind == "buckets")
    assert finding.cases == (CAP.case_id, DDP.case_id)
    assert found(summary, "buckets") == pytest.approx(caps)
    master = in_table(summary, "strategies", MASTER.case_id)
    (one,) = [one for one in summary.conclusions.findings if one.kind == "strategies"]
    ends = found(summary, "strategies")
    if one.cases[0] == DDP.case_id:  # the faster one comes first
        ends = (1 / ends[2], 1 / ends[1], 1 / ends[0])
    assert ends == pytest.approx(master)
    assert all(
        "corrected for 6 comparisons" in one.tags
        for one in summary.conclusions.findings
        if one.ratio is not None
    )


def test_the_answer_s_bound_is_the_table_s(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, BOUND: 11, DDP: 12, CAP: 12.1, MASTER: 12.2}, noise=0.05)
    low, _, high = in_table(summary, "ranks", DDP.case_id)
    bound = format_at_most(max(high, 1 / low) - 1)
    text = summary.conclusions.answer[0].text
    assert text.endswith(f"; no other case is shown to be faster (up to {bound})."), text
    stand = stands(summary.steps.comparisons, "ranks")[DDP.case_id]
    assert stand.cell("case") == f"cannot tell: within {bound} of the fastest other case"


def test_why_it_is_undecided_is_said_once_with_the_rounds_that_would_tell(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 12.1}, noise=0.05)
    low, _, high = in_table(summary, "ranks", MASTER.case_id)
    half = math.log(high / low) / 2
    answer = summary.conclusions.answer[0]
    (why,) = [tag for tag in answer.tags if "would take about" in tag]
    bound = format_at_most(max(high, 1 / low) - 1)
    assert answer.text.endswith(f"DDP is within {bound} of the fastest other."), "master is the only other"
    found = re.fullmatch(r"±(2) % would take about ([\d,]+) rounds, of which 6 were made", why)
    assert found is not None, why
    narrowed = [
        half * (scipy_stats.t.ppf(0.975, count - 1) / scipy_stats.t.ppf(0.975, 5)) * math.sqrt(6 / count)
        for count in range(6, 200)
    ]
    needed = next(count for count, width in enumerate(narrowed, 6) if width <= math.log(1.02))
    assert float(found[2].replace(",", "")) == pytest.approx(needed, abs=1)
    decided = summary_of(tmp_path / "decided", {SINGLE: 10, DDP: 12, MASTER: 14})
    assert "would take about" not in decided.conclusions.answer[0].line


def test_panels_share_the_error_in_every_topic(tmp_path: Path) -> None:
    """Two workloads: the paired interval of two strategies is at 2.5 %, in tables and findings alike."""
    mlp = {"workload": "mlp:small"}
    mlp_cases = {case_of(name, 2, **mlp): step for name, step in (("ddp", 12.0), ("master", 30.0))}
    summary = summary_of(tmp_path, {SINGLE: 10, DDP: 12, MASTER: 12.1, **mlp_cases}, noise=0.02)
    frame = framed(summary.steps.launches).pivot(index="round", columns="case_id", values="step_time_s")
    logs = np.log(frame[MASTER.case_id] / frame[DDP.case_id])
    run = RunDir(tmp_path / "run")
    reckoned = max(one.correlation for case in read_cases(run, read_plan(run)) for one in case.timings)
    half = widening_of(6, reckoned) * scipy_stats.t.ppf(1 - 0.025 / 2, 5) * logs.std() / math.sqrt(6)
    ends = [math.exp(logs.mean() + side * half) for side in (-1, 0, 1)]
    for topic in ("strategies", "ranks"):
        assert in_table(summary, topic, MASTER.case_id) == pytest.approx(ends, rel=1e-4)
    finding = next(one for one in summary.conclusions.findings if one.cases == (MASTER.case_id, DDP.case_id))
    assert finding.ratio is not None
    assert [finding.ratio.low, finding.ratio.value, finding.ratio.high] == pytest.approx(ends, rel=1e-4)
