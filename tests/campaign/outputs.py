"""Commands that write files, if that fails or the place is not a file: a limit, a device, a link, a user's
folder.

No user data may be lost: a file is unchanged or written completely, and anything else keeps its type.
"""

from __future__ import annotations

import hashlib
import os
import resource
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.campaign import classes, rundirs
from tests.synthetic import write_run

LIMIT = 2048
"""Largest size of a file, bytes: messages are smaller, outputs larger."""
FILE_COMMANDS: dict[str, list[str]] = {
    "export-csv": ["export", "{here}/given", "--format", "csv", "--out", "{out}"],
    "export-openmetrics": ["export", "{here}/given", "--format", "openmetrics", "--out", "{out}"],
    "export-pytest": ["export", "{here}/given", "--format", "pytest-benchmark", "--out", "{out}"],
    "compare-markdown": ["compare", "{here}/given", "{here}/other", "--markdown", "{out}"],
    "compare-html": ["compare", "{here}/given", "{here}/other", "--html", "{out}"],
    "history-markdown": ["history", "{here}/given", "{here}/other", "--markdown", "{out}"],
    "history-html": ["history", "{here}/given", "{here}/other", "--html", "{out}"],
}
"""Commands with an output that the user names."""
OTHER_COMMANDS: dict[str, list[str]] = {
    "init": ["init", "{here}/train.py", "--write"],
    "report": ["report", "{here}/given"],
    "pack": ["pack", "{here}/given"],
    "allocation": ["allocation", "{here}/given", "--out", "{here}/pages"],
    "merge": ["merge", "{here}/given", "{here}/later", "--out", "{here}/run"],
    "plan": ["plan", "quick", "--nodes", "a,b", "--out", "{here}/run"],
    "baseline": ["baseline", "save", "main", "{here}/given"],
}
"""Commands that write elsewhere."""
FOLDER_COMMANDS: dict[str, list[str]] = {
    "sweep": ["sweep", "{here}/e.toml", "--out", "{here}/mine"],
    "sweep-in-its-place": ["sweep", "{here}/mine/experiment.toml", "--out", "{here}/mine"],
    "sweep-of-no-class": ["sweep", "{here}/no_class.toml", "--out", "{here}/mine"],
    "plan-folder": ["plan", "{here}/e.toml", "--nodes", "a", "--out", "{here}/mine"],
    "submit-folder": ["submit", "{here}/e.toml", "--nodes", "1", "--dry-run", "--out", "{here}/mine"],
    "merge-folder": ["merge", "{here}/given", "{here}/later", "--out", "{here}/mine"],
}
"""Commands that make a directory, given a user's folder, which must be refused or left unchanged."""
FOLDERS: dict[str, tuple[str, ...]] = {
    f"users-{Path(name).name}": ("experiment.toml", name)
    for name in (
        "cases/patients.csv",
        "experiment.toml",
        "machine.json",
        "probe.json",
        "fabric.log",
        ".notes.new",
        ".tmp-work/thesis.tex",
        ".lock",
        ".ddpbench",
    )
}
"""The user's files in it, which have names that commands use too."""
EMPTY = {"sweep-of-no-class": (2,), "submit-folder": (0, 2)}
"""Commands that leave an empty folder unchanged, and their exit codes."""
NOT_HERE = {
    "sweep": "the faults in surroundings",
    "submit": "the family of submissions",
    "noise": "a sweep",
    "verify": "writes nothing that stays",
    "profile": "starts a rank",
    "bisect": "starts ranks",
    "doctor": "writes nothing",
    "list": "writes nothing",
    "show": "writes nothing",
}
"""Commands that are not tried here, with the place that tries them, or the reason."""
FINE = (0, 1, 2)


def _new(path: Path) -> None:
    """Leave the path free."""


def _there(path: Path) -> None:
    path.write_text("the user's own\n" * 200, encoding="utf-8")


def _link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    _there(path.parent / "elsewhere/file")
    path.symlink_to("elsewhere/file")


def _node(minor: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))

    return make


def _below_planted(path: Path) -> None:
    """Lead to the user's file by another user's link, below a folder of theirs in one like /tmp."""
    (path.parent / "elsewhere").mkdir()
    _there(path.parent / "elsewhere/file")
    planted = path.parent / "shared/planted"
    planted.mkdir(parents=True)
    planted.parent.chmod(0o1777)
    (planted / "link").symlink_to(path.parent / "elsewhere/file")
    for theirs in (planted, planted / "link"):
        os.chown(theirs, 65534, 65534, follow_symlinks=False)
    path.symlink_to("shared/planted/link")


PLACES: dict[str, tuple[Callable[[Path], None], bool, tuple[int, ...]]] = {
    "limited-new": (_new, True, (2,)),
    "limited-there": (_there, True, (2,)),
    "limited-link": (_link, True, (2,)),
    "link": (_link, False, (0,)),
    "there": (_there, False, (0,)),
    "folder": (Path.mkdir, False, (2,)),
    "pipe-name-of-nobody": (lambda path: path.symlink_to("/dev/fd/77"), False, (2,)),
    "link-to-itself": (lambda path: path.symlink_to(path), False, (2,)),
    **(
        {
            "null-device": (_node(3), False, (0,)),
            "full-device": (_node(7), False, (2,)),
            "link-below-planted": (_below_planted, False, (2,)),
        }
        if os.geteuid() == 0
        else {}
    ),
}
"""Contents of the place that a command writes to, whether its files are limited, and how it must end."""


