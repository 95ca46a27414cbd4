"""A shared page in which each rank counts its steps, so that a watchdog can follow them without disturbing
them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ddpbench.spec.limits import MAX_RANKS

PHASES: Sequence[str] = (
    "starting",
    "building the model",
    "meeting the other ranks",
    "proof",
    "warm-up",
    "timed steps",
    "instrumented steps",
    "evaluation",
    "checkpoints",
    "training to a loss",
    "training with snapshots",
    "finishing",
    "waiting for its turn",
)
_SLOT_WORDS = 2  # steps made, and the index of the phase
PAGE_BYTES = MAX_RANKS * _SLOT_WORDS * 8


WORDS_BYTES = MAX_RANKS * 2 * 8
"""Bytes behind the page, used if another launcher starts ranks: each rank's process, and how it ended."""
_PID_BITS = 22
"""Linux has no larger process ids. The bits above hold the process's start time, which no later process
shares.
"""
_KNOWN = 1 << 16  # added to an exit code: 0 and signals differ from an empty word


def note_pid(page: mmap.mmap, rank: int) -> None:
    """Record this process as a rank's, behind the page."""
    memoryview(page).cast("Q")[PAGE_BYTES // 8 + 2 * rank] = _began(os.getpid()) << _PID_BITS | os.getpid()


def noted_pid(words: memoryview, rank: int) -> int:
    """Return a rank's process id; 0 before it is known."""
    word: int = words[PAGE_BYTES // 8 + 2 * rank]
    return word & (1 << _PID_BITS) - 1


def noted_lives(words: memoryview, rank: int) -> bool:
    """Return whether the process recorded as a rank's still exists; by now its id may belong to another
    process.
    """
    word: int = words[PAGE_BYTES // 8 + 2 * rank]
    began = word >> _PID_BITS
    return bool(began) and began == _began(noted_pid(words, rank))


def _began(pid: int) -> int:
    """Return when a process began, in the kernel's ticks since boot; 0 if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rpartition(b")")[2].split()[19])


def note_end(page: mmap.mmap, rank: int, code: int) -> None:
    """Record how a rank's process ended: its exit code, negative for a signal."""
    memoryview(page).cast("Q")[PAGE_BYTES // 8 + 2 * rank + 1] = _KNOWN + code


def noted_end(words: memoryview, rank: int) -> int | None:
    """Return how a rank's process ended; None if that is not known, for example because its launcher ended
    it.
    """
    word: int = words[PAGE_BYTES // 8 + 2 * rank + 1]
    return word - _KNOWN if word else None


def shared_page(path: Path) -> mmap.mmap:
    """Return the page that a file holds, shared with other processes that map it.

    Raises:
        OSError: the file cannot be opened, or is empty.
    """
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class Heartbeat:
    """Slot of one rank. Counting a step costs a memory write; no other process writes there."""

    def __init__(self, page: mmap.mmap | bytearray, rank: int) -> None:
        self._words = memoryview(page).cast("Q")
        self._steps = _SLOT_WORDS * rank
        self._words[self._steps] = 0
        self._words[self._steps + 1] = 0

    def end_forks(self, leave: Callable[[], NoReturn]) -> None:
        """Make processes forked from here call `leave` instead of counting a step or entering a phase."""
        os.register_at_fork(after_in_child=lambda: setattr(self, "_words", _Forbidden(leave)))

    def beat(self) -> None:
        """Count a step."""
        self._words[self._steps] += 1

    def enter(self, phase: str) -> None:
        """Record the phase; the watchdog counts it as a sign of life."""
        self._words[self._steps + 1] = PHASES.index(phase)

    @property
    def pulse(self) -> Pulse:
        """Return the slot's present contents."""
        return read_pulse(self._words, self._steps // _SLOT_WORDS)


class _Forbidden:
    """A stand-in for the page in a process that must not count: it ends on any access. The rank itself pays
    no cost.
    """

    def __init__(self, leave: Callable[[], NoReturn]) -> None:
        self._leave = leave

    def __getitem__(self, _: int) -> NoReturn:
        self._leave()

    def __setitem__(self, _: int, __: int) -> NoReturn:
        self._leave()


@dataclass(frozen=True, slots=True)
class Pulse:
    """Contents of a rank's slot at one moment."""

    steps: int
    phase: str


def read_pulse(words: memoryview, rank: int) -> Pulse:
    """Return a rank's slot of a page seen as 64-bit words (`memoryview(page).cast("Q")`)."""
    index = words[_SLOT_WORDS * rank + 1]
    return Pulse(words[_SLOT_WORDS * rank], PHASES[index] if index < len(PHASES) else "unknown")
