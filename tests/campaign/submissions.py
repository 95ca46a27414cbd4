"""Submissions from a stranger, and names that contain more than a name, for a Slurm of a few lines of shell.

Its sbatch runs each script at once, in the trial's folder, so that a value that escapes its quoting leaves a
file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaign import rundirs
from tests.campaign.nasty import VALUES, as_json, dotted, leaves, replaced, without

ROOT = Path(__file__).parents[2]
SLURM = {
    "sbatch": """case $1 in --test-only) echo 'sbatch: Job 7 to start in partition debug' >&2; exit 0 ;; esac
if grep -q '^#SBATCH --wrap' "$2"; then touch "$HOME/owned"; fi
cd "$HOME" && bash "$2" > /dev/null 2>&1
echo 7""",
    "squeue": ":",
    "sacct": "echo 'COMPLETED|n1'",
    "sinfo": "echo 'debug*|2|infinite'",
    "scontrol": "echo n1",
    "srun": ":",
}
NASTY = {
    "second-line": "a\ntouch owned\n",
    "second-option": "a\n#SBATCH --wrap=id\n",
    "command": "$(touch owned)",
    "backquotes": "`touch owned`",
    "quote": "'; touch owned; '",
    "double-quote": '"; touch owned; "',
    "backslash": "a\\",
    "carriage-return": "a\rtouch owned",
    "line-separator": "a\u2028touch owned",
    "escapes": "\x1b[31mred\x1b]0;title\x07",
    "right-to-left": "a\u202eb",
    "parent": "..",
    "pattern": "%j%x*?[a]",
    "hyphens": "--wrap=id",
    "blank": " ",
    "comment": "# a",
    "accents": "naïve",
    "long": "n" * 150,
}
FIELDS = {
    "experiment": "{word}.toml",
    "out": "--out={{here}}/run/{word}",
    "comment": "--sbatch=comment={word}",
    "option": "--sbatch={word}",
    "job-name": "--sbatch=job-name={word}",
    "gres": "--gres={word}",
    "account": "--account={word}",
    "partition": "--partition={word}",
    "local": "--local={{here}}/run/{word}",
    "time": "--time={word}",
}
_ALLOWED = {("out", "parent"), ("local", "parent")}
"""A folder that its user names may be the parent of another."""


def install(folder: Path) -> None:
    """Put the stand-in's commands into `bin`."""
    (folder / "bin").mkdir()
    for name, text in SLURM.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)


def names_of_names() -> list[str]:
    """Return all fields with all words."""
    pairs = [(field, word) for field in FIELDS for word in NASTY]
    return [f"{field}={word}" for field, word in pairs if (field, word) not in _ALLOWED]


def named(rest: str) -> tuple[str, list[str]]:
    """Return the experiment's file name, and the rest of the command line."""
    field, _, word = rest.partition("=")
    text = FIELDS[field].format(word=NASTY[word])
    out = [] if field == "out" else ["--out={here}/run"]
    return (text, out) if field == "experiment" else ("given.toml", [*out, text])


def write_experiment(folder: Path, name: str) -> None:
    """Copy an experiment into the folder, under that name."""
    shutil.copy(ROOT / "experiments/quick.toml", folder / name)


DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "asked": {
        "experiment": "/a/given.toml",
        "experiment_digest": "0" * 16,
        "overrides": ["base.seed=1"],
        "sizes": [1],
        "ranks_per_node": 1,
    },
    "slurm": {
        "time_s": 600.0,
        "options": [["comment", "a"], ["exclusive", None]],
        "setup": ["true"],
        "port": 29500,
        "local": "",
        "key": "0" * 32,
    },
    "sizes": [
        {
            "nodes": 1,
            "ranks_per_node": 1,
            "run": "nodes-1",
            "estimated_s": 60.0,
            "jobs": [{"job_id": "7", "launches": 0, "sessions": 0, "nodes": "n1", "fetched": False}],
        }
    ],
}


