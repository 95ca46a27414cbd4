"""A user's own workload that does not work: a message before anything is launched, or as soon as possible after."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.errors import WorkloadError
from ddpbench.guard import descendants
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import (
    LaunchOutcome,
    LaunchRequest,
    Proof,
    RankOutcome,
    RankStart,
    RunDir,
    Warmup,
    read_launch,
)
from ddpbench.runtime.probes import inspected, stated_batch
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.trial import identifying, inspect_own
from ddpbench.spec import Case
from tests.failures.conftest import ROOT, experiment_text, run_cli
from tests.failures.conftest import workload as faulty
from tests.failures.test_ranks_that_fail import Outcomes
from tests.processes import alive, started

pytestmark = pytest.mark.multiprocess

OWN = ROOT / "tests/failures/own.py"


def own(name: str) -> str:
    return f"{OWN}:{name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ServerProcess({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}, log) as running:
        yield running


def case_of(workload: str, options: str = "{}") -> Case:
    return Case(
        workload=workload, strategy="single", local_batch=4, global_batch=4, workload_options_json=options
    )


def line_of(text: str) -> int:
    lines = OWN.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (own("TooShort"), r"its first batch failed: .*gave this rank 3 samples; one step needs 4"),
        (own("WrongBatch"), r"returned a batch of 32 samples instead of 4"),
        (own("Vector"), r"returned a tensor of shape \[4\]; it must return a scalar"),
        (own("Number"), r"loss\(model, batch\) returned a float; it must return a scalar"),
        (own("Infinite"), r"its loss is inf in the first step"),
        (own("OtherModel"), r"no parameter got a gradient from the loss"),
        (own("NoModule"), r"model\(\) returned a function; it must return a torch\.nn\.Module"),
        (own("Nothing"), r"has no parameters to train"),
        (own("UsedUp"), r"the data are exhausted after pass 1"),
        (own("Dies"), r"killed it by SIGSEGV"),
        (own("Leaves"), r"ended its process \(exit code 0\)"),
        (own("Soun"), r"has no class Soun; did you mean 'Sound'\?"),
        (own("Net"), r"class Net in .* lacks model and loss \(or step\) and dataset \(or loader\)"),
        (faulty("NoParameters"), r"has no parameters to train"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(
    server: ServerProcess, tmp_path: Path, name: str, said: str
) -> None:
    found = inspected(server, case_of(name), tmp_path, 60)
    assert list(found) == ["problem"]
    assert found["problem"].startswith(f"{name}: ")
    assert re.search(said, found["problem"]), found
    assert "\n" not in found["problem"]


def test_a_mistake_is_named_with_its_file_and_line(server: ServerProcess, tmp_path: Path) -> None:
    problem = inspected(server, case_of(own("Wrong")), tmp_path, 60)["problem"]
    line = line_of("this line is named in the sentence")
    assert problem.endswith(f"its loss failed: KeyError: 'feature' (tests/failures/own.py:{line})")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\n\nimport no_such_module\n", r"No module named 'no_such_module' \(.*own_bad\.py:3\)"),
        ("x = 1\ndef broken(:\n", r"SyntaxError: .* \(.*own_bad\.py:2\)"),
        (
            "import sys\nsys.exit(2)\n",
            r"ends the process; move what the script runs when started under if __name__",
        ),
        ("import os\nos.kill(os.getpid(), 11)\n", r"killed it by SIGSEGV"),
    ],
)
def test_a_file_that_cannot_be_imported(server: ServerProcess, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own_bad.py"
    path.write_text(text, encoding="utf-8")
    problem = inspected(server, case_of(f"{path}:Mine"), tmp_path, 60)["problem"]
    assert re.search(said, problem), problem


def test_a_file_that_reads_the_command_line_is_told_that_it_is_empty(
    server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "own_bad.py"
    path.write_text(
        "import argparse\nasked = argparse.ArgumentParser()\nasked.add_argument('--data', required=True)\n"
        "asked.parse_args()\n",
        encoding="utf-8",
    )
    problem = inspected(server, case_of(f"{path}:Mine"), tmp_path, 60)["problem"]
    assert (
        "it ends the process (it reads the command line, which is empty here); move what the script"
        in problem
    )
    assert "your code ends the process" not in problem


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('{"widht": 3}', r"widht: unknown key; did you mean 'width'\? known: name, width"),
        ('{"width": "wide"}', r"width: 'wide' given; Input should be a valid integer"),
    ],
)
def test_its_options_are_held_against_its_constructor(
    server: ServerProcess, tmp_path: Path, options: str, said: str
) -> None:
    assert re.search(said, inspected(server, case_of(own("Tuned"), options), tmp_path, 60)["problem"])
    assert "problem" not in inspected(server, case_of(own("Tuned"), '{"width": 3}'), tmp_path, 60)


def litter(notes: Path) -> tuple[list[int], list[str]]:
    """Return the processes and files that `Litters` noted, as far as they still exist."""
    noted = json.loads(notes.read_text(encoding="utf-8"))
    return alive(noted["processes"], 0), [file for file in noted["files"] if Path(file).exists()]


def test_of_a_trial_nothing_is_left(server: ServerProcess, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    found = inspected(server, case_of(own("Litters"), json.dumps({"notes": str(notes)})), tmp_path, 60)
    assert "problem" not in found
    temporary = json.loads(notes.read_text(encoding="utf-8"))["files"].pop()
    assert litter(notes) == ([], [temporary])  # the server's, for its next launches
    assert list(Path(temporary).iterdir()) == []
    assert descendants(server.pid) == []


def test_a_process_that_the_constructor_forks_is_no_second_rank(
    server: ServerProcess, tmp_path: Path
) -> None:
    case = case_of(own("Forks"))
    assert "problem" not in inspected(server, case, tmp_path, 60)
    directory = RunDir(tmp_path).launch(case.case_id, "measure", 0)
    directory.path.mkdir(parents=True)
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    server.launch([env], directory, LaunchRequest(case=case, purpose="measure", measured_s=0.02))
    while not (ended := [event for event in server.events(1.0) if event["event"] == "exited"]):
        pass
    assert [event["code"] for event in ended] == [0]
    assert descendants(server.pid) == []
    (rank,) = read_launch(directory).ranks
    assert [len(rank.of(kind)) for kind in (RankStart, Warmup, RankOutcome)] == [1, 1, 1]
    assert "returned from the workload's code, so ddpbench ended it" in directory.log(0).read_text(
        encoding="utf-8"
    )


CONTROLLER = """
import sys
from pathlib import Path
from ddpbench.runtime.probes import inspected
from ddpbench.runtime.server import ServerProcess
from tests.failures.test_own_workloads import case_of, own

