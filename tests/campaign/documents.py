"""Every file that a command reads, with each of its values and containers replaced, and each command that
reads it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ddpbench.analysis.regression.baselines import machine_folder
from tests.campaign import rundirs
from tests.campaign.nasty import Raw, as_json, dotted, leaves, replaced, without

ROOT = Path(__file__).parents[2]
INSTEAD: dict[str, Any] = {
    "null": None,
    "empty-list": [],
    "empty-table": {},
    "empty-text": "",
    "text": "x",
    "lone-surrogate": Raw('"\\ud800"'),
    "zero": 0,
    "minus-one": -1,
    "1e400": Raw("1e400"),
    "true": True,
    "list-of-nothing": [[]],
    "list-of-null": [None],
    "table-of-null": {"a": None},
    "nested-5000": Raw("[" * 5000 + "]" * 5000),
}
"""Replacements of a value; in addition a list is made shorter and longer by one, and a key is left out."""
UNCHANGED = "unchanged"
"""The file without a change: the command must then accept it."""
RUN = (
    ("report", "{here}/given"),
    ("allocation", "{here}/given"),
    ("pack", "{here}/given"),
    ("export", "{here}/given", "--format", "pytest-benchmark"),
    ("export", "{here}/given", "--format", "csv", "--table", "steps"),
    ("merge", "{here}/given", "{here}/other", "--out", "{here}/run"),
    ("compare", "{here}/given", "{here}/other"),
    ("history", "{here}/given", "{here}/other"),
    ("baseline", "save", "main", "{here}/given"),
    ("sweep", "{here}/given", "--dry-run"),
)
REPLAYED = ("--workload", "replay:{here}/profile.json", "--set", "base.local_batch=8")
SAVED = (
    ("compare", "{here}/saved.json", "{here}/other"),
    ("compare", "{here}/other", "main"),
    ("history", "{here}/saved.json", "{here}/other"),
    ("baseline", "list"),
    ("baseline", "remove", "main"),
)


@dataclass(frozen=True)
class Document:
    """A kind of file: how to write a folder with a sound one, its path, and the commands that read it."""

    prepare: Callable[[Path], None]
    path: Callable[[Path], Path]
    commands: Sequence[Sequence[str]]
    line: int | None = None
    """The line of the file that is a document; None if it is the entire file."""


def _run(folder: Path) -> None:
    rundirs.write(folder / "given")
    rundirs.write(folder / "other", other=True)
    write_json(folder / "given" / "fabric.json", [FABRIC])
    for launch in (folder / "given" / "cases").glob("*/*"):
        write_json(launch / "launch.json", {"schema_version": 1, "purpose": "measure", "round": 0})


FABRIC = {
    "links": "1gbit",
    "nodes": 2,
    "ranks_per_node": 1,
    "dilation": 1.0,
    "shrink": 1.0,
    "privileged": True,
    "kernel": "6.1",
    "asked_bit_per_s": [1e9, 1e9],
    "reached_bit_per_s": [0.9e9, 0.95e9],
    "dropped": 0,
}
ORIGIN = {"path": "a", "fingerprint": "0123", "host": "h", "started_utc": "2026-01-01T10:00:00+00:00"}


def _merged(folder: Path) -> None:
    _run(folder)
    sources = [{**ORIGIN, "git_commit": "abc", "cores": 2, "gpus": 0}, {**ORIGIN, "fingerprint": "4567"}]
    write_json(
        folder / "given" / "merged.json",
        {"schema_version": 1, "sources": sources, "left_out": ["one: its launch has no such rank"]},
    )


def _comparison(folder: Path) -> None:
    rundirs.write(folder / "given" / "base")
    rundirs.write(folder / "given" / "new")
    side = {"words": "ref=main", "commit": "0123abc", "overrides": ["base.local_batch=2"]}
    stored = {"schema_version": 1, "experiment": "quick.toml", "base": side, "new": {**side, "words": "here"}}
    stored |= {"order": ["base", "new"], "turns": "blocks", "foreign": [0.0, 0.1]}
    write_json(folder / "given" / "comparison.json", stored)


def _submission(folder: Path) -> None:
    rundirs.write(folder / "given" / "nodes-1")
    asked = {"experiment": "quick.toml", "experiment_digest": "0123", "overrides": [], "sizes": [1]}
    job = {"job_id": "7", "launches": 1, "sessions": 1, "nodes": "a", "fetched": True}
    slurm = {
        "time_s": None,
        "options": [["partition", "gpu"], ["exclusive", None]],
        "setup": ["module load x"],
    }
    size = {"nodes": 1, "ranks_per_node": 4, "run": "nodes-1", "estimated_s": 10.0, "jobs": [job]}
    stored = {"schema_version": 1, "asked": {**asked, "ranks_per_node": 4}}
    stored |= {"slurm": {**slurm, "port": 4000, "local": ""}, "sizes": [size]}
    write_json(folder / "given" / "submission.json", stored)


def _saved(folder: Path) -> None:
    from ddpbench.analysis.export import exported
    from ddpbench.records import RunDir

    _run(folder)
    content = exported(RunDir(folder / "given"), "pytest-benchmark")
    (folder / "saved.json").write_bytes(content)
    _store(folder)


def _store(folder: Path) -> None:
    """Save the file as a baseline too, which is what some commands read."""
    storage = folder / ".benchmarks" / machine_folder()
    storage.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "saved.json", storage / "0001_main.json")


def _profile(folder: Path) -> None:
    shutil.copy(ROOT / "ddpbench/profiles/gpt-nano-cpu.json", folder / "profile.json")


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _in_run(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / "given" / name


DOCUMENTS: dict[str, Document] = {
    **{
        name: Document(_run, _in_run(name), RUN)
        for name in ("plan.json", "machine.json", "sessions.json", "fabric.json")
    },
    "merged.json": Document(_merged, _in_run("merged.json"), RUN[:-1]),
    "outcome.json": Document(_run, lambda folder: rundirs.launch(folder / "given") / "outcome.json", RUN),
    "launch.json": Document(_run, lambda folder: rundirs.launch(folder / "given") / "launch.json", RUN),
    "start": Document(_run, lambda folder: rundirs.records(folder / "given"), RUN, line=0),
    "block": Document(_run, lambda folder: rundirs.records(folder / "given"), RUN, line=2),
    "comparison.json": Document(
        _comparison,
        _in_run("comparison.json"),
        (("compare", "{here}/given"), ("compare", "{here}/given", "--json"), ("report", "{here}/given/base")),
    ),
    "submission.json": Document(
        _submission,
        _in_run("submission.json"),
        (
            ("submit", "{here}/given", "--dry-run"),
            ("submit", "{here}/given", "--dry-run", "--partition", "other"),
        ),
    ),
    "saved.json": Document(_saved, lambda folder: folder / "saved.json", SAVED),
    "profile.json": Document(
        _profile,
        lambda folder: folder / "profile.json",
        (
            ("sweep", "quick", "--dry-run", *REPLAYED),
            ("plan", "quick", "--nodes", "a", "--out", "{here}/run", *REPLAYED),
        ),
    ),
}


@cache
def _sound(name: str) -> Any:
    """Return a document before any change."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        DOCUMENTS[name].prepare(Path(folder))
        return json.loads(_text(DOCUMENTS[name], Path(folder)))


