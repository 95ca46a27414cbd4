"""The request for a submission to Slurm, and the checks that are made before Slurm sees it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.errors import RequestError
from ddpbench.launch.slurm.words import one_line
from ddpbench.spec import limits
from ddpbench.text_safety import command, shortened
from ddpbench.units import parse_seconds

AUTO = "auto"
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_FOLDER = re.compile(r"(?:/|\$\w++|\$\{\w+\})(?:[\w./-]|\$\w++|\$\{\w+\})*+", re.ASCII)
_OWN = {
    "nodes": "give --nodes",
    "ntasks-per-node": "give --ranks-per-node",
    "time": "give --time",
    **dict.fromkeys(
        ("ntasks", "array", "wrap"), "a job has one slot for each rank that its nodes have room for"
    ),
    **dict.fromkeys(
        ("output", "error", "open-mode"),
        "a job's output goes into its run directory, where ddpbench looks for it",
    ),
    **dict.fromkeys(("clusters", "cluster"), "submit from a login node of that cluster"),
    **dict.fromkeys(("parsable", "wait", "test-only", "quiet"), "ddpbench submit does the same itself"),
}
"""Options of sbatch that a submission does not accept, each with advice or the reason."""
_READING = ("bbf", "export-file")
"""Options with which sbatch reads a file here for the job. A stranger's submission could name any file of the user."""
_ALIKE = frozenset({"bb", "export"})
"""Options whose names are the beginning of another one's in `_READING`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An option of sbatch that fits on one line of a script. An option without a value is a switch.

    Raises:
        RequestError: the name cannot be an option's name, or the option is not accepted (see `_OWN` and `_READING`).
    """

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        if not _OPTION.fullmatch(self.name):
            raise RequestError(
                f"{shortened(self.name)} is not an option of sbatch: give its long name, such as qos=high or hold"
            )
        # sbatch accepts abbreviated names
        if own := next((one for one in _OWN if one.startswith(self.name)), None):
            raise RequestError(f"{command('--sbatch', self.name)} is not accepted: {_OWN[own]}")
        if self.name not in _ALIKE and any(one.startswith(self.name) for one in _READING):
            raise RequestError(
                f"{command('--sbatch', self.name)} is not accepted: sbatch would read a file of this machine: "
                "copy what the job needs, and read it in --setup"
            )
        if self.value is not None:
            one_line(f"--{self.name}", self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The options of Slurm jobs for an experiment.

    `sizes` has the number of nodes of each job, ascending. `time_s` is the time limit in seconds; None derives it from
    the estimate. `setup` has shell lines that run first, such as `module load cuda`. `port` is the port on the first
    node at which slots meet; None derives it from the job's id. `local` is a folder on each node's own disk, for
    clusters without a shared directory, or empty. The nodes' shells expand variables in `local`.
    """

    sizes: tuple[int, ...]
    ranks_per_node: int
    time_s: float | None = None
    options: tuple[Option, ...] = ()
    setup: tuple[str, ...] = ()
    port: int | None = None
    local: str = ""

    def __post_init__(self) -> None:
        limits.RANKS_PER_NODE.check_flag("--ranks-per-node", self.ranks_per_node)
        limits.RANKS.check_flag("--nodes x --ranks-per-node", self.sizes[-1] * self.ranks_per_node)
        if self.time_s is not None:
            limits.TIME_LIMIT_S.check_flag("--time", self.time_s)
        if self.port is not None:
            limits.PORT.check_flag("--port", self.port)
        twice = [name for name, count in Counter(option.name for option in self.options).items() if count > 1]
        if twice:
            raise RequestError(f"--{twice[0]} is given twice: leave one out")
        for line in self.setup:
            one_line("--setup", line)
        if self.local and not _FOLDER.fullmatch(self.local):
            raise RequestError(
                f"--local {shortened(self.local)}: give an absolute path on the nodes, with only "
                "letters, digits, . _ - / and shell variables, such as '/scratch/$USER'"
            )

    def value(self, name: str) -> str | None:
        """Return an option's value; None if the option is not given, or has no value."""
        return next((option.value for option in self.options if option.name == name), None)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of nodes, such as `1,2,4`, and return them in ascending order.

    Raises:
        RequestError: the text is not of that form, or a number is out of range or given twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise RequestError(
            f"--nodes {shortened(text)}: give numbers of nodes, such as --nodes 1,2,4: each is a separate job"
        )
    sizes = [int(limits.NODES.read_flag("--nodes", part)) for part in parts]
    if len(set(sizes)) < len(sizes):
        raise RequestError(f"--nodes {shortened(text)}: a number of nodes is given twice")
    return tuple(sorted(sizes))


def parse_option(text: str) -> Option:
    """Parse an option of sbatch, such as `qos=high` or `hold`.

    Raises:
        RequestError: the text is not an option, or the option is not accepted.
    """
    name, equals, value = text.partition("=")
    name = name.strip().removeprefix("--")
    if not _OPTION.fullmatch(name):
        raise RequestError(
            f"--sbatch {shortened(text)}: give an option of sbatch by its long name, such as qos=high or hold"
        )
    return Option(name=name, value=value if equals else None)


def parse_time(text: str) -> float | None:
    """Parse a time limit into seconds: `45 min`, or in Slurm's form `2:30:00`, `1-12` (days-hours) or `90` (minutes).

    The result is None for `auto`.

    Raises:
        RequestError: the text is none of these, or longer than a job may request.
    """
    text = text.strip()
    if text == AUTO:
        return None
    if match := _CLOCK.fullmatch(text):
        days, first, second, third = match.groups()
        parts = [int(part or 0) for part in (first, second, third)]
        if days is not None:
            seconds = 86400.0 * int(days) + 3600 * parts[0] + 60 * parts[1] + parts[2]
        elif third is not None:
            seconds = 3600.0 * parts[0] + 60 * parts[1] + parts[2]
        else:
            seconds = 60.0 * parts[0] + parts[1]
    else:
        try:
            seconds = parse_seconds(text)
        except ValueError:
            raise RequestError(
                f"--time {shortened(text)}: give auto, a duration such as '45 min', or Slurm's "
                "[DAYS-]HOURS:MINUTES:SECONDS"
            ) from None
    limits.TIME_LIMIT_S.check_flag("--time", seconds)
    return seconds


def slurm_time(seconds: float) -> str:
    """Return a time limit in Slurm's format, such as `1-02:30:00`, rounded up to minutes."""
    minutes = math.ceil(seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def options_of(
    named: Sequence[tuple[str, str | None]], given: Sequence[str], *, exclusive: bool
) -> tuple[Option, ...]:
    """Return sbatch's options: the `named` ones with a value, then those `given` as text."""
    own = [Option(name=name, value=value) for name, value in named if value is not None]
    return (
        *own,
        *([Option(name="exclusive")] if exclusive else []),
        *(parse_option(text) for text in given),
    )
