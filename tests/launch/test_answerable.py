"""Cases whose backend or launcher is missing are skipped, and a sweep first reports that it cannot give an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.cli import run
from ddpbench.cli.lines import WIDEST
from ddpbench.errors import MachineError
from ddpbench.launch import devices
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Devices, parse_experiment

NO_MPI = 'backend = "mpi": mpi4py is not installed'
NO_MPIEXEC = 'launcher = "mpiexec": mpiexec is not on PATH'
EIGHT_NODES = """
question = "Does a master congest eight nodes?"
[base]
workload = "mlp:small"
local_batch = 4
[axes]
strategy = ["ddp", "master"]
"fabric.nodes" = [8]
[fabric]
bandwidth = "1 Gbit/s"
"""


@pytest.fixture(autouse=True)
def without_mpi_on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise MachineError(text)

    monkeypatch.setenv("COLUMNS", str(WIDEST))
    monkeypatch.setattr(devices, "mpi_version", lambda: refuse(NO_MPI))
    monkeypatch.setattr(
        devices, "check_launcher", lambda name: refuse(NO_MPIEXEC) if name == "mpiexec" else None
    )
    monkeypatch.setattr(
        "ddpbench.launch.sweep.preparation.usable_devices", lambda _: Devices(kind="cpu", gpus=0, cores=2)
    )


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["sweep", *arguments, "--dry-run"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("experiment", "skipped", "kept", "why", "note"),
    [
        (
            "backends",
            2,
            "ddp · 2 ranks · default buckets · gloo",
            NO_MPI,
            (
                'this machine cannot answer the experiment\'s question: only "gloo" of '
                'backend = "gloo" and "mpi" can run here'
            ),
        ),
        ("launchers", 3, "ddp · 2 ranks · default buckets · launched by torchrun", NO_MPIEXEC, ""),
    ],
)
def test_cases_that_need_what_is_not_here_are_skipped_and_the_others_run(
    capsys: pytest.CaptureFixture[str], experiment: str, skipped: int, kept: str, why: str, note: str
) -> None:
    out = printed(capsys, experiment)
    plan, _, rest = out.partition("skipped: ")
    assert rest.startswith(f"{skipped} cases ")
    assert rest.count(why) == skipped
    assert kept in plan
    assert note in out
    assert ("cannot answer" in out) is bool(note)


@pytest.mark.parametrize(
    ("changes", "why"),
    [('backend = "mpi"', NO_MPI), ('launcher = "mpiexec"', NO_MPIEXEC)],
    ids=["backend", "launcher"],
)
def test_what_alone_was_asked_for_and_is_not_here_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, why: str
) -> None:
    path = tmp_path / "one.toml"
    path.write_text(f'[base]\nworkload = "mlp:small"\nworld_size = 2\n{changes}\n', encoding="utf-8")
    assert run(["sweep", str(path), "--dry-run"]) == 2
    assert why in capsys.readouterr().err


def test_of_several_devices_those_that_are_not_here_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "quick", "--set", 'axes.device=["cpu", "cuda"]')
    assert "needs 2 GPUs, one per rank; this machine has no GPU torch can use" in out
    assert 'only "cpu" of device = "cpu" and "cuda" can run here' in out


def test_a_dry_run_says_that_eight_nodes_of_real_computation_need_more_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "eight.toml"
    path.write_text(EIGHT_NODES, encoding="utf-8")
    assert (
        "this machine cannot answer the experiment's question: every case that aggregates has more "
        "threads than the 2 cores here (the smallest has 8), and oversubscribed cases are not ranked. "
        "Use fewer ranks, a machine with more cores, or a replay"
    ) in printed(capsys, str(path))
    replayed = EIGHT_NODES.replace('"mlp:small"', '"replay:gpt-nano-cpu"').replace("local_batch = 4\n", "")
    path.write_text(replayed, encoding="utf-8")
    assert "cannot answer" not in printed(capsys, str(path))


def test_one_rank_answers_nothing_and_a_question_on_recovery_needs_no_second_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.toml"
    path.write_text('[base]\nworkload = "mlp:small"\nstrategy = "single"\nworld_size = 1\n', encoding="utf-8")
    out = printed(capsys, str(path))
    assert "the experiment has no case with several ranks, so its cases are measured but not ranked" in out
    assert "this machine" not in out
    assert "cannot answer" not in printed(capsys, "recovery")


def test_no_backend_is_asked_for_where_no_case_uses_it() -> None:
    experiment = parse_experiment('[base]\nbackend = "gloo"\n', TableCatalog(), name="a", source="a")
    devices.check_devices(experiment, Devices(kind="cpu", gpus=0, cores=2))
