"""A sentence compares a process with all cores' threads to ranks on these cores, but not as their base case."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis import RunSummary
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.statistics.correlation import widening_of
from ddpbench.analysis.statistics.judgement import RESOLUTION
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.cli.results import table
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from tests.analysis.test_findings import DDP, MASTER, SINGLE, summary_of
from tests.frames import framed
from tests.kept import REPORTS
from tests.synthetic import case_of

ROOT = Path(__file__).parents[2]
THREADS = case_of("single", 1, threads_per_rank=2)


def sentence(summary: RunSummary) -> str:
    (one,) = [one for one in summary.conclusions.findings if one.kind == "threads"]
    assert one.cases == (DDP.case_id, THREADS.case_id)
    return one.text


@pytest.mark.parametrize(
    ("step", "verdict", "said"),
    [
        (9.6, "faster", "DDP at 2 ranks trains 1.6"),  # 16 samples in 12 ms, compared with 8 in 9.6
        (4.8, "slower", "DDP at 2 ranks trains 0.8"),
        (6.0, "equivalent", "DDP at 2 ranks trains 1.00"),
    ],
)
def test_ranks_are_told_against_one_process_with_as_many_threads(
    tmp_path: Path, step: float, verdict: str, said: str
) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, THREADS: step, DDP: 12, MASTER: 15})
    assert sentence(summary).startswith(said)
    assert sentence(summary).endswith("times the samples/s of one process with 2 threads, gpt:nano.")
    (one,) = [one for one in summary.conclusions.findings if one.kind == "threads"]
    assert one.verdict == verdict
    assert "16 and 8 samples per step" in one.tags
    assert one.text in [
        one.text for one in summary.conclusions.answer
    ]  # the first question after "what do ranks buy"


def test_the_two_families_of_quick_share_the_error_as_the_page_on_methods_says() -> None:
    run = RunDir(REPORTS / "quick-two-cores-gloo")
    families = Families(read_cases(run, read_plan(run)))
    assert families.one_process is not None
    page = " ".join((ROOT / "docs" / "method.md").read_text().split())
    assert families.parts == 2
    assert f"The probability of an error is at most `{ALPHA / families.parts:g}` in each of them." in page
    assert f"only if its interval excludes 1 by more than `{RESOLUTION:g}`" in page
    without = [one for one in read_cases(run, read_plan(run)) if one is not families.one_process[1]]
    assert Families([one for one in without if one.case.threads_per_rank == 1]).parts == 1


def test_what_is_not_decided_is_no_answer(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, THREADS: 6, DDP: 12}, noise=0.05)
    assert "against one process with 2 threads, gpt:nano: no significant difference" in sentence(summary)
    assert all(one.kind != "threads" for one in summary.conclusions.answer)


def test_it_is_the_base_of_no_speed_up(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, THREADS: 7, DDP: 12, MASTER: 15})
    frame = summary.cases.set_index("case_id")
    assert set(frame.loc[[DDP.case_id, MASTER.case_id], "baseline_case_id"]) == {SINGLE.case_id}
    assert math.isnan(frame.loc[THREADS.case_id, "speedup"])
    assert math.isnan(frame.loc[THREADS.case_id, "efficiency"])
    assert not frame.loc[THREADS.case_id, "oversubscribed"]
    assert frame.loc[THREADS.case_id, "threads_per_rank"] == 2
    lines = table(summary.cases, summary.planned, 120)
    assert lines[0].split()[:4] == ["strategy", "ranks", "bucket", "threads"]
    (own,) = [line for line in lines if line.split()[:3] == ["single", "1", "2"]]
    assert "1.00" not in own
    alone = summary_of(tmp_path / "alone", {THREADS: 7, case_of("ddp", 2, threads_per_rank=2): 9})
    assert alone.cases.set_index("case_id").loc[THREADS.case_id, "speedup"] == 1


def test_one_that_another_launcher_started_is_not_compared(tmp_path: Path) -> None:
    other = case_of("single", 1, threads_per_rank=2, launcher="torchrun")
    summary = summary_of(tmp_path, {SINGLE: 10, other: 9.6, DDP: 12, MASTER: 15})
    assert all(one.kind != "threads" for one in summary.conclusions.findings)


def test_its_comparison_shares_the_error_of_the_family(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: 10, THREADS: 7, DDP: 12, MASTER: 12.1}, noise=0.02)
    frame = framed(summary.steps.launches).pivot(index="round", columns="case_id", values="step_time_s")
    run = RunDir(tmp_path / "run")
    reckoned = max(one.correlation for case in read_cases(run, read_plan(run)) for one in case.timings)

    def ends(of: str, over: str, samples: float = 1) -> tuple[float, float]:
        logs = np.log(frame[of] / frame[over] / samples)
        half = widening_of(6, reckoned) * scipy_stats.t.ppf(1 - 0.025 / 2, 5) * logs.std() / math.sqrt(6)
        return math.exp(logs.mean() - half), math.exp(logs.mean() + half)

    (row,) = (
        framed(summary.steps.comparisons)
        .query(f"topic == 'strategies' and case_id == '{MASTER.case_id}'")
        .to_dict("records")
    )
    assert (row["ratio_ci_low"], row["ratio_ci_high"]) == pytest.approx(
        ends(MASTER.case_id, DDP.case_id), rel=1e-4
    )
    low, high = ends(THREADS.case_id, DDP.case_id, samples=0.5)
    assert f"trains {math.sqrt(low * high):.2f} [{low:.2f}, {high:.2f}] times" in sentence(summary)
    (one,) = [one for one in summary.conclusions.findings if one.kind == "threads"]
    assert "corrected for 2 comparisons" in one.tags
