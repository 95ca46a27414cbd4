"""Parts of DDP's lead over a master due to the ring and to the overlap, from known step times."""

from __future__ import annotations

import re
from pathlib import Path

from ddpbench.spec import Case
from tests.analysis.test_findings import summary_of
from tests.synthetic import case_of

DDP = case_of("ddp", 4)
LATE = case_of("ddp", 4, schedule="after_backward")
MASTER = case_of("ddp", 4, algorithm="master", schedule="after_backward")
EARLY = case_of("ddp", 4, algorithm="master")


def leads_of(path: Path, step_ms: dict[Case, float], rounds: int) -> list[str]:
    """Return sentences on the lead, divided or not."""
    found = summary_of(
        path, {case_of("single", 1): 90.0, **step_ms}, noise=0.0, rounds=rounds
    ).conclusions.findings
    return [finding.line for finding in found if "a master after backward takes" in finding.line]


def leads(path: Path, step_ms: dict[Case, float]) -> list[str]:
    return [text for text in leads_of(path, step_ms, rounds=6) if "of the lead" in text]


def test_the_lead_is_shared_out_in_both_orders(tmp_path: Path) -> None:
    # 400 = 100 * 2 * 2: half of its logarithm each; with overlap first 400 = 1.25 * 320, and 320 = 3.2 * 100.
    (text,) = leads(tmp_path, {DDP: 100, LATE: 200, MASTER: 400, EARLY: 320})
    assert "a master after backward takes 4.00 [4.00, 4.00] times DDP's step" in text
    assert "makes 2.00 [2.00, 2.00] of it" in text
    assert "overlap 2.00 [2.00, 2.00]" in text
    assert "50.0 % [50.0, 50.0] of the lead is the ring, 50.0 % [50.0, 50.0] overlap" in text
    assert (
        "83.9 % [83.9, 83.9] of the lead is the ring, 16.1 % [16.1, 16.1] overlap" in text
    )  # log 3.2 / log 4
    assert text.endswith("; 6 launches each).")


def test_the_strategy_master_is_the_master_and_the_fourth_case_may_be_missing(tmp_path: Path) -> None:
    (text,) = leads(tmp_path, {DDP: 100, LATE: 110, case_of("master", 4): 300})
    assert (
        "91.3 % [91.3, 91.3] of the lead is the ring, 8.7 % [8.7, 8.7] overlap (" in text
    )  # log 2.73 / log 3


def test_no_lead_is_not_shared_out(tmp_path: Path) -> None:
    assert leads(tmp_path, {DDP: 100, LATE: 100, MASTER: 101, EARLY: 100}) == []
    assert leads(tmp_path / "again", {DDP: 100, MASTER: 200, EARLY: 150}) == []


def test_a_part_that_is_no_gain_is_not_shared_out(tmp_path: Path) -> None:
    # The ring after backward is slower than the master: its part of the lead would be minus 8 %.
    (text,) = leads_of(tmp_path, {DDP: 100, LATE: 205, MASTER: 200}, rounds=6)
    assert "makes 0.976 [0.976, 0.976] of it" in text
    assert "of the lead" not in text
    (text,) = leads_of(tmp_path / "few", {DDP: 100, LATE: 150, MASTER: 200}, rounds=3)
    assert "of the lead" not in text
    assert text.endswith("; 3 launches each; too few rounds to share it out).")


def test_parts_are_taken_at_one_bucket_cap(tmp_path: Path) -> None:
    large = case_of("ddp", 4, bucket_cap_mb=25.0, algorithm="master", schedule="after_backward")
    assert leads_of(tmp_path, {DDP: 100, LATE: 150, large: 200}, rounds=6) == []


def test_shares_have_fiellers_interval_and_wide_ones_are_not_told(tmp_path: Path) -> None:
    steps = {case_of("single", 1): 90.0, DDP: 100, LATE: 200, MASTER: 400}
    found = summary_of(tmp_path / "some", steps, noise=0.05).conclusions.findings
    (text,) = [finding.line for finding in found if "of the lead is the ring" in finding.line]
    numbers = re.search(r": (\d+) % \[(\d+), (\d+)\] of the lead is the ring, (\d+) % \[(\d+), (\d+)\]", text)
    assert numbers is not None
    ring, low, high, overlap, least, most = map(int, numbers.groups())
    assert low < ring < high
    assert low <= 50 <= high
    assert abs(ring + overlap - 100) <= 1
    assert abs(low + most - 100) <= 1
    assert abs(high + least - 100) <= 1
    near = {case_of("single", 1): 90.0, DDP: 100, LATE: 118, MASTER: 140}
    found = summary_of(tmp_path / "wide", near, noise=0.05).conclusions.findings
    (text,) = [finding.line for finding in found if "a master after backward takes" in finding.line]
    assert "how much of the lead is the ring cannot be told" in text
