"""The exceptions that ddpbench raises, and suggestions of similar names for their messages.

    DdpbenchError                 anything this package reports in a sentence
    ├── RequestError              the request was wrong: exit code 2
    │   ├── ExperimentError       an experiment, with all its problems listed
    │   ├── OutputError           a run directory that cannot be written
    │   ├── WorkloadError         a user's own workload that does not work
    │   ├── StrategyError         a user's own strategy that does not work
    │   ├── SideError             one side of a comparison that cannot start
    │   ├── IdentityError         a run directory of a different machine, experiment or schema
    │   ├── UnreadableError       a file of a run directory that is unreadable or no regular file; also a RecordError
    │   ├── InUseError            cores, GPUs or a run directory that another command uses: exit code 3
    │   └── MachineError          what the request needs is not here (GPUs, a backend, torch)
    │       └── FabricError       an emulated network that cannot be made here or misses the requested rates
    ├── RecordError               a record that cannot be read
    └── LaunchError               ranks that could not be started or watched
        └── ServerGoneError       the fork server has ended, and its ranks with it

`RequestError` is raised before anything starts. A rank's own failure is not an exception of this tree:
the rank writes a record (`RankOutcome`), which the process that started it reads.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from ddpbench.text_safety import on_one_line

_Error = TypeVar("_Error", bound="DdpbenchError")
_MOST_TOLD = 40
"""Most problems of an experiment to print; an array may have a thousand wrong values."""


def first_reason(*reasons: tuple[object, str]) -> str | None:
    """Return the sentence of the first pair whose condition is true, or None."""
    return next((why for applies, why in reasons if applies), None)


class DdpbenchError(Exception):
    """Anything this package reports to its user in a sentence, without a traceback."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copying and pickling use the attributes, because a subclass's constructor may not accept `args`."""
        return _restored, (type(self), self.args, self.__dict__)

    def reworded(self, message: str) -> Self:
        """Return a copy with this message."""
        return _restored(type(self), (message,), self.__dict__)


def _restored(kind: type[_Error], args: tuple[Any, ...], fields: Mapping[str, Any]) -> _Error:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class RequestError(DdpbenchError):
    """The request was wrong; nothing was started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A problem of an experiment: the setting's path, and a message that says what is wrong and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ExperimentError(RequestError):
    """An experiment that cannot be run; the message lists the experiment's problems, each once."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        head = f"{on_one_line(source)}: {count} problem{'s' if count != 1 else ''}"
        more = count - _MOST_TOLD
        left_out = [f"  and {more} more"] if more > 0 else []
        shown = [f"  {on_one_line(str(problem))}" for problem in self.problems[:_MOST_TOLD]]
        super().__init__("\n".join([head, *shown, *left_out]))


class OutputError(RequestError):
    """A run directory that cannot be written."""


class InUseError(RequestError):
    """Another command uses the cores, the GPUs or the run directory; the same command may succeed later."""


class WorkloadError(RequestError):
    """A user's own workload that does not work; if there are several problems, the message has a line for each."""


class StrategyError(RequestError):
    """A user's own strategy that does not work."""


class IdentityError(RequestError):
    """A run directory with results of a different machine, experiment or schema, or with files that are damaged."""


class SideError(RequestError):
    """A comparison in which one side cannot start; `side` is `base` or `new`."""

    def __init__(self, side: str, message: str) -> None:
        super().__init__(message)
        self.side = side


class MachineError(RequestError):
    """Something that the request needs is not on this machine."""


class FabricError(MachineError):
    """An emulated network that cannot be made on this machine, or does not reach the requested rates."""


class RecordError(DdpbenchError):
    """A record file that cannot be read; the message says which file, which line, and why."""


class UnreadableError(RequestError, RecordError):
    """A file of a run directory cannot be read, or is a link, a pipe or a device."""


class LaunchError(DdpbenchError):
    """Ranks that could not be started or watched."""


class ServerGoneError(LaunchError):
    """The fork server has ended, and its ranks with it; a new fork server can be started."""

    killed = False
    """True if a signal ended the server, so that a new one may last longer."""


MOST_LISTED = 12
"""Most names to list after a suggestion. A longer list would hide the suggestion."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the end of an error message about an unknown name: the nearest known name, then all known names.

    If a known name is near and more than `MOST_LISTED` names are known, the list of all names is left out. `cutoff` is
    the least similarity of a near name, from 0 to 1.
    """
    names = sorted(set(map(on_one_line, known)))
    guess = meant(name, names, cutoff)
    if guess and len(names) > MOST_LISTED:
        return guess.rstrip()
    return f"{guess}known: {', '.join(names) if names else 'none'}"


def meant(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean 'NAME'? ` for the nearest known name, with a blank at its end; empty if none is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}? " if close else ""


def meant_path(path: Path, accepts: Callable[[Path], bool]) -> str:
    """Return `; did you mean PATH?` for the most similarly named path in the folder of `path`; empty if none is near.

    Only paths for which `accepts` returns True are suggested.
    """
    try:
        names = [each.name for each in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    for name in difflib.get_close_matches(path.name, names, n=3, cutoff=0.7):
        near = path.with_name(name)
        if near.name != path.name and accepts(near):
            return f"; did you mean {str(near)!r}?"
    return ""


NOT_TRANSFERRED = "was not transferred"
"""End of the text of a `collectives.transport.CollectiveError` about a lost message. A launch's judge looks for it."""
