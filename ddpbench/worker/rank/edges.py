"""Read counters right before and after a block of steps, outside the timed part, and make records from them."""

from __future__ import annotations

from ddpbench.measure.pacer import Pacer
from ddpbench.records import Block, Pace, Record, Traffic
from ddpbench.worker.rank.traffic import LinkCounters


class Edges:
    """Reads a rank's counters before and after each block of steps. Also activates a replay's pacer."""

    def __init__(self, pacer: Pacer | None, link: LinkCounters | None = None) -> None:
        self._pacer = pacer
        self._link = link
        self._carried = [(0, 0), (0, 0)]
        if pacer is not None:
            pacer.active = True
        self._lateness_ns: tuple[int, ...] = ()
        self._optimizer_ns = 0

    def at_edge(self) -> None:
        """Read the counters. `Stepper` calls this method at the beginning and end of each block (`Stepper.at_edge`)."""
        if self._link is not None:
            self._carried = [self._carried[1], self._link.read()]
        if self._pacer is not None:
            self._lateness_ns, self._optimizer_ns = self._pacer.take()

    def records(self, block: Block) -> list[Record]:
        """Return records of the counters' changes during the block that has just ended."""
        records: list[Record] = []
        if self._pacer is not None:
            records.append(
                Pace(
                    phase=block.phase,
                    index=block.index,
                    lateness_ns=self._lateness_ns,
                    cpu_ns=block.cpu_ns or 0,
                    optimizer_ns=self._optimizer_ns,
                    optimizer_due_ns=self._pacer.update_due_ns,
                )
            )
        if self._link is not None:
            (sent, received), (sent_then, received_then) = self._carried
            records.append(
                Traffic(
                    phase=block.phase,
                    index=block.index,
                    steps=block.steps,
                    node=self._link.node,
                    sent_bytes=sent_then - sent,
                    received_bytes=received_then - received,
                )
            )
        return records
