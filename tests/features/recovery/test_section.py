"""The section on failures, from runs made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddpbench.analysis import summarize
from ddpbench.features.recovery.report import section
from ddpbench.report.rows import rows_of
from tests.recoveries import KILLED, UNINTERRUPTED, FailingLaunch, ended, write
from tests.synthetic import Outcome, write_launch

STOPPED = replace(KILLED, recovery="SIGSTOP")


def test_a_case_of_which_no_launch_recovered_is_on_the_page(tmp_path: Path) -> None:
    cases = (UNINTERRUPTED, KILLED, STOPPED)
    whole, killed, stopped = (replace(case, local_batch=8, global_batch=16) for case in cases)
    run = write(tmp_path / "run", {whole: [FailingLaunch()], killed: [FailingLaunch()], stopped: []})
    outcome = Outcome(status="failed", error="restarts are used up")
    write_launch(run, stopped, 0, ended(FailingLaunch(), stopped), outcome=outcome)
    summary = summarize(run)
    found = section(summary, rows_of(summary))
    assert found is not None
    assert [[cell.text for cell in row[1:4]] for row in found.tables[0].rows][1] == ["1", "0", ""]
    assert any(note.startswith("1 of 1 failures (") for note in found.notes)
