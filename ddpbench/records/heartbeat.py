"""Shared memory (the page) in which each rank counts its steps in its slot, so that a watchdog can follow ranks."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ddpbench.spec.limits import MAX_RANKS

WAITING = "waiting for its turn"
"""Phase of rank 0 while its launch waits for another launch to compute. Meanwhile the rank alternates between this
phase and the phase in which it waits.
"""
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
    WAITING,
)
_SLOT_WORDS = 2  # steps made, and the index of the phase
PAGE_BYTES = MAX_RANKS * _SLOT_WORDS * 8
"""Number of bytes of a launch's page. A fork server has one page per concurrent launch, one after the other."""

WORDS_BYTES = MAX_RANKS * 2 * 8
"""Number of bytes after the page, which record each rank's process and exit code if another launcher starts ranks."""
_PID_BITS = 22
"""Number of bits of a process id on Linux. The higher bits have the process's start time, by which a reused id is
recognised.
"""
_KNOWN = 1 << 16  # added to an exit code, so that the word of an ended process is above 0


def note_pid(page: mmap.mmap, rank: int) -> None:
    """Record this process as the process of a rank, in the bytes after the shared page."""
    memoryview(page).cast("Q")[PAGE_BYTES // 8 + 2 * rank] = _began(os.getpid()) << _PID_BITS | os.getpid()


def noted_pid(words: memoryview, rank: int) -> int:
    """Return the id of the process recorded for a rank; 0 if none was recorded."""
    word: int = words[PAGE_BYTES // 8 + 2 * rank]
    return word & (1 << _PID_BITS) - 1


def noted_lives(words: memoryview, rank: int) -> bool:
    """Return whether the process recorded for a rank still exists. A later process with the same id does not count."""
    word: int = words[PAGE_BYTES // 8 + 2 * rank]
    began = word >> _PID_BITS
    return bool(began) and began == _began(noted_pid(words, rank))


def _began(pid: int) -> int:
    """Return a process's start in ticks since boot; 0 if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rpartition(b")")[2].split()[19])


def note_end(page: mmap.mmap, rank: int, code: int) -> None:
    """Record the exit code of a rank's process, which is negative if a signal ended the process."""
    memoryview(page).cast("Q")[PAGE_BYTES // 8 + 2 * rank + 1] = _KNOWN + code


def noted_end(words: memoryview, rank: int) -> int | None:
    """Return the recorded exit code of a rank's process, negative for a signal; None if none was recorded."""
    word: int = words[PAGE_BYTES // 8 + 2 * rank + 1]
    return word - _KNOWN if word else None


def shared_page(path: Path) -> mmap.mmap:
    """Map the file of the shared memory. All processes that map this file share the memory.

    Raises:
        OSError: the file cannot be opened, or is empty.
    """
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class Heartbeat:
    """A rank's slot in the shared memory. Only this rank writes to it, and counting a step is one write."""

    def __init__(self, page: mmap.mmap | bytearray | memoryview, rank: int) -> None:
        self._words = memoryview(page).cast("Q")
        self._steps = _SLOT_WORDS * rank
        self._words[self._steps] = 0
        self._words[self._steps + 1] = 0

    def end_forks(self, leave: Callable[[], NoReturn]) -> None:
        """Make every later forked process `leave` when it counts a step or enters a phase."""
        os.register_at_fork(after_in_child=lambda: setattr(self, "_words", _Forbidden(leave)))

    def beat(self) -> None:
        """Count a step."""
        self._words[self._steps] += 1

    def enter(self, phase: str) -> None:
        """Record that the rank enters a phase, which the watchdog also counts as a sign of life."""
        self._words[self._steps + 1] = PHASES.index(phase)

    @property
    def pulse(self) -> Pulse:
        """Return the present contents of the slot."""
        return read_pulse(self._words, self._steps // _SLOT_WORDS)


class _Forbidden:
    """Replaces the shared memory in a forked process, which must not count steps; any access calls `leave`."""

    def __init__(self, leave: Callable[[], NoReturn]) -> None:
        self._leave = leave

    def __getitem__(self, _: int) -> NoReturn:
        self._leave()

    def __setitem__(self, _: int, __: int) -> NoReturn:
        self._leave()


@dataclass(frozen=True, slots=True)
class Pulse:
    """The contents of a rank's slot at one moment, which are the number of the rank's steps and its phase."""

    steps: int
    phase: str


def read_pulse(words: memoryview, rank: int) -> Pulse:
    """Return the contents of a rank's slot.

    `words` is the shared memory as 64-bit words (`memoryview(page).cast("Q")`).
    """
    index = words[_SLOT_WORDS * rank + 1]
    return Pulse(words[_SLOT_WORDS * rank], PHASES[index] if index < len(PHASES) else "unknown")
