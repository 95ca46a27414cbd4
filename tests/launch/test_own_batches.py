"""The batch that a user's class states: read without torch if the file shows it, noted if overridden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli import make_parser, run
from ddpbench.errors import WorkloadError
from ddpbench.launch import own_batches
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.own_batches import batch_notes, may_state_batch
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.spec import expand, parse_experiment

TEXT = """
    [base]
    workload = "train.py:Mine"
    [axes]
    strategy = ["single", "ddp"]
    world_size = [1, 2]
"""
SAYS = "class Mine:\n    batch = 32\n"


@pytest.mark.parametrize(
    ("source", "may"),
    [
        (SAYS, True),
        ("class Mine:\n    batch: int = SIZE\n", True),
        ("class Mine:\n    def loss(self, model, batch):\n        return model(batch)\n", False),
        ("for batch in loader:\n    pass\nclass Mine:\n    pass\n", False),
        ("class Mine(Workload[NoOptions]):\n    pass\n", False),
        ("class Mine(Workload):\n    default_batch = 4\n", True),
        ("class Mine(Other):\n    pass\n", True),
        ("class Mine:\n    pass\nMine.batch = 3\n", True),
        ("Mine = made()\n", True),
        ("class Mine:\n    batch = = 3\n", False),
    ],
)
def test_only_a_class_that_may_say_a_batch_is_asked(tmp_path: Path, source: str, may: bool) -> None:
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    assert may_state_batch(f"{tmp_path}/train.py:Mine") is may


def test_a_batch_that_no_case_can_have_is_told_before_there_are_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server:
        def __init__(self, *_: object, log_stays: bool) -> None: ...
        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(own_batches, "ServerProcess", Server)
    monkeypatch.setattr(own_batches, "stated_batch", lambda *_: 10**400)
    (tmp_path / "train.py").write_text(SAYS, encoding="utf-8")
    with pytest.raises(
        WorkloadError, match=r"Mine: invalid batch a whole number of about 400 digits: must be"
    ):
        own_batches.stated_batches([f"{tmp_path}/train.py:Mine"])


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an experiment without a batch, and a class that states 32, so that no rank has to be asked."""
    (tmp_path / "train.py").write_text(SAYS, encoding="utf-8")
    (tmp_path / "x.toml").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "ddpbench.launch.sweep.preparation.stated_batches", lambda names: dict.fromkeys(names, 32)
    )
    return tmp_path / "x.toml"


def test_the_classes_own_batch_is_the_local_batch_and_a_resume_keeps_it(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(SweepRequest(experiment=experiment, out=experiment.parent / "run"))
    assert {(entry.case.local_batch, entry.case.world_size) for entry in prepared.plan.runnable} == {
        (32, 1),
        (32, 2),
    }
    assert prepared.notes == ("local_batch = 32, as Mine says batch = 32",)
    prepared.run.create()
    prepared.run.plan.write_text(prepared.plan.dumps(), encoding="utf-8")
    prepared.run.experiment.write_text(prepared.experiment.to_toml(), encoding="utf-8")
    monkeypatch.setattr(own_batches, "stated_batches", lambda names: pytest.fail("a resume asked again"))
    again = prepare(SweepRequest(experiment=prepared.run.path))
    assert [entry.case for entry in again.plan.cases] == [entry.case for entry in prepared.plan.cases]
    assert again.notes == ()


LOCAL = (
    "the experiment's local_batch = 4 is used, though Mine says batch = 32 (to use the class's, "
    "set base.local_batch = 32)"
)


@pytest.mark.parametrize(
    ("overrides", "batch", "note"),
    [
        (
            ["base.local_batch=4"],
            4,
            LOCAL,
        ),
        (["base.local_batch=32"], 32, None),
        (
            ["base.scaling=strong", "base.global_batch=8"],
            8,
            "the experiment's global_batch = 8 over all ranks is used, though Mine says batch = 32",
        ),
    ],
)
def test_an_experiments_own_batch_wins_and_says_so(
    experiment: Path, overrides: list[str], batch: int, note: str | None
) -> None:
    prepared = prepare(
        SweepRequest(experiment=experiment, overrides=overrides, out=experiment.parent / "run")
    )
    assert prepared.plan.runnable[0].case.local_batch == batch
    assert prepared.notes == (() if note is None else (note,))


def test_batches_that_are_an_axis_win_too() -> None:
    text = '[base]\nworkload = "train.py:Mine"\n[axes]\nlocal_batch = [1, 4]'
    experiment = parse_experiment(text, TableCatalog(), name="x")
    (note,) = batch_notes(experiment, {"train.py:Mine": 32})
    assert note.startswith("the experiment's local_batch = [1, 4] is used, though ")
    assert note.endswith("(to use the class's, set axes.local_batch = [32])")


COMMANDS = ["sweep", "plan", "submit"]
"""Commands whose `--workload` replaces an experiment's; `compare` and `bisect` prepare each side as `sweep` does."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("experiment", "local", "note"),
    [
        (
            "quick",
            {4},
            LOCAL,
        ),
        ("without", {32}, "local_batch = 32, as Mine says batch = 32"),
        ("axis", {2, 16}, "the experiment's local_batch = [2, 16] is used, though Mine says batch = 32"),
    ],
)
def test_with_workload_the_experiments_local_batch_is_used_and_said(
    command: str,
    experiment: str,
    local: set[int],
    note: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text(SAYS, encoding="utf-8")
    head = '[base]\nworkload = "gpt:nano"\nstrategy = "ddp"\n'
    (tmp_path / "without.toml").write_text(f"{head}[axes]\nworld_size = [1, 2]\n", encoding="utf-8")
    (tmp_path / "axis.toml").write_text(f"{head}[axes]\nlocal_batch = [2, 16]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    batches: list[int] = []
    for module in ("sweep.preparation", "external"):
        monkeypatch.setattr(
            f"ddpbench.launch.{module}.stated_batches", lambda names: dict.fromkeys(names, 32)
        )

        def noted(*arguments: Any, _expand: Any = expand, **more: Any) -> Any:
            found = _expand(*arguments, **more)
            batches.extend(entry.case.local_batch for entry in found)
            return found

        monkeypatch.setattr(f"ddpbench.launch.{module}.expand", noted)
    source = experiment if experiment == "quick" else f"{experiment}.toml"
    size = (
        []
        if command == "sweep"
        else ["--nodes", "1,2" if command == "submit" else "a,b", "--ranks-per-node", "2"]
    )
    last = ["--out", "planned"] if command == "plan" else ["--dry-run"]
    assert run([command, source, "--workload", "train.py:Mine", *size, *last]) == 0
    assert set(batches) == local
    printed = capsys.readouterr()
    assert note in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_a_side_of_a_comparison_is_asked_for_the_workload_as_a_sweep_is(command: str) -> None:
    arguments = {
        "compare": ["--interleave", "quick", "--base", "a", "--new", "b"],
        "bisect": ["quick", "a", "b"],
    }
    parsed = make_parser().parse_args([command, *arguments[command], "--workload", "train.py:Mine"])
    assert parsed.overrides == ["base.workload=train.py:Mine"]


def test_every_command_with_a_workload_is_looked_at() -> None:
    """`verify` and `noise` have no experiment, `allocation` reads a run, and `profile` has --local-batch."""
    commands = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    taking = {name for name, each in commands.items() if "--workload" in each.format_help()}  # type: ignore[union-attr]
    assert taking == {*COMMANDS, "compare", "bisect", "verify", "noise", "allocation"}
