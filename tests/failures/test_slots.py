"""A plan's launches under torchrun and under users' own launchers: carried out, resumed, refused, interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ddpbench
from ddpbench.records import LaunchDir, RankOutcome, RankStart, RunDir, read_launch
from tests.failures.conftest import FAULTY, run_cli, worker_processes, workload
from tests.failures.launchers import agents, await_all, environment, plan, slots, start
from tests.failures.test_interruptions import by_session, finished
from tests.processes import listening

pytestmark = pytest.mark.multiprocess
WriteExperiment = Callable[..., Path]


def with_worlds(experiment: Path, worlds: list[int]) -> Path:
    text = experiment.read_text(encoding="utf-8")
    text = text.replace("world_size = 2\n", "").replace("[axes]", f"[axes]\nworld_size = {worlds}")
    experiment.write_text(text, encoding="utf-8")
    return experiment


@pytest.mark.thorough
def test_two_static_agents_carry_out_a_plan_and_resume_it(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    experiment = with_worlds(write_experiment([workload("Sound")], rounds=1), [2, 4])
    run = plan(experiment, tmp_path / "run", ranks=2)
    first = await_all(agents([run, run], ranks=2))
    assert [one.code for one in first] == [0, 0], first
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    shapes = {(row.strategy, row.world_size, row.nodes, row.ranks_per_node) for row in frame.itertuples()}
    # The fewest nodes that hold a case; `single` at one rank is the base case.
    assert shapes == {("ddp", 2, 1, 2), ("ddp", 4, 2, 2), ("single", 1, 1, 1)}
    assert set(frame["launcher"]) == {"torchrun"}
    (case_id,) = frame[frame["world_size"] == 4]["case_id"]
    ranks = read_launch(RunDir(run).launch(case_id, "measure", 0)).ranks
    starts = [rank.last(RankStart) for rank in ranks]
    assert [start.rank for start in starts if start] == [0, 1, 2, 3]
    assert len({start.pid for start in starts if start}) == 4
    machine = json.loads((run / "machine.json").read_text(encoding="utf-8"))
    assert machine["identity"]["slots"] == [2, 2]
    assert len(machine["context"]["nodes"]) == 2
    before = finished(run)
    assert len(before) == 2 * 3
    page = run_cli("report", run)
    assert page.returncode == 0, page
    undone = next(path for path in run.glob("cases/ddp-w4-*/launch-00/outcome.json"))
    undone.unlink()
    again = await_all(agents([run, run], ranks=2))
    assert [one.code for one in again] == [0, 0], again
    after = finished(run)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {str(undone.parent.relative_to(run))}
    assert "launches done already: 5" in again[0].stderr
    assert [len(numbers) for numbers in by_session(run)] == [5, 1]  # in the order of sessions.json


def test_nodes_without_a_common_directory_send_their_records_to_the_leader(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    experiment = write_experiment([workload("Sound")], rounds=1)
    planned = plan(experiment, tmp_path / "a" / "run", "base.checkpoint=true")
    copy = tmp_path / "b" / "run"
    shutil.copytree(planned, copy)
    hosts = [{"DDPBENCH_HOST": name, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} for name in ("alpha", "beta")]
    ended = await_all(agents([planned, copy], c10d=True, env=hosts))
    assert [one.code for one in ended] == [0, 0], ended
    assert "the run directory is not shared with" in "".join(one.stderr for one in ended)
    # c10d chooses the one that leads; only its directory is complete.
    (leads,) = [run for run in (planned, copy) if finished(run)]
    frame = ddpbench.load(leads)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    (directory,) = leads.glob("cases/ddp-w2-*/launch-00")
    assert len(list(directory.glob("rank-*.jsonl"))) == 2
    assert (frame["snapshot_dcp_s"] > 0).all()
    assert not list(tmp_path.glob("?/run/cases/*/*/checkpoints"))  # on neither node
    case_id = directory.parent.name
    starts = [rank.last(RankStart) for rank in read_launch(RunDir(leads).launch(case_id, "measure", 0)).ranks]
    assert {(start.host, start.gloo_interface) for start in starts if start} == {
        ("alpha", "lo"),
        ("beta", "lo"),
    }
    page = run_cli("report", leads)
    assert page.returncode == 0, page
    assert "share no clock" in (leads / "report.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_where_others_can_read_a_nodes_key_all_ranks_skip_the_proof_alike(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    """They could write what ranks unpickle; a rank on the other node must not wait for that rank's batches."""
    experiment = write_experiment([workload("Sound")], rounds=1)
    planned = plan(experiment, tmp_path / "a" / "run")
    copy = tmp_path / "b" / "run"
    shutil.copytree(planned, copy)
    (copy / "job.key").chmod(0o644)
    hosts = [{"DDPBENCH_HOST": name, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} for name in ("alpha", "beta")]
    ended = await_all(agents([planned, copy], c10d=True, env=hosts))
    (leads,) = [run for run in (planned, copy) if finished(run)]
    frame = ddpbench.load(leads)
    found = dict(zip(frame["strategy"], frame["status"], strict=True))
    assert found == {"ddp": "skipped", "single": "ok"}, ended
    (directory,) = leads.glob("cases/ddp-w2-*/proof")
    ends = [rank.last(RankOutcome) for rank in read_launch(LaunchDir(directory)).ranks]
    assert len({end.error for end in ends if end}) == 1
    (error,) = frame[frame["strategy"] == "ddp"]["error"]
    assert "with DDPBENCH_KEY or a job.key that only you can read on every node" in error


