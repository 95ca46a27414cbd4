"""The memory of launches that wait for their turn: how many may alternate, and a sentence on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddpbench.launch.memory import SERVER_BYTES, processes_of
from ddpbench.launch.sweep.interleaved import MOST_AT_ONCE, MOST_MEMORY, rotations
from ddpbench.machine.placement import early_env
from ddpbench.spec import Case, PlannedCase
from ddpbench.units import counted, format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingMemory:
    """The estimated memory of the group of launches that needs most, while its smallest launch computes."""

    ranks: int
    """Number of ranks that wait."""
    needed_bytes: int
    """Memory of these ranks and of the fork servers."""
    free_bytes: int
    most: int
    """Most launches that alternate, so that they together need at most `MOST_MEMORY` of the free memory."""
    split: bool
    """True if more launches would alternate if there were more memory."""

    def __str__(self) -> str:
        """Return the estimate as a sentence."""
        verb = "waits" if self.ranks == 1 else "wait"
        free = format_bytes(self.free_bytes)
        text = f"{counted(self.ranks, 'rank')} {verb} with about {format_bytes(self.needed_bytes)} of {free} free"
        if not self.split:
            return text
        limit = f"to stay under {100 * MOST_MEMORY:.0f} % of the free memory"
        if self.most == 1:
            return f"launches run one after another, {limit}: if two alternated, {text}"
        return f"{text}; at most {self.most} launches alternate, {limit}"


def waiting_memory(
    planned: Sequence[PlannedCase],
    turns: Literal["launches", "blocks", "auto"],
    bytes_of: Callable[[Case], int | None],
    free_bytes: int,
    *,
    most: int = MOST_AT_ONCE,
) -> WaitingMemory | None:
    """Estimate the memory of launches that alternate, at most `most` at once.

    `bytes_of` returns a launch's memory in bytes, or None if it is unknown. The result is None if no launches alternate
    or if the memory of any that would is unknown.
    """
    groups = _groups(planned, turns, most)
    needs = {entry: bytes_of(entry.case) for group in groups for entry in group}
    known = {entry: need for entry, need in needs.items() if need is not None}
    if not groups or len(known) < len(needs):
        return None
    servers = SERVER_BYTES * len({tuple(early_env(entry.case).items()) for entry in known})
    largest = max(map(len, groups))

    def need(group: Sequence[PlannedCase]) -> int:
        return servers + sum(known[entry] for entry in group)

    fitting = groups
    allowed = largest
    while allowed > 1 and any(need(group) > MOST_MEMORY * free_bytes for group in fitting):
        allowed -= 1
        fitting = _groups(planned, turns, allowed) if allowed > 1 else fitting
    shown = max(fitting, key=need)
    smallest = min(shown, key=known.__getitem__)
    waiting = [entry for entry in shown if entry is not smallest]
    return WaitingMemory(
        ranks=sum(processes_of(entry.case) for entry in waiting),
        needed_bytes=servers + sum(known[entry] for entry in waiting),
        free_bytes=free_bytes,
        most=most if allowed == largest else allowed,
        split=allowed < largest,
    )


def _groups(
    planned: Sequence[PlannedCase], turns: Literal["launches", "blocks", "auto"], most: int
) -> list[Sequence[PlannedCase]]:
    """Return the groups of two or more launches that alternate."""
    every = rotations(planned, planned, turns, most=most)
    return [group for rotation in every for group in rotation.groups if len(group) > 1]
