"""Values in a job's script: only this module checks that each is one line, and quotes it as one word."""

from __future__ import annotations

import re
import shlex

from ddpbench.errors import RequestError
from ddpbench.text_safety import shortened, unprintable

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@[]")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64


def one_line(what: str, text: str) -> str:
    """Return a text that fits on one line of a script; a message names it `what`.

    Raises:
        RequestError: it has a line break or another control character.
    """
    found = repr("\n") if "\n" in text else unprintable(text)
    if found:
        raise RequestError(
            f"{what} {shortened(text)}: a job's script cannot hold the character {found}; leave it out"
        )
    return text


def for_sbatch(what: str, value: str) -> str:
    """Return a value as sbatch reads it from a `#SBATCH` line: quoted, with a backslash before quotes and backslashes.

    Raises:
        RequestError: a script cannot hold it.
    """
    one_line(what, value)
    if value and _PLAIN.issuperset(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def job_output(run_dir: str) -> str:
    """Return a job's output file in sbatch's notation: a file of the run directory with the job's number in its name.

    Raises:
        RequestError: it has a backslash. Slurm would drop it, put no number in the name, and print to another folder.
    """
    if "\\" in run_dir:
        raise RequestError(
            f"the submission's directory {shortened(run_dir)}: a job's script cannot hold the character '\\' in the "
            "path of its output, for which Slurm takes another; rename the folder"
        )
    return run_dir.replace("%", "%%") + "/slurm-%j.out"


def for_shell(what: str, value: str) -> str:
    """Return a value as one word of the shell.

    Raises:
        RequestError: a script cannot hold it.
    """
    return shlex.quote(one_line(what, value))


def job_name(experiment: str, nodes: int) -> str:
    """Return a job's name in the queue: the experiment's file name, with a hyphen for what is not a letter, digit or
    one of `._-`, and the number of nodes."""
    stem = _NOT_IN_A_NAME.sub("-", experiment)[:_LONGEST_NAME].strip("-.")
    return f"{stem or 'ddpbench'}-{nodes}"