def names() -> list[str]:
    """Return the names of all inputs of this kind."""
    found = [f"{command}:{place}" for command in FILE_COMMANDS for place in PLACES]
    found += [f"{command}:limited" for command in OTHER_COMMANDS]
    found += [f"{command}:{folder}" for command in FOLDER_COMMANDS for folder in FOLDERS]
    found += [f"{command}:users-empty" for command in EMPTY]
    return [*found, "report:own-cache-folder", "report:cache-folder-of-that-name"]


def argv(rest: str) -> list[str]:
    """Return an input's command."""
    command = rest.partition(":")[0]
    words = (FILE_COMMANDS | OTHER_COMMANDS | FOLDER_COMMANDS)[command]
    return [word.replace("{out}", "{here}/out") for word in words]


def codes(rest: str) -> tuple[int, ...]:
    """Return the exit codes that it may end with."""
    command, _, place = rest.partition(":")
    if command in FOLDER_COMMANDS:
        return EMPTY[command] if place == "users-empty" else (2,)
    if place == "limited" or (place.startswith("limited") and command.endswith("markdown")):
        return FINE  # a small output may fit
    if place.startswith("limited") and command.startswith(("compare", "history")):
        return (1,)  # their table is printed by then
    return PLACES[place][2] if place in PLACES else (0,)


def limits(rest: str) -> Mapping[int, int]:
    """Return the limits of its process."""
    place = rest.partition(":")[2]
    limited = place == "limited" or (place in PLACES and PLACES[place][1])
    return {resource.RLIMIT_FSIZE: LIMIT} if limited else {}


def env(rest: str) -> Mapping[str, str]:
    """Return its variables."""
    folder = {"own-cache-folder": "{here}/mine", "cache-folder-of-that-name": "{here}/mine"}
    return {"DDPBENCH_CACHE": folder.get(rest.partition(":")[2], "")}


def prepare(rest: str, here: Path) -> None:
    """Write its files."""
    command, _, place = rest.partition(":")
    rundirs.write(here / "given")
    (here / "given/.lock").touch()  # as a killed sweep leaves it
    if command.startswith(("compare", "history")):
        write_run(here / "other", rundirs.CASES, rounds=rundirs.ROUNDS, blocks=2, steps=3, seed=1)
    if command in FOLDER_COMMANDS:
        text = '[base]\nworkload = "{}"\nstrategy = "single"\nworld_size = 1\ndevice = "cpu"\n'
        (here / "e.toml").write_text(text.format("mlp:small"), encoding="utf-8")
        (here / "no_class.toml").write_text(text.format("train.py:Measured"), encoding="utf-8")
        (here / "train.py").write_text(classes.SOUND.replace("def dataset", "def rows"), encoding="utf-8")
        (here / "mine").mkdir()
        for name in FOLDERS.get(place, ()):
            (here / "mine" / name).parent.mkdir(exist_ok=True)
            (here / "mine" / name).write_text(
                f"# the user's own\n{text.format('mlp:small')}", encoding="utf-8"
            )
    if command in ("merge", "merge-folder"):
        write_run(here / "later", rundirs.CASES, rounds=rundirs.ROUNDS, blocks=2, steps=3, seed=1)
    if command == "init":
        source = classes.SOUND.replace("class Measured", "class Other")
        (here / "train.py").write_text(f"{source}\n{'# the tail of the script' * 200}\n", encoding="utf-8")
    if place in PLACES:
        PLACES[place][0](here / "out")
    if "cache-folder" in place:
        folder = here / "mine"
        folder = folder / "ddpbench-cache" if place == "cache-folder-of-that-name" else folder
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("the user's own", encoding="utf-8")
        (folder / "mine.kept").write_text("the user's own", encoding="utf-8")
        for name in ("large.bin", "large.kept"):
            with (folder / name).open("wb") as file:
                file.truncate(300 << 20)  # sparse
            os.utime(folder / name, (1, 1))


State = dict[str, tuple[int, int, str]]


def state(here: Path) -> State:
    """Return the type, number and content digest of all user files."""
    own = [here / name for name in ("out", "elsewhere/file", "train.py", "mine")]
    own += sorted((here / "mine").rglob("*")) if (here / "mine").is_dir() else []
    found: State = {}
    for path in own:
        if not os.path.lexists(path):
            continue
        before = path.lstat()
        content = ""
        if stat.S_ISREG(before.st_mode):
            small = before.st_size < 1 << 20
            content = hashlib.sha256(path.read_bytes()).hexdigest() if small else str(before.st_size)
        found[str(path.relative_to(here))] = (before.st_mode, before.st_rdev, content)
    return found


def lost(rest: str, before: State, here: Path, code: int | None) -> list[str]:
    """Return user files that were lost, and files of a run directory that were left empty."""
    now = state(here)
    wrong: list[str] = []
    for name, (mode, device, content) in before.items():
        if name not in now:
            wrong.append(f"lost: {name}")
        elif now[name][:2] != (mode, device):
            wrong.append(f"{name} was replaced by something else")
        elif now[name][2] != content and (code != 0 or name.startswith("mine")):
            wrong.append(f"{name} was changed")
    if rest.endswith(":users-empty") and any((here / "mine").iterdir()):
        wrong.append("mine is empty no more")
    wrong += [
        f"empty: {path.relative_to(here)}"
        for path in here.rglob("*")
        if path.is_file()
        and path.stat().st_size == 0
        and path.suffix in (".html", ".csv", ".md", ".tex", ".xz")
    ]
    if code == 0 and rest.endswith((":link", ":there")):
        target = here / "out"
        text = target.read_bytes()
        wrong += ["the output was not written"] if len(text) < 100 or b"the user's own" in text else []
    return wrong
