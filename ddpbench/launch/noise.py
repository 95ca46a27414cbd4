"""Watches what else the machine does during a launch: stolen time, other processes, clock changes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddpbench.records import Noise

_SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float


class NoiseWatch:
    """From its making to `stop`: one launch."""

    def __init__(self, cores: Sequence[int], server_pid: int, *, shared_machine: bool) -> None:
        self._cores = tuple(cores)
        self._server = psutil.Process(server_pid)
        self._shared = shared_machine
        self._frequencies: dict[int, list[float]] = {}
        self._next_sample = 0.0
        self._start = self._sample()

    def _sample(self) -> _Sample:
        busy = steal = 0.0
        per_core = psutil.cpu_times(percpu=True)
        for core in self._cores:
            times = per_core[core]
            # guest time is part of user time, and guest_nice of nice
            busy += times.user + times.nice + times.system + times.irq + times.softirq
            steal += times.steal
        try:
            server = self._server.cpu_times()
            own = time.process_time() + server.user + server.system
        except psutil.Error:
            own = time.process_time()
        return _Sample(time.monotonic(), busy, steal, own)

    def tick(self) -> None:
        """Reads the cores' frequencies, at most once a second; call it while ranks compute."""
        now = time.monotonic()
        if now < self._next_sample:
            return
        self._next_sample = now + _SAMPLE_S
        for core in self._cores:
            path = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
            try:
                self._frequencies.setdefault(core, []).append(float(path.read_text(encoding="ascii")))
            except (OSError, ValueError):
                return

    def stop(self, ranks_cpu_s: float) -> Noise:
        """What was seen. `ranks_cpu_s` is the CPU time of the launch's own ranks, seconds."""
        end = self._sample()
        available = max(end.wall_s - self._start.wall_s, 1e-9) * len(self._cores)
        own = ranks_cpu_s + end.own_s - self._start.own_s
        foreign = max(0.0, end.busy_s - self._start.busy_s - own)
        changes = [
            (max(seen) - min(seen)) / max(seen)
            for seen in self._frequencies.values()
            if len(seen) > 1 and max(seen) > 0
        ]
        return Noise(
            steal_fraction=round((end.steal_s - self._start.steal_s) / available, 5),
            foreign_fraction=round(foreign / available, 5),
            clock_change=round(max(changes), 5) if changes else None,
            shared_machine=self._shared,
        )


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck in this control group or on this machine."""
    group = Path("/proc/self/cgroup")
    counts: list[int] = []
    try:
        for line in group.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                events = Path("/sys/fs/cgroup") / line[3:].strip("/") / "memory.events"
                counts += _counter(events, "oom_kill")
    except OSError:
        pass
    counts += _counter(Path("/proc/vmstat"), "oom_kill")
    return sum(counts)


def _counter(path: Path, name: str) -> list[int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) for line in lines if line.split()[0] == name]


def own_environment_allows_sharing() -> bool:
    """Whether DDPBENCH_SHARED_MACHINE=1 allows another sweep on the same cores; numbers are then flagged."""
    return os.environ.get("DDPBENCH_SHARED_MACHINE", "") == "1"