folder, notes = Path(sys.argv[1]), sys.argv[2]
with ServerProcess({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}, folder / "server.log") as server:
    (folder / "pids").write_text(f"{server._running._process.pid} {server.pid}")
    inspected(server, case_of(own("Litters"), notes), folder, 600)
"""


@pytest.mark.parametrize(
    "killed", ["controller", pytest.param("guard", marks=pytest.mark.thorough), "server"]
)
def test_whoever_is_killed_nothing_is_left(tmp_path: Path, nothing_left_behind: None, killed: str) -> None:
    """Not even processes that left their process group, session and parent, nor names in shared memory."""
    notes, run = tmp_path / "notes", tmp_path / "run"
    run.mkdir()
    options = json.dumps({"notes": str(notes), "waits": True})
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(run), options], stderr=subprocess.DEVNULL, cwd=ROOT
    ) as controller:
        while not notes.exists():
            assert controller.poll() is None
            time.sleep(0.05)
        guard, server = map(int, (run / "pids").read_text(encoding="utf-8").split())
        begun = started()
        assert (
            len(begun) >= 8
        )  # those three, the rank, what it forked, the runaway, and of its loader two at least
        assert litter(notes)[1]
        os.kill({"controller": controller.pid, "guard": guard, "server": server}[killed], signal.SIGKILL)
        controller.wait()
    assert not alive([process.pid for process in begun])
    assert litter(notes) == ([], [])
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_one_that_never_ends_is_ended(server: ServerProcess, tmp_path: Path) -> None:
    problem = inspected(server, case_of(own("Sleeps")), tmp_path, 1.0)["problem"]
    assert "did not end within 1 s" in problem
    assert problem.endswith(
        "; check whether its code loops or waits, for example for a download, a lock or other ranks"
    )
    assert server.alive
    assert "problem" not in inspected(server, case_of(own("Sound")), tmp_path, 60)


def test_what_works_is_described(server: ServerProcess, tmp_path: Path) -> None:
    found = inspected(server, case_of(own("Sound")), tmp_path, 60)
    parameters = (6 * 16 + 16) + 5 * 16 + (16 * 4 + 4)
    assert found.pop("loss") == pytest.approx(1.4, abs=0.6)  # about log 4
    assert found["made_s"] > 0
    assert found["step_s"] > 0
    assert found["local_batch"] == 4
    assert identifying(found) == {
        "parameters": parameters,
        "gradient_bytes": 4 * parameters,
        "types": ["float32"],
        "trained_types": ["float32"],
        "samples": 256,
        "batch": "{'features': float32 [4, 6], 'kind': int64 [4], 'label': int64 [4]}",
    }
    assert inspected(server, case_of(own("Endlessly")), tmp_path, 60)["samples"] is None


def test_a_sweep_is_refused_with_a_sentence_for_each_and_leaves_nothing(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_experiment([own("Sound"), own("Vector"), own("Dies")])
    result = run_cli("sweep", path, "--out", tmp_path / "run")
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    assert f"{own('Vector')}: " in result.stderr
    assert f"{own('Dies')}: " in result.stderr
    assert not (tmp_path / "run").exists()


def test_data_that_only_several_ranks_have_too_few_of_are_refused_by_the_trial(
    server: ServerProcess, tmp_path: Path
) -> None:
    """5 samples are enough for a step of 4 of one rank, and too few for one of 8 of two."""
    name = faulty("TooLittleData")
    one, two = (replace(case_of(name), world_size=n, global_batch=4 * n) for n in (1, 2))
    assert inspect_own(server, [one], tmp_path)[name]["samples"] == 5
    with pytest.raises(WorkloadError) as caught:
        inspect_own(server, [one, two], tmp_path)
    assert str(caught.value) == (
        f"{name}: at 2 ranks the dataset has 5 samples; one step of this case needs 8: use a smaller batch or more data"
    )


SOUND = ["Sound", "Endlessly", "OwnLoader", "Masked", "Pairs"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, dict[str, LaunchOutcome]]:
    """Return two ranks' outcomes of each: for faults that only show with several ranks."""
    folder = tmp_path_factory.mktemp("own")
    path = folder / "own.toml"
    names = [*SOUND, "EndlesslyTheSame", "Uneven", "UnevenUntold"]
    text = experiment_text([own(name) for name in names], rounds=1, measured="30 ms", hang_timeout="20 s")
    path.write_text(text.replace('strategy = "ddp"', 'strategy = "ddp"\nseed = 3'), encoding="utf-8")
    listener = Outcomes()
    sweep = Sweep(prepare(SweepRequest(experiment=path, out=folder / "run")), listener)
    sweep.run()
    return sweep.result.run, {name: seen[-1] for name, seen in listener.seen.items()}


