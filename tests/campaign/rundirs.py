"""Run directories that somebody damaged, mixed up or made up, from one sound synthetic run of four cases."""

from __future__ import annotations

import atexit
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaign.nasty import TIMES, VALUES, as_json, dotted, leaves, replaced, without
from tests.synthetic import write_run

CASES = 4
ROUNDS = 2
DOCUMENTS = ("plan.json", "machine.json", "sessions.json")
RECORDS = ("outcome.json", "rank-00000.attempt-0.jsonl")
FEW = (
    "minus-one",
    "zero",
    "half",
    "nan",
    "inf",
    "beyond-64-bits",
    "5000-digits",
    "text",
    "null-byte",
    "escapes",
)
FEW = (*FEW, "up-and-out", "markup", "long-text", "true", "empty-list", "table", "nested-5000", "401-digits")


@cache
def _sound() -> Path:
    """Return the path of the first of two runs, `run` and `other`, which are written once per process."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="ddpbench-campaign-")) / "run"
    atexit.register(_remove, folder.parent, os.getpid())
    write_run(folder, CASES, rounds=ROUNDS, blocks=2, steps=3)
    other = write_run(folder.with_name("other"), CASES, rounds=ROUNDS, blocks=2, steps=3, seed=1)
    text = other.machine.read_text(encoding="utf-8").replace("2026-03-04", "2026-03-05")
    other.machine.write_text(text, encoding="utf-8")
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # forked processes still need it
        shutil.rmtree(folder, ignore_errors=True)


def prepare() -> None:
    """Write the sound run now, so that processes forked later find it."""
    _sound()


def forget() -> None:
    """Delete the sound run."""
    shutil.rmtree(_sound().parent)
    _sound.cache_clear()


def write(folder: Path, *, other: bool = False) -> None:
    """Write a sound run in this folder, or another one of the same cases."""
    shutil.copytree(_sound().with_name("other") if other else _sound(), folder)


def cases(folder: Path) -> list[str]:
    """Return the ids of its cases, in the plan's order."""
    return [path.name for path in sorted((folder / "cases").iterdir())]


def launch(folder: Path, case: int = 0, name: str = "launch-00") -> Path:
    """Return the folder of a case's launch."""
    return folder / "cases" / cases(folder)[case] / name


def records(folder: Path, case: int = 0) -> Path:
    """Return the records of the first rank of a case's first launch."""
    return min(launch(folder, case).glob("rank-*.jsonl"))


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _line(folder: Path, place: int, line: bytes) -> None:
    path = records(folder)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:place], line, *lines[place:]]))


def _renamed_case(folder: Path, name: str) -> None:
    first = cases(folder)[0]
    text = (folder / "plan.json").read_text(encoding="utf-8").replace(first, name)
    (folder / "plan.json").write_text(text, encoding="utf-8")


def _instead(path: Path, make: Callable[[Path], Any]) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


