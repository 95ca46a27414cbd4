"""Checks and quotes the values in a job's script, so that each stays on one line and is one word."""

from __future__ import annotations

import re
import shlex

from ddpbench.errors import RequestError
from ddpbench.text_safety import shortened, unprintable

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@[]")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64


def one_line(what: str, text: str) -> str:
    """Check that a text fits on one line of a script, and return it; `what` names it in the error.

    Raises:
        RequestError: the text has a line break or another control character.
    """
    found = repr("\n") if "\n" in text else unprintable(text)
    if found:
        raise RequestError(
            f"{what} {shortened(text)} has the character {found}, which a job's script cannot hold: remove it"
        )
    return text


def for_sbatch(what: str, value: str) -> str:
    """Return a value for a `#SBATCH` line. If it needs quotes, add them, and escape quotes and backslashes in it.

    Raises:
        RequestError: a script cannot hold the value.
    """
    one_line(what, value)
    if value and _PLAIN.issuperset(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def job_output(run_dir: str) -> str:
    """Return the path of a job's output file in the run directory, in sbatch's notation, with `%j` for the job's id.

    Raises:
        RequestError: the path has a backslash. Slurm would drop it, ignore `%j`, and print to a different folder.
    """
    if "\\" in run_dir:
        raise RequestError(
            f"the submission's directory {shortened(run_dir)} has the character '\\', which is special "
            "to Slurm in the path of a job's output: rename the folder"
        )
    return run_dir.replace("%", "%%") + "/slurm-%j.out"


def for_shell(what: str, value: str) -> str:
    """Return a value as one word of the shell.

    Raises:
        RequestError: a script cannot hold the value.
    """
    return shlex.quote(one_line(what, value))


def job_name(experiment: str, nodes: int) -> str:
    """Return a job's name in Slurm's queue, such as `strategies-4`, from the experiment's name and the number of nodes.

    Characters other than letters, digits and `._-` become hyphens.
    """
    stem = _NOT_IN_A_NAME.sub("-", experiment)[:_LONGEST_NAME].strip("-.")
    return f"{stem or 'ddpbench'}-{nodes}"
