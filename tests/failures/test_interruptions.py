"""A sweep that is killed, interrupted, or runs out of disk: nothing is lost, nothing is left, and it resumes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpbench.spec import PlannedCase
from tests.failures.conftest import ROOT, command, run_cli, worker_processes, workload
from tests.processes import listening
from tests.synthetic import case_of, write_run

pytestmark = pytest.mark.multiprocess


def finished(run: Path) -> dict[str, float]:
    """Return every finished launch, and when its outcome was written."""
    return {
        str(path.parent.relative_to(run)): path.stat().st_mtime
        for path in run.glob("cases/*/*/outcome.json")
        if ".aside-" not in path.parent.name
    }


def by_session(run: Path) -> list[list[tuple[str, int]]]:
    """Return (purpose, round) of each session's launches, with sessions in the order of sessions.json."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name in finished(run):
        outcome = json.loads((run / name / "outcome.json").read_text(encoding="utf-8"))
        found.setdefault(outcome["session"], []).append((outcome["purpose"], outcome["round"]))
    listed = json.loads((run / "sessions.json").read_text(encoding="utf-8"))["sessions"]
    assert len({session["session"] for session in listed}) == len(listed)
    assert all(session["started_utc"] <= session["ended_utc"] for session in listed)
    return [sorted(found[session["session"]]) for session in listed]


def start(experiment: Path, run: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("sweep", experiment, "--out", run),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ.copy(),
    )


