"""Two cases have one number and one interval, whatever part of a report tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.analysis import RunSummary
from tests.analysis.test_findings import DDP, MASTER, SINGLE, summary_of
from tests.synthetic import case_of

CAP, BOUND = case_of("ddp", 2, bucket_cap_mb=1.0), case_of("independent", 2)
Ends = tuple[float, float, float]


def told(summary: RunSummary, topic: str, case_id: str) -> Ends:
    """A case over the best of its group, as the tables and figures have it."""
    (row,) = [
        row
        for row in summary.comparisons.to_dict("records")
        if (row["topic"], row["case_id"]) == (topic, case_id)
    ]
    return row["ratio_ci_low"], row["ratio"], row["ratio_ci_high"]


def found(summary: RunSummary, kind: str) -> Ends:
    """The finding's ratio of its first case over its last."""
    (ratio,) = [one.ratio for one in summary.findings if one.kind == kind]
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    return ratio.low, ratio.value, ratio.high


@pytest.mark.parametrize("noise", [0.002, 0.05])
def test_findings_tables_and_figures_agree_on_two_cases(tmp_path: Path, noise: float) -> None:
    """Decided or not: of two caps, or two strategies, each is held against the other alone."""
    steps = {SINGLE: 10, BOUND: 11, DDP: 12, CAP: 12.6, MASTER: 13}
    summary = summary_of(tmp_path, steps, noise=noise)
    caps = told(summary, "buckets", CAP.case_id)
    finding = next(one for one in summary.findings if one.kind == "buckets")
    assert finding.cases == (CAP.case_id, DDP.case_id)
    assert found(summary, "buckets") == pytest.approx(caps)
    master = told(summary, "strategies", MASTER.case_id)
    (one,) = [one for one in summary.findings if one.kind == "strategies"]
    ends = found(summary, "strategies")
    if one.cases[0] == DDP.case_id:  # what is faster stands first
        ends = (1 / ends[2], 1 / ends[1], 1 / ends[0])
    assert ends == pytest.approx(master)
    assert all("corrected for 6 comparisons" in one.tags for one in summary.findings if one.ratio is not None)


def test_the_answer_s_bound_is_the_table_s(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, BOUND: 11, DDP: 12, CAP: 12.1, MASTER: 12.2}, noise=0.05)
    high = told(summary, "ranks", DDP.case_id)[2]
    assert f"at most {100 * (high - 1):.0f} % longer" in summary.answer[0].line.replace(
        "than the fastest", "than"
    ) or any(f"at most {-(-100 * (high - 1) // 1):.0f} % longer" in tag for tag in summary.answer[0].tags)