WAYS: dict[str, Callable[[Path], Any]] = {
    "launches-swapped": lambda run: _swap(launch(run, 0), launch(run, 1)),
    "cases-swapped": lambda run: _swap(launch(run, 0).parent, launch(run, 1).parent),
    "rounds-swapped": lambda run: _swap(launch(run, 0), launch(run, 0, "launch-01")),
    "proofs-swapped": lambda run: _swap(launch(run, 0, "proof"), launch(run, 1, "proof")),
    "stray-rank": lambda run: shutil.copy(records(run, 1), launch(run) / "rank-00077.attempt-0.jsonl"),
    "rank-twice": lambda run: shutil.copy(records(run), launch(run) / "rank-00000.attempt-1.jsonl"),
    "launch-of-three-digits": lambda run: shutil.copytree(launch(run), launch(run, 0, "launch-000")),
    "launch-beyond-plan": lambda run: shutil.copytree(launch(run), launch(run, 0, "launch-77")),
    "launch-superscript": lambda run: shutil.copytree(launch(run), launch(run, 0, "launch-²")),
    "launch-minus": lambda run: shutil.copytree(launch(run), launch(run, 0, "launch--1")),
    "case-beyond-plan": lambda run: shutil.copytree(launch(run).parent, run / "cases/ddp-w9-00000000"),
    "case-up-and-out": lambda run: _renamed_case(run, "../../../escaped"),
    "case-absolute": lambda run: _renamed_case(run, "/tmp/escaped"),
    "case-null": lambda run: _renamed_case(run, "a\\u0000b"),
    "case-renamed": lambda run: _renamed_case(run, "ddp-w2-00000000"),
    "log-is-a-link": lambda run: (launch(run) / "x.log").symlink_to("/etc/passwd"),
    "log-is-a-relative-link": lambda run: (launch(run) / "x.log").symlink_to("../../../../../../etc/passwd"),
    "records-are-a-link": lambda run: _instead(records(run), lambda path: path.symlink_to("/etc/passwd")),
    "launch-is-a-link": lambda run: _instead(launch(run), lambda path: path.symlink_to("/etc")),
    "cases-are-a-link": lambda run: _instead(run / "cases", lambda path: path.symlink_to("/")),
    "link-to-itself": lambda run: _instead(launch(run), lambda path: path.symlink_to(path)),
    "plan-is-a-link": lambda run: _instead(run / "plan.json", lambda path: path.symlink_to("/etc/passwd")),
    "page-is-a-link": lambda run: (run / "report.html").symlink_to("../escaped.html"),
    "figures-are-a-link": lambda run: (run / "figures").symlink_to(".."),
    "table-is-a-link": lambda run: (run / "cases.csv").symlink_to("../escaped.csv"),
    "plan-is-a-pipe": lambda run: _instead(run / "plan.json", os.mkfifo),
    "records-are-a-pipe": lambda run: _instead(records(run), os.mkfifo),
    "outcome-is-a-pipe": lambda run: _instead(launch(run) / "outcome.json", os.mkfifo),
    "log-is-a-pipe": lambda run: os.mkfifo(launch(run) / "rank-00000.attempt-0.log"),
    "plan-is-a-device": lambda run: _instead(run / "plan.json", lambda path: path.symlink_to("/dev/zero")),
    "records-are-a-device": lambda run: _instead(records(run), lambda path: path.symlink_to("/dev/zero")),
    "plan-is-a-folder": lambda run: _instead(run / "plan.json", Path.mkdir),
    "outcome-is-a-folder": lambda run: _instead(launch(run) / "outcome.json", Path.mkdir),
    "records-are-a-folder": lambda run: _instead(records(run), Path.mkdir),
    "cases-are-a-file": lambda run: _instead(run / "cases", Path.touch),
    "launch-is-a-file": lambda run: _instead(launch(run), Path.touch),
    "plan-is-empty": lambda run: (run / "plan.json").write_bytes(b""),
    "records-are-empty": lambda run: records(run).write_bytes(b""),
    "outcome-is-empty": lambda run: (launch(run) / "outcome.json").write_bytes(b""),
    "plan-of-64-gib": lambda run: _huge(run / "plan.json"),
    "records-of-64-gib": lambda run: _huge(records(run)),
    "outcome-of-64-gib": lambda run: _huge(launch(run) / "outcome.json"),
    "records-torn": lambda run: records(run).write_bytes(records(run).read_bytes()[:-7]),
    "records-cut": lambda run: records(run).write_bytes(records(run).read_bytes()[:200]),
    "records-doubled": lambda run: records(run).write_bytes(records(run).read_bytes() * 2),
    "records-reversed": lambda run: records(run).write_bytes(
        b"\n".join(records(run).read_bytes().split(b"\n")[::-1][1:]) + b"\n"
    ),
    "records-binary": lambda run: _line(run, 1, bytes(range(256)).replace(b"\n", b"")),
    "record-unknown": lambda run: _line(run, 1, b'{"kind": "unheard-of"}'),
    "record-deep": lambda run: _line(run, 1, b"[" * 100_000),
    "record-long": lambda run: _line(run, 1, b'{"kind": "' + b"x" * 10_000_000 + b'"}'),
    "records-of-no-rank": lambda run: records(run).unlink(),
    "no-outcome": lambda run: (launch(run) / "outcome.json").unlink(),
    "no-cases": lambda run: shutil.rmtree(run / "cases"),
    "no-machine": lambda run: (run / "machine.json").unlink(),
    "no-sessions": lambda run: (run / "sessions.json").unlink(),
    "no-plan": lambda run: (run / "plan.json").unlink(),
    "archive-is-no-archive": lambda run: _only_archive(run, b"\xfd7zXZ\x00 nothing"),
    "archive-is-empty": lambda run: _only_archive(run, b""),
}
"""Changes other than of a value in a document."""


def _only_archive(run: Path, content: bytes) -> None:
    shutil.rmtree(run / "cases")
    (run / "records.tar.xz").write_bytes(content)


def _document(folder: Path, name: str) -> tuple[Path, int | None]:
    """Return a document's file, and the line that is changed; None if the file is a single document."""
    if name in DOCUMENTS:
        return folder / name, None
    if name == "outcome.json":
        return launch(folder) / name, None
    return records(folder), int(name.rpartition("#")[2])


def _texts(path: Path, line: int | None) -> str:
    text = path.read_text(encoding="utf-8")
    return text if line is None else text.split("\n")[line]


@cache
def names() -> list[str]:
    """Return the names of all changes of a run."""
    folder = _sound()
    found = list(WAYS)
    lines = [f"records#{line}" for line in range(len(records(folder).read_text().splitlines()))]
    seen: set[str] = set()
    for name in (*DOCUMENTS, "outcome.json", *lines):
        document = json.loads(_texts(*_document(folder, name)))
        kind = document.get("kind", name) if isinstance(document, dict) else name
        if name in lines and kind in seen:
            continue  # one record of each kind
        seen.add(kind)
        for path in leaves(document):
            if path:
                times = TIMES if str(path[-1]).endswith("_utc") else ()
                found += [f"{name}:{dotted(path)}={value}" for value in ("left-out", *FEW, *times)]
    return found


def change(folder: Path, name: str) -> None:
    """Change the run in one of these ways."""
    if name in WAYS:
        WAYS[name](folder)
        return
    document, _, rest = name.partition(":")
    where, _, value = rest.rpartition("=")
    file, line = _document(folder, document)
    lines = file.read_text(encoding="utf-8").split("\n")
    content = json.loads(_texts(file, line))
    path = next(path for path in leaves(content) if dotted(path) == where)
    new = (
        without(content, path) if value == "left-out" else replaced(content, path, {**VALUES, **TIMES}[value])
    )
    if line is None:
        file.write_text(as_json(new), encoding="utf-8")
    else:
        file.write_text("\n".join([*lines[:line], as_json(new), *lines[line + 1 :]]), encoding="utf-8")


def touched(name: str) -> int | None:
    """Return for how many cases, from the first, the numbers may change; None for all."""
    if name.startswith(("outcome.json:", "records#")):
        return 1
    if name.startswith(tuple(f"{document}:" for document in DOCUMENTS)):
        return None
    if name in ("launches-swapped", "cases-swapped", "proofs-swapped"):
        return 2
    return None if name.startswith(("plan", "case", "no-", "archive")) else 1