def _text(document: Document, folder: Path) -> str:
    text = document.path(folder).read_text(encoding="utf-8")
    return text if document.line is None else text.split("\n")[document.line]


@cache
def names() -> list[str]:
    """Return the names of all changes, `DOCUMENT:COMMAND:PATH=CHANGE`, with a number for the command."""
    return [
        f"{name}:{number}:{change}"
        for name, document in DOCUMENTS.items()
        for change in _changes(name)
        for number in range(len(document.commands))
    ]


def _changes(name: str) -> Iterator[str]:
    sound = _sound(name)
    yield UNCHANGED
    seen: set[str] = set()
    for path in leaves(sound):
        alike = dotted([key if isinstance(key, str) else "#" for key in path])
        if alike in seen:
            continue  # one entry of a list stands for all
        seen.add(alike)
        ways = [*INSTEAD, *(["left-out"] if path else [])]
        if isinstance(_at(sound, path), list):
            ways += ["shorter", "longer"]
        yield from (f"{dotted(path)}={way}" for way in ways)


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        value = value[key]
    return value


def command(name: str) -> Sequence[str]:
    """Return the command of a change."""
    document, number, _ = name.split(":", 2)
    return DOCUMENTS[document].commands[int(number)]


def prepare(folder: Path, name: str) -> None:
    """Write the folder for the command of a change, with the change."""
    kind, _, change = name.split(":", 2)
    document = DOCUMENTS[kind]
    document.prepare(folder)
    if change == UNCHANGED:
        return
    where, _, way = change.rpartition("=")
    sound = json.loads(_text(document, folder))
    path = next(each for each in leaves(sound) if dotted(each) == where)
    if way == "left-out":
        changed = without(sound, path)
    elif way in ("shorter", "longer"):
        found = _at(sound, path)
        changed = replaced(sound, path, found[:-1] if way == "shorter" else [*found, *found[-1:]])
    else:
        changed = replaced(sound, path, INSTEAD[way])
    file = document.path(folder)
    text = as_json(changed)
    if document.line is not None:
        lines = file.read_text(encoding="utf-8").split("\n")
        text = "\n".join([*lines[: document.line], text, *lines[document.line + 1 :]])
    file.write_text(text, encoding="utf-8")
    if kind == "saved.json":
        _store(folder)