def write(folder: Path) -> None:
    """Write a submission of one size whose run was measured."""
    folder.mkdir()
    rundirs.write(folder / "nodes-1")
    (folder / "submission.json").write_text(json.dumps(DOCUMENT, indent=1), encoding="utf-8")


def _instead(path: Path, make: Callable[[Path], Any]) -> None:
    path.rename(path.with_name("aside"))
    make(path)


def _outcome(folder: Path) -> Path:
    return min(folder.glob("nodes-1/cases/*/launch-00/outcome.json"))


def _run_elsewhere(folder: Path) -> None:
    (folder / "nodes-1").rename(folder.parent / "elsewhere")
    (folder / "nodes-1").symlink_to("../elsewhere")


WAYS: dict[str, Callable[[Path], Any]] = {
    "run-is-a-link": _run_elsewhere,
    "run-is-a-pipe": lambda folder: _instead(folder / "nodes-1", os.mkfifo),
    "run-is-missing": lambda folder: shutil.rmtree(folder / "nodes-1"),
    "stray-run-is-a-link": lambda folder: (folder / "nodes-2").symlink_to(".."),
    "merged-is-a-link": lambda folder: (folder / "merged").symlink_to(".."),
    "merged-next-is-a-link": lambda folder: (folder / ".merged-new").symlink_to(".."),
    "file-is-a-link": lambda folder: _instead(
        folder / "submission.json", lambda path: path.symlink_to("aside")
    ),
    "file-is-a-pipe": lambda folder: _instead(folder / "submission.json", os.mkfifo),
    "file-is-empty": lambda folder: (folder / "submission.json").write_bytes(b""),
    "file-is-deep": lambda folder: (folder / "submission.json").write_bytes(b"[" * 100_000),
    "lock-is-a-link": lambda folder: (folder / ".lock").symlink_to("../owned"),
    "script-is-a-link": lambda folder: (folder / "nodes-1/job.sbatch").symlink_to("../../owned"),
    "script-is-a-pipe": lambda folder: os.mkfifo(folder / "nodes-1/job.sbatch"),
    "output-is-a-pipe": lambda folder: os.mkfifo(folder / "nodes-1/slurm-7.out"),
    "plan-is-a-pipe": lambda folder: _instead(folder / "nodes-1/plan.json", os.mkfifo),
    "sessions-are-a-pipe": lambda folder: _instead(folder / "nodes-1/sessions.json", os.mkfifo),
    "outcome-is-a-pipe": lambda folder: _instead(_outcome(folder), os.mkfifo),
    "outcome-is-a-device": lambda folder: _instead(
        _outcome(folder), lambda path: path.symlink_to("/dev/zero")
    ),
    "launch-is-a-link": lambda folder: _instead(_outcome(folder).parent, lambda path: path.symlink_to("/")),
}
"""Changes other than of a value in submission.json."""


@cache
def names() -> list[str]:
    """Return all ways to change a submission."""
    values = ("left-out", *(f"nasty-{name}" for name in NASTY), *rundirs.FEW, "empty-table")
    return [*WAYS, *(f"{dotted(path)}={value}" for path in leaves(DOCUMENT) if path for value in values)]


def change(folder: Path, name: str) -> None:
    """Change the submission in one of these ways."""
    if name in WAYS:
        WAYS[name](folder)
        return
    where, _, value = name.rpartition("=")
    path = next(path for path in leaves(DOCUMENT) if dotted(path) == where)
    word = NASTY.get(value.removeprefix("nasty-"))
    new = {} if value == "empty-table" else word if value.startswith("nasty-") else VALUES.get(value)
    document = without(DOCUMENT, path) if value == "left-out" else replaced(DOCUMENT, path, new)
    if path == ("slurm", "setup", 0) and isinstance(new, str) and "\n" not in new:
        document = DOCUMENT  # a line of the shell may do anything
    (folder / "submission.json").write_text(as_json(document), encoding="utf-8")
