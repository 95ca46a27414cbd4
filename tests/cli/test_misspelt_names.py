"""Every name on a command line, misspelt: exit code 2, one message with the name and the nearest valid one.

Commands and their arguments are those of the parser. A new argument must be listed here, as a name or as no name.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ddpbench
from ddpbench import errors
from ddpbench.analysis.export import exported
from ddpbench.analysis.regression.baselines import STORAGE, Baselines
from ddpbench.cli import make_parser, run
from ddpbench.records import RunDir
from tests.repositories import TRAIN, begin_repository, git
from tests.synthetic import write_run

NAMES: dict[str, tuple[str, str]] = {
    "experiment": ("qiuck", "quick"),
    "strategy": ("dpp", "ddp"),
    "algorithm": ("rnig", "ring"),
    "schedule": ("overlaped", "overlapped"),
    "workload": ("gpt:nnao", "gpt:nano"),
    "backend": ("glo", "gloo"),
    "device": ("cppu", "cpu"),
    "turns": ("block", "blocks"),
    "kind": ("cvs", "csv"),
    "table": ("step", "steps"),
    "figures": ("pgn", "png"),
    "action": ("remvoe", "remove"),
    "run_dir": ("mesured", "measured"),
    "recovery": ("mesured", "measured"),
    "run_dirs": ("mesured", "measured"),
    "runs": ("mesured", "measured"),
    "script": ("trian.py", "train.py"),
    "name": ("mian", "main"),
    "case": ("dpp", "ddp"),
    "where": ("local_bach=8", "local_batch"),
    "base_side": ("rf=main", "ref"),
    "new_side": ("rf=main", "ref"),
}
"""By an argument's destination: a misspelt name, and the nearest valid one."""
SETTINGS: dict[str, tuple[str, str]] = {
    "base.strategy=dpp": ("dpp", "ddp"),
    "base.workload=gpt:nnao": ("gpt:nnao", "gpt:nano"),
    "base.workload=replay:gpt-nano-cup": ("replay:gpt-nano-cup", "replay:gpt-nano-cpu"),
    "base.workload=trian.py:Measured": ("trian.py", "train.py"),
    "base.workload=train.py:Mesured": ("Mesured", "Measured"),
    "base.workload=replay:./profil.json": ("profil.json", "profile.json"),
    "base.backend=glo": ("glo", "gloo"),
    "base.launcher=torchrn": ("torchrn", "torchrun"),
    "base.algorithm=rnig": ("rnig", "ring"),
    "base.precision=bf61": ("bf61", "bf16"),
    "base.stratgy=ddp": ("stratgy", "strategy"),
    "bse.strategy=ddp": ("bse", "base"),
    "budget.rounds_mim=3": ("rounds_mim", "rounds_min"),
    "axes.wrld_size=[1]": ("wrld_size", "world_size"),
    "options.dpp.static_graph=true": ("dpp", "ddp"),
    "options.ddp.static_grph=true": ("static_grph", "static_graph"),
    "options.gpt.blok_size=16": ("blok_size", "block_size"),
}
"""Names given with --set."""
NO_NAMES = frozenset(
    (
        "out",
        "markdown",
        "html",
        "port",
        "ranks_per_node",
        "time",
        "partition",
        "account",
        "gres",
        "constraint",
        "sbatch",
        "setup",
        "local",
        "nodes",
        "fabric",
        "efficiency_cut",
        "samples_per_epoch",
        "epochs",
        "steps",
        "queue_wait",
        "mtbf",
        "total",
        "rounds",
        "fail_on",
        "drift",
        "world_size",
        "hang_timeout",
        "local_batch",
        "measured",
        "resolve",
        "good",
        "bad",
    )
)
"""Numbers, times, output paths, and names of Slurm and git: ddpbench has no list of their values."""
STEMS = {
    "sweep": ["quick", "--dry-run"],
    "plan": ["quick", "--nodes", "a"],
    "submit": ["quick", "--nodes", "1", "--dry-run"],
    "report": ["measured"],
    "show": ["measured"],
    "pack": ["measured"],
    "allocation": ["measured", "--mtbf", "12h"],
    "merge": ["measured", "second", "--out", "merged"],
    "compare": ["quick", "--interleave", "--base", "set=base.seed=1", "--out", "compared"],
    "history": ["measured", "second"],
    "baseline": ["remove", "main"],
    "bisect": ["bench/step.toml", "HEAD~1", "HEAD", "--out", "bisected"],
    "export": ["measured", "--format", "csv"],
    "verify": ["--world-size", "1", "--strategy", "ddp"],
    "init": ["train.py"],
    "profile": ["gpt:nano"],
    "noise": [],
    "doctor": [],
    "list": [],
}
"""Further arguments of each command. A first word that is not a flag is its first argument."""


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(found.choices)