@pytest.mark.parametrize("name", SOUND)
def test_two_ranks_of_a_sound_one_are_proved_and_measured(
    outcomes: tuple[RunDir, dict[str, LaunchOutcome]], name: str
) -> None:
    outcome = outcomes[1][name]
    assert (outcome.purpose, outcome.status) == ("measure", "ok"), outcome


@pytest.mark.parametrize(
    ("name", "purpose", "said"),
    [
        ("EndlesslyTheSame", "proof", "all 2 ranks received the same batch"),
        ("Uneven", "proof", "a pass over the data has 16 batches on rank 0 and 12 on rank 1"),
        ("UnevenUntold", "measure", "on rank 0 and 12 on rank 1"),
    ],
)
def test_what_only_several_ranks_or_passes_show_is_told_and_hangs_nothing(
    outcomes: tuple[RunDir, dict[str, LaunchOutcome]], name: str, purpose: str, said: str
) -> None:
    outcome = outcomes[1][name]
    assert (outcome.purpose, outcome.status) == (purpose, "failed"), outcome
    assert said in outcome.error


def test_a_loss_that_is_no_mean_over_samples_is_noted_and_no_fault_of_the_strategy(
    outcomes: tuple[RunDir, dict[str, LaunchOutcome]],
) -> None:
    run = outcomes[0]
    cases = [
        Case.from_json(entry)
        for entry in run.read_json(run.plan)["cases"]
        if entry["workload"].endswith(":Masked") and entry["strategy"] == "ddp"
    ]
    records = read_launch(run.launch(cases[0].case_id, "proof"))
    proofs = {(proof.compared, proof.dtype): proof for proof in records.ranks[0].of(Proof)}
    assert "float32 only" in proofs["gradients, same shards", "float64"].note
    assert proofs["gradients, same shards", "float32"].error < 1e-5
    assert "not a mean over samples" in proofs["gradients, whole batch", "float32"].note


def test_a_rank_says_which_batch_a_class_states(server: ServerProcess, tmp_path: Path) -> None:
    """For a class that inherits it, which its file's text alone does not show; one with a wrong value states none."""
    (tmp_path / "states.py").write_text(
        "class Base:\n    batch = 32\n    model = dataset = loss = dict\n"
        "class Mine(Base):\n    pass\n"
        "class Wrong(Base):\n    batch = 'many'\n",
        encoding="utf-8",
    )
    assert stated_batch(server, f"{tmp_path}/states.py:Mine", tmp_path) == 32
    assert stated_batch(server, f"{tmp_path}/states.py:Wrong", tmp_path) is None
    said = inspected(server, case_of(f"{tmp_path}/states.py:Wrong"), tmp_path, 60.0)["problem"]
    assert "class Wrong in" in said
    assert "batch = 'many' is not a number of samples" in said


def test_a_module_that_does_not_end_is_told_at_once(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported before the second time limit, in which a step would be tried."""
    (tmp_path / "loops.py").write_text("while True:\n    pass\n", encoding="utf-8")
    (tmp_path / "ends.py").write_text(
        "class Mine:\n    batch = 32\n    model = dataset = loss = dict\n", encoding="utf-8"
    )
    with monkeypatch.context() as patch:
        patch.setattr("ddpbench.runtime.probes.START_TIMEOUT_S", 8.0)
        with pytest.raises(
            WorkloadError, match=r"loops\.py:Mine: importing it did not end within 8 s: does it"
        ):
            stated_batch(server, f"{tmp_path}/loops.py:Mine", tmp_path)
    assert stated_batch(server, f"{tmp_path}/ends.py:Mine", tmp_path) == 32
