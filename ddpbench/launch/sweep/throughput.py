"""The throughput of a launch, during and after it, for progress lines."""

from __future__ import annotations

import time

from ddpbench.launch.listener import Listener
from ddpbench.records import Block, RunDir, read_launch
from ddpbench.records.heartbeat import Pulse
from ddpbench.spec import Case, PlannedCase


class ThroughputSoFar:
    """Computes a running launch's throughput from the step counts in heartbeats, and reports it to a listener."""

    def __init__(self, entry: PlannedCase, listener: Listener) -> None:
        self._entry, self._listener = entry, listener
        self._first: tuple[float, int] | None = None

    def pulse(self, pulse: Pulse) -> None:
        """Report a heartbeat to the listener, with the samples per second since the first heartbeat of timed steps."""
        now = time.monotonic()
        rate: float | None = None
        if pulse.phase == "timed steps":
            if self._first is None:
                self._first = (now, pulse.steps)
            elif pulse.steps > self._first[1] and now > self._first[0]:
                steps, case = pulse.steps - self._first[1], self._entry.case
                rate = case.dilation * steps * case.global_batch / (now - self._first[0])
        self._listener.pulse(self._entry, pulse, rate)


def launch_throughput(run: RunDir, case: Case, number: int) -> float | None:
    """Return the throughput of a case's launch in round `number`, samples/s by rank 0's clock; None if not recorded."""
    for rank in read_launch(run.launch(case.case_id, "measure", number)).ranks:
        blocks = [block for block in rank.of(Block) if block.phase == "timed"]
        if rank.rank == 0 and blocks:
            seconds = sum(block.end_ns - block.start_ns for block in blocks) / 1e9 / case.dilation
            return sum(block.steps for block in blocks) * case.global_batch / seconds
    return None