@dataclass(frozen=True)
class Wrong:
    """A command line with one misspelt name."""

    argv: tuple[str, ...]
    name: str
    nearest: str

    def __str__(self) -> str:
        return " ".join(self.argv)


def every() -> Iterator[Wrong]:
    """Yield each command with each of its names misspelt."""
    for command, parser in commands().items():
        stem = STEMS[command]
        yield Wrong((f"{command}z", *stem), f"{command}z", command)
        words = [action for action in parser._actions if not action.option_strings]
        for action in parser._actions:
            flag = max(action.option_strings, key=len, default="")
            if flag:
                yield Wrong((command, *stem, f"{flag}z"), f"{flag}z", flag)
            if flag == "--set":
                for setting, (name, nearest) in _settings(command).items():
                    yield Wrong((command, *stem, flag, setting), name, nearest)
            elif action.nargs != 0 and action.dest not in NO_NAMES:
                name, nearest = NAMES["workload" if flag == "--workload" else action.dest]
                if action in words:
                    given = _with_word(command, action.dest, words.index(action), name)
                else:
                    place = stem.index(flag) if flag in stem else len(stem)
                    given = [*stem[:place], flag, name, *stem[place + 2 :]]
                yield Wrong((command, *given), name, nearest)


def _settings(command: str) -> dict[str, tuple[str, str]]:
    """Return the settings to try: few if each starts other processes, options if only those may be set."""
    if command in ("compare", "bisect"):
        return {name: SETTINGS[name] for name in ("base.strategy=dpp", "base.stratgy=ddp")}
    return {
        setting: names
        for setting, names in SETTINGS.items()
        if command not in ("verify", "profile") or setting.startswith("options.gpt")
    }


def _with_word(command: str, dest: str, place: int, name: str) -> list[str]:
    if (command, dest) == ("compare", "runs"):
        return ["measured", name]
    if (command, dest) == ("baseline", "run_dir"):
        return ["save", "main", name]
    return [*STEMS[command][:place], name, *STEMS[command][place + 1 :]]


EVERY = list(every())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything that commands read: a repository of two commits, runs, a baseline, a profile."""
    path = tmp_path_factory.mktemp("names")
    begin_repository(path, sleep=0.0)
    (path / "train.py").write_text(TRAIN.format(sleep=0), encoding="utf-8")
    for name in ("one", "two"):
        (path / name).touch()
        git(path, "add", ".")
        git(path, "commit", "-m", name)
    for seed, name in enumerate(("measured", "second")):
        write_run(path / name, 4, rounds=2, blocks=2, steps=3, seed=seed)
    Baselines(path / STORAGE).save("main", exported(RunDir(path / "measured"), "pytest-benchmark"))
    shutil.copy(Path(ddpbench.__file__).with_name("profiles") / "gpt-nano-cpu.json", path / "profile.json")
    return path


@pytest.mark.parametrize("wrong", EVERY, ids=map(str, EVERY))
def test_a_misspelt_name_is_refused_with_the_nearest(
    wrong: Wrong, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    before = set(folder.iterdir())
    try:
        code = run([*wrong.argv])
    except SystemExit as stop:  # from argparse
        code = stop.code
    said = capsys.readouterr()
    assert code == 2, said
    assert said.out == ""
    assert "Traceback" not in said.err
    assert wrong.name in said.err
    assert re.search(rf"did you mean (the file )?'?\S*{re.escape(wrong.nearest)}'?\?", said.err), said.err
    assert set(folder.iterdir()) == before


def test_every_command_and_argument_is_tried() -> None:
    assert STEMS.keys() == commands().keys()
    tried = {(one.argv[0], word) for one in EVERY for word in one.argv[1:]}
    flags = {
        (command, max(action.option_strings, key=len))
        for command, parser in commands().items()
        for action in parser._actions
        if action.option_strings and action.nargs != 0 and action.dest not in NO_NAMES
    }
    assert flags <= tried


OF_MORE = (errors.ExperimentError, errors.SideError)
"""Errors whose arguments are more than a message."""


def _errors() -> Iterator[errors.DdpbenchError]:
    yield errors.ExperimentError("given.toml", [errors.Problem(path="base.strategy", message="unknown")])
    yield errors.SideError("new", "it cannot begin")
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.DdpbenchError) and kind not in OF_MORE:
            yield kind("a message")


@pytest.mark.parametrize("error", [*_errors()], ids=lambda error: type(error).__name__)
def test_every_error_can_be_copied_and_given_another_message(error: errors.DdpbenchError) -> None:
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
    other = error.reworded("another message")
    assert (type(other), str(other), vars(other)) == (type(error), "another message", vars(error))