@pytest.mark.thorough
def test_a_node_with_too_few_slots_for_a_case_leads_it_without_a_rank(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    run = plan(write_experiment([workload("Sound")], rounds=1), tmp_path / "run", nodes=1, ranks=2)
    ended = await_all(slots([run, run], ranks=[1, 2]))
    assert [one.code for one in ended] == [0, 0, 0], ended
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()


@pytest.mark.thorough
def test_ranks_that_die_or_stop_are_named_and_the_next_launch_goes_on(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    names = ["KilledOnRank1", "StopsOnRank1", "RaisesOnRank1", "Sound"]
    experiment = write_experiment([workload(name) for name in names], rounds=1, hang_timeout=3.0)
    run = plan(experiment, tmp_path / "run")
    ended = await_all(slots([run, run]))
    assert [one.code for one in ended] == [1, 1], ended
    frame = ddpbench.load(run).set_index("workload")
    failed = {name: frame.loc[f"{FAULTY}:{name}"].sort_values("world_size").iloc[-1] for name in names}
    assert failed["KilledOnRank1"]["status"] == "failed"
    assert "rank 1 was killed by SIGKILL" in failed["KilledOnRank1"]["error"]
    assert failed["StopsOnRank1"]["status"] == "hung"
    assert "rank 1 is stopped" in failed["StopsOnRank1"]["error"]
    assert failed["RaisesOnRank1"]["status"] == "failed"
    assert "rank 1" in failed["RaisesOnRank1"]["error"]
    assert "the forward pass is broken" in failed["RaisesOnRank1"]["error"]
    assert failed["Sound"]["status"] == "ok"
    assert {row["status"] for _, row in frame.iterrows() if row["strategy"] == "single"} == {"ok"}


@pytest.mark.thorough
def test_what_failed_is_done_again_only_where_that_is_asked_for(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    mark = tmp_path / "fixed"
    env = [{"DDPBENCH_TEST_MARK": str(mark)}] * 2
    run = plan(write_experiment([workload("RaisesUntilMarked")], rounds=1), tmp_path / "run")
    first = await_all(slots([run, run], env=env))
    assert [one.code for one in first] == [1, 1], first
    mark.touch()
    before = finished(run)
    assert [one.code for one in await_all(slots([run, run], env=env))] == [1, 1]
    assert finished(run) == before
    again = await_all(slots([run, run], env=env, worker=["--retry-failed"]))
    assert [one.code for one in again] == [0, 0], again
    after = finished(run)
    assert set(after) == set(before)
    (failed,) = [name for name in before if after[name] != before[name]]
    assert "ddp-w2-" in failed
    assert (run / f"{failed}.aside-0").is_dir()
    assert set(ddpbench.load(run)["status"]) == {"ok"}


@pytest.mark.thorough
def test_an_own_workload_that_does_not_work_is_refused_before_any_launch(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    run = plan(write_experiment([workload("Sound"), workload("NoParameters")], rounds=1), tmp_path / "run")
    ended = await_all(slots([run, run]))
    assert [one.code for one in ended] == [2, 2], ended
    for one in ended:
        assert f"{FAULTY}:NoParameters: " in one.stderr
        assert "has no parameters to train" in one.stderr
        assert "Traceback" not in one.stderr
    assert not list(run.glob("cases/*"))


OTHER_TORCH = '''
import importlib.machinery, importlib.util, sys

class Other:
    """Gives torch another version, in every process of a node."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch.version":
            return None
        return importlib.util.spec_from_file_location(name, VERSION)

VERSION = __file__.replace("sitecustomize.py", "version.py")
sys.meta_path.insert(0, Other)
'''


@pytest.mark.thorough
def test_nodes_with_another_torch_or_another_copy_are_refused_by_name(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    import torch

    run = plan(write_experiment([workload("Sound")], rounds=1), tmp_path / "a")
    shutil.copytree(run, tmp_path / "b")
    text = (tmp_path / "b/experiment.toml").read_text(encoding="utf-8")
    (tmp_path / "b/experiment.toml").write_text(f"{text}\n# mine\n", encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(OTHER_TORCH, encoding="utf-8")
    version = Path(torch.__file__).with_name("version.py").read_text(encoding="utf-8")
    (other / "version.py").write_text(f"{version}\n__version__ = '9.9.9'\n", encoding="utf-8")
    hosts: list[dict[str, str]] = [{"DDPBENCH_HOST": "alpha"}, {"DDPBENCH_HOST": "beta"}]
    hosts[1]["PYTHONPATH"] = str(other)
    ended = await_all(slots([run, tmp_path / "b"], env=hosts))
    assert [one.code for one in ended] == [2, 2], ended
    for one in ended:
        assert "Traceback" not in one.stderr
        assert f"torch: {torch.__version__} on alpha" in one.stderr
        assert "9.9.9 on beta" in one.stderr
        assert "experiment.toml, digest: " in one.stderr
        assert str(tmp_path / "a") in one.stderr
        assert str(tmp_path / "b") in one.stderr
    assert not list(tmp_path.glob("?/cases/*"))


@pytest.mark.thorough
def test_a_missing_copy_and_too_few_slots_are_refused(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    experiment = with_worlds(write_experiment([workload("Sound")], rounds=1), [1, 4])
    run = plan(experiment, tmp_path / "run", ranks=2)
    missing = await_all(slots([run, tmp_path / "nothing"]))
    assert [one.code for one in missing] == [2, 2], missing
    assert f"{tmp_path / 'nothing'} does not exist: give a run directory" in missing[0].stderr
    few = await_all(slots([run, run]))
    assert [one.code for one in few] == [2, 2], few
    assert "2 nodes with 1 slot each joined" in few[0].stderr
    assert "needs 2 x 2 (nodes x ranks)" in few[0].stderr
    assert "Traceback" not in few[0].stderr
    assert not list(run.glob("cases/*"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK, MASTER_ADDR and MASTER_PORT are missing"),
        ({}, "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are missing"),
    ],
)
@pytest.mark.parametrize("launch", [[], ["single-w1-0", "0"]])
def test_half_an_environment_is_refused_in_a_sentence(
    tmp_path: Path, given: dict[str, str], message: str, launch: list[str]
) -> None:
    import sys

    (ended,) = await_all([start([sys.executable, "-m", "ddpbench.worker", tmp_path, *launch], given)])
    assert ended.code == 2
    assert message in ended.stderr
    assert "torchrun --nproc-per-node" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_torchrun_leaves_nothing_and_the_other_node_ends_too(
    write_experiment: WriteExperiment, tmp_path: Path, number: signal.Signals
) -> None:
    run = plan(write_experiment([workload("Sound")], rounds=9, measured="1 s"), tmp_path / "run")
    processes = agents([run, run])
    deadline = time.monotonic() + 90
    ports: set[tuple[str, str]] = set()
    while len(finished(run)) < 4:
        ports |= listening()
        assert all(process.poll() is None for process in processes), await_all(processes)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # torch has torchrun's store listen on every interface; no other host reaches what ranks and slots listen on.
    assert {address for whose, address in ports if whose == "ddpbench"} == {"127.0.0.1"}
    processes[1].send_signal(number)
    before = finished(run)
    ended = await_all(processes)
    assert ended[1].code != 0
    deadline = time.monotonic() + 30
    while worker_processes():
        assert time.monotonic() < deadline, worker_processes()
        time.sleep(0.1)
    assert before.items() <= finished(run).items()
    if number == signal.SIGINT:
        assert "was interrupted" in ended[0].stderr


@pytest.mark.thorough
def test_one_rank_of_one_launch_still_runs_under_torchrun(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    run = plan(write_experiment([workload("Sound")], rounds=1), tmp_path / "run")
    listed = json.loads((run / "plan.json").read_text(encoding="utf-8"))["cases"]
    (case_id,) = [case["case_id"] for case in listed if case["world_size"] == 2]
    ended = await_all(agents([run, run], worker=[case_id, "proof"]))
    assert [one.code for one in ended] == [0, 0], ended
    records = read_launch(RunDir(run).launch(case_id, "proof"))
    assert [rank.rank for rank in records.ranks] == [0, 1]
    unknown = subprocess.run(
        [sys.executable, "-m", "ddpbench.worker", str(run), "ddp-w2-nothing", "0"],
        env=environment({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert unknown.returncode == 2
    assert f"has no case 'ddp-w2-nothing'; known: {case_id}" in unknown.stderr


def test_a_sweep_of_a_run_that_was_planned_for_a_launcher_says_what_to_do(
    write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    experiment = write_experiment([workload("Sound")])
    run = plan(experiment, tmp_path / "run")
    resumed = run_cli("sweep", run)
    assert resumed.returncode == 2
    assert f"o print the commands, run ddpbench plan {run}" in resumed.stderr