def await_launches(
    process: subprocess.Popen[str], run: Path, count: int, *, look: Callable[[], object] = lambda: None
) -> None:
    deadline = time.monotonic() + 60
    while len(finished(run)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        look()
        time.sleep(0.02)


@pytest.mark.parametrize("launches", [pytest.param(0, marks=pytest.mark.thorough), 3])
def test_a_killed_controller_leaves_nothing_and_resumes(
    write_experiment: Callable[..., Path], tmp_path: Path, launches: int
) -> None:
    experiment, run = write_experiment([workload("Sound")], rounds=2), tmp_path / "run"
    process = start(experiment, run)
    if launches:
        await_launches(process, run, launches)
    else:
        while not (run / "machine.json").exists():
            assert process.poll() is None
            time.sleep(0.01)
    time.sleep(0.15)  # into the next launch
    while not worker_processes():  # between two rounds' servers there may be none for a moment
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while worker_processes():
        assert time.monotonic() < deadline, worker_processes()
        time.sleep(0.02)
    before = finished(run)
    assert len(before) < 6
    result = run_cli("sweep", experiment, "--out", run)
    assert result.returncode == 0, result
    assert re.search(r"\nmaking the report: about \d+ s\n", result.stderr), result.stderr
    after = finished(run)
    assert before.items() <= after.items()  # none lost, none done again
    assert len(after) == 2 + 2 * 2  # the proofs and rounds of the case and of its base case
    assert (run / "report.html").is_file()
    again = run_cli("sweep", run)
    assert again.returncode == 0, again
    assert finished(run) == after


@pytest.mark.thorough
def test_a_sweep_killed_before_its_plan_stood_starts_afresh(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    experiment, run = write_experiment([workload("Sound")], rounds=1), tmp_path / "run"
    process = start(experiment, run)
    while not (run / "server.log").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (run / "plan.json").exists()
    assert run_cli("sweep", experiment, "--out", run).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_says_how_to_resume(
    write_experiment: Callable[..., Path], tmp_path: Path, number: signal.Signals
) -> None:
    experiment, run = write_experiment([workload("Sound")], rounds=4), tmp_path / "run"
    process = start(experiment, run)
    await_launches(process, run, 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"resume with: ddpbench sweep {run}" in errors
    assert "Traceback" not in errors
    sessions = json.loads((run / "sessions.json").read_text(encoding="utf-8"))["sessions"]
    assert [session["stop_reason"] for session in sessions] == ["interrupted"]
    assert "rounds so far; resume with" in (run / "cases.csv").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_round_that_two_sessions_shared_is_made_up_for(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    """Interrupted in the middle of its second round. Two rounds are wanted together: the third is run in any case.

    No other host reaches what its ranks listen on meanwhile.
    """
    experiment = write_experiment([workload("Sound")], rounds=2, measured="1 s", target_half_width=0.99)
    text = experiment.read_text(encoding="utf-8")
    experiment.write_text(text.replace("rounds_max = 2", "rounds_max = 3"), encoding="utf-8")
    run = tmp_path / "run"
    process = start(experiment, run)
    ports: set[tuple[str, str]] = set()
    await_launches(process, run, 2 + 2 + 1, look=lambda: ports.update(listening()))
    assert ports == {("ddpbench", "127.0.0.1")}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert len(finished(run)) == 5
    order = json.loads((run / "plan.json").read_text(encoding="utf-8"))["launches"]
    resumed = run_cli("sweep", experiment, "--out", run)
    assert resumed.returncode == 0, resumed
    first, second = by_session(run)
    assert first == [("measure", 0), ("measure", 0), ("measure", 1), ("proof", 0), ("proof", 0)]
    assert second[:3] == [
        ("measure", 1),
        ("measure", 2),
        ("measure", 2),
    ]  # two rounds may be too noisy, and get more
    assert "1 launch was not run together" in (run / "report.html").read_text(encoding="utf-8")
    assert json.loads((run / "plan.json").read_text(encoding="utf-8"))["launches"] == order


@pytest.mark.thorough
def test_a_run_of_another_machine_or_experiment_is_refused(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    experiment, run = write_experiment([workload("Sound")], rounds=1), tmp_path / "run"
    assert run_cli("sweep", experiment, "--out", run).returncode == 0
    changed = run_cli("sweep", experiment, "--out", run, "--set", "base.local_batch=5")
    assert changed.returncode == 2
    assert "experiment_digest" in changed.stderr
    plan = (run / "plan.json").read_text(encoding="utf-8")
    fewer = json.loads(plan)
    (left_out,) = (case for case in fewer["cases"] if case["added_as_baseline"])
    fewer["cases"].remove(left_out)
    fewer["launches"] = [one for one in fewer["launches"] if one["case_id"] != left_out["case_id"]]
    (run / "plan.json").write_text(json.dumps(fewer), encoding="utf-8")
    replanned = run_cli("sweep", run)
    assert replanned.returncode == 2
    assert (
        "was planned with other cases: give another --out (only planned before: none; only planned now: "
        f"{left_out['case_id']})" in replanned.stderr
    )
    (run / "plan.json").write_text(plan, encoding="utf-8")
    machine = json.loads((run / "machine.json").read_text(encoding="utf-8"))
    machine["identity"]["cpu"] = "Some Other Processor"
    (run / "machine.json").write_text(json.dumps(machine), encoding="utf-8")
    untouched = {path: path.read_bytes() for path in run.rglob("*.json*")}
    moved = run_cli("sweep", run, "--retry-failed")
    assert {path: path.read_bytes() for path in run.rglob("*.json*")} == untouched
    assert moved.returncode == 2
    assert "cpu: 'Some Other Processor' before" in moved.stderr


def test_failed_launches_are_done_again_only_when_asked(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    experiment, run = write_experiment([workload("RaisesOnRank1")], rounds=1), tmp_path / "run"
    first = run_cli("sweep", experiment, "--out", run)
    assert first.returncode == 1, first
    assert "the forward pass is broken" in first.stderr
    before = finished(run)
    assert run_cli("sweep", run).returncode == 1
    assert finished(run) == before
    assert run_cli("sweep", run, "--retry-failed").returncode == 1
    changed = {name for name, at in finished(run).items() if before.get(name) != at}
    assert len(changed) == 1
    assert "ddp" in changed.pop()


def test_torn_and_corrupted_records(tmp_path: Path) -> None:
    planned = [PlannedCase(case=case_of("ddp", 2)), PlannedCase(case=case_of("single", 1))]
    run = write_run(tmp_path / "run", planned, rounds=3).path
    torn, corrupted = sorted(run.glob("cases/ddp-*/launch-0[01]/rank-00001*.jsonl"))
    torn.write_bytes(torn.read_bytes()[:-20])
    lines = corrupted.read_bytes().split(b"\n")
    corrupted.write_bytes(b"\n".join([lines[0], b'{"kind": "block", "phase": "ti\x00', *lines[2:]]))
    result = run_cli("report", run)
    assert result.returncode == 1, result
    assert "line 2: not a record" in result.stderr
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "rank-00001.attempt-0.jsonl, line 2: not a record" in page
    assert "torn" in page


def fill_disk(ballast: Path) -> None:
    """Write until nothing more fits."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.thorough
@pytest.mark.root
def test_a_full_disk_loses_nothing(write_experiment: Callable[..., Path], small_disk: Path) -> None:
    experiment, run = write_experiment([workload("Sound")], rounds=3), small_disk / "run"
    process = start(experiment, run)
    await_launches(process, run, 3)
    ballast = small_disk / "ballast"
    fill_disk(ballast)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert "resume" in errors
    before = finished(run)
    ballast.unlink()
    result = run_cli("sweep", run)
    assert result.returncode == 0, result.stderr[-2000:] + errors
    after = finished(run)
    assert before.items() <= after.items()
    assert len(after) == 8


@pytest.mark.root
def test_a_read_only_output_is_refused(write_experiment: Callable[..., Path], small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    result = run_cli("sweep", write_experiment([workload("Sound")]), "--out", small_disk / "run")
    assert result.returncode == 2
    assert "--out" in result.stderr
    assert "Traceback" not in result.stderr
