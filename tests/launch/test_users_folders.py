"""The folder that `--out` names: the user's files in it stay if the command is refused or fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import ddpbench.launch.sweep.sweep as module
from ddpbench.cli import run as command
from ddpbench.errors import FabricError, IdentityError, LaunchError, MachineError, OutputError, WorkloadError
from ddpbench.launch import external as elsewhere
from ddpbench.launch.interleave import compare as told
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import Prepared, SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import RunDir, rundir
from ddpbench.records.rundir import MARK

TEXT = '[base]\nworkload = "mlp:small"\nstrategy = "single"\nworld_size = 1\ndevice = "cpu"\n'
LEFT = [
    "cases/patients.csv",
    "experiment.toml",
    "machine.json",
    "probe.json",
    "fabric.log",
    ".notes.new",
    ".tmp-work/thesis.tex",
    ".lock",
    ".ddpbench",
]
"""A user's files with names that a sweep also uses."""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def users_own(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("the user's own\n", encoding="utf-8")


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8") if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize(
    "words", ["sweep {e}", "sweep {e} --dry-run", "plan {e} --nodes a", "submit {e} --nodes 1 --dry-run"]
)
def test_a_folder_of_the_users_is_refused_and_stays(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    folder = tmp_path / "proj"
    users_own(folder, name)
    before = tree(folder)
    assert command([*words.format(e=experiment).split(), "--out", str(folder)]) == 2
    assert tree(folder) == before
    error = capsys.readouterr().err
    assert error.startswith(f"ddpbench: {folder} ")
    assert "choose another --out" in error


def test_a_mark_is_one_that_was_written_here(experiment: Path, tmp_path: Path) -> None:
    folder = tmp_path / "proj"
    users_own(folder, "cases/patients.csv")
    (folder / MARK).touch()
    with pytest.raises(OutputError, match="holds other files"):
        prepare(SweepRequest(experiment=experiment, out=folder))


def test_a_run_without_its_plan_is_said_to_lack_it_where_no_other_folder_was_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("experiment.toml", "cases/single/launch.json", "report.html"):
        users_own(run, name)
    with pytest.raises(IdentityError, match=r"run is not a run directory: plan\.json is missing$"):
        prepare(SweepRequest(experiment=run))


def test_folders_that_nobody_may_enter_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens under umask 777, which does not stop root."""

    def barred(_: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "own").mkdir()
    monkeypatch.setattr(rundir, "_entries", barred)
    for path in (tmp_path / "new" / "run", tmp_path / "own"):
        with pytest.raises(PermissionError):
            rundir.make_dir(path, rundir.is_before_plan)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_call_that_was_killed_while_it_wrote_the_mark_is_in_nobodys_way(
    experiment: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    users_own(folder, ".ddpbench-0123456789abcdef.new")
    assert prepare(SweepRequest(experiment=experiment, out=folder)).plan.runnable
    RunDir(folder).create()
    (folder / "probe.json").touch()
    assert prepare(SweepRequest(experiment=experiment, out=folder)).plan.runnable


def test_an_experiment_is_not_swept_into_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "experiment.toml").write_text(f"# why\n{TEXT}", encoding="utf-8")
    monkeypatch.chdir(folder)
    for source, out in (("experiment.toml", "."), (str(folder / "experiment.toml"), str(folder))):
        assert command(["sweep", source, "--out", out]) == 2
    assert command(["sweep", str(folder)]) == 2
    assert tree(folder) == {"experiment.toml": f"# why\n{TEXT}"}


class _Servers:
    """Replaces the fork servers: it writes its log, as they do."""

    def __init__(self, log: Path) -> None:
        log.write_text("torch was imported", encoding="utf-8")
        (log.parent / ".tmp-1").mkdir(exist_ok=True)

    def __enter__(self) -> _Servers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def of(self, _: object) -> Any:
        def probe(folder: Path) -> dict[str, Any]:
            (folder / "probe.json").write_text("{}", encoding="utf-8")
            return {"gpus": []}

        return SimpleNamespace(probe=probe)


def failing(error: Exception, *, identified: bool = False) -> Callable[..., NoReturn]:
    def fail(prepared: Prepared, *_: object) -> NoReturn:
        run = prepared.run
        (run.path / "probe.json").write_text("{}", encoding="utf-8")
        if identified:
            for path in (run.machine, run.experiment, run.plan):
                path.write_text("of the sweep", encoding="utf-8")
        raise error

    return fail


FAILURES = {
    "class": failing(WorkloadError("your class has no dataset()")),
    "machine": failing(MachineError("another sweep")),
    "disk": failing(OSError(errno.ENOSPC, "No space left on device")),
    "links": failing(FabricError("no links"), identified=True),
}


@pytest.fixture
def fails(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "identify", FAILURES[request.param])
    monkeypatch.setattr(module, "Servers", _Servers)
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")


all_failures = pytest.mark.parametrize("fails", FAILURES, indirect=True)


def begin(experiment: Path, out: Path) -> None:
    with pytest.raises((WorkloadError, MachineError, OutputError)):
        Sweep(prepare(SweepRequest(experiment=experiment, out=out)), Listener()).run()


@all_failures
def test_a_sweep_that_fails_leaves_an_empty_folder_of_the_users_and_nothing_of_its_own(
    experiment: Path, tmp_path: Path, fails: None, request: pytest.FixtureRequest
) -> None:
    folder, new = tmp_path / "empty", tmp_path / "above/new"
    folder.mkdir()
    begin(experiment, folder)
    begin(experiment, new)
    assert folder.is_dir()
    if request.node.callspec.params["fails"] != "links":  # which can be tried again
        assert tree(folder) == {}
        assert not new.parent.exists()
    else:
        assert {"plan.json", "machine.json", "experiment.toml"}.isdisjoint(tree(folder))
        assert prepare(SweepRequest(experiment=experiment, out=folder)).plan.runnable


@all_failures
def test_what_came_into_an_empty_folder_meanwhile_stays(
    experiment: Path, tmp_path: Path, fails: None
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    prepared = prepare(SweepRequest(experiment=experiment, out=folder))
    users_own(folder, "thesis.tex")
    with pytest.raises(OutputError, match="holds other files"):
        Sweep(prepared, Listener()).run()
    assert tree(folder) == {"thesis.tex": "the user's own\n"}


@all_failures
def test_what_a_killed_sweep_left_is_taken_up_again(
    experiment: Path, tmp_path: Path, fails: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is marked as a sweep's; a failure of the next one leaves its files."""
    folder = tmp_path / "run"
    monkeypatch.setattr(module, "identify", failing(LaunchError("killed")))
    with pytest.raises(LaunchError):
        Sweep(prepare(SweepRequest(experiment=experiment, out=folder)), Listener()).run()
    assert (folder / MARK).is_file()
    users_own(folder, "machine.json")
    monkeypatch.undo()
    monkeypatch.setattr(module, "Servers", _Servers)
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    monkeypatch.setattr(module, "identify", FAILURES["class"])
    begin(experiment, folder)
    assert tree(folder)["machine.json"] == "the user's own\n"
    users_own(folder, "thesis.tex")
    with pytest.raises(OutputError, match="holds other files"):
        prepare(SweepRequest(experiment=experiment, out=folder))


def test_a_folder_that_another_sweep_has_planned_meanwhile_is_not_planned_again(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    prepared = prepare(SweepRequest(experiment=experiment, out=tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/plan.json").write_text("another sweep's", encoding="utf-8")
    with pytest.raises(OutputError, match="another sweep has just"):
        Sweep(prepared, Listener()).run()
    assert (tmp_path / "run/plan.json").read_text(encoding="utf-8") == "another sweep's"


def _no_space(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("what", ["plan", "submit", "interleave"])
def test_other_commands_that_fail_leave_an_empty_folder_too(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, there: bool
) -> None:
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
    monkeypatch.setattr(elsewhere, "make_job_key", _no_space)
    if what == "plan":
        assert command(["plan", str(experiment), "--nodes", "a", "--out", str(folder)]) == 2
    elif what == "submit":
        monkeypatch.setattr("ddpbench.launch.slurm.control.check_here", lambda: None)
        monkeypatch.setattr("ddpbench.launch.slurm.control.partitions", dict)
        assert command(["submit", str(experiment), "--nodes", "1", "--out", str(folder)]) == 2
    else:
        made = told._made(folder)
        users_own(folder, "base/plan.json")
        made.remove()
    assert folder.is_dir() == there
    assert not there or tree(folder) == {}
