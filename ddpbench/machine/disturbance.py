"""Measure what disturbs a launch: stolen CPU time, other processes, throttling and clock changes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddpbench.cpu_quota import memory_files, memory_quota
from ddpbench.records import Noise
from ddpbench.units import format_bytes

_SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    wall_s: float
    busy_s: float
    steal_s: float
    throttled_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Use of the cores during a launch (s), and the largest relative change of a core's clock.

    `available_s` is the launch's duration times the number of cores.
    """

    available_s: float
    busy_s: float
    steal_s: float
    throttled_s: float
    clock_change: float | None

    def noise(self, own_cpu_s: float, *, shared_machine: bool) -> Noise:
        """Return the noise of a launch whose own processes used `own_cpu_s` of CPU time (s)."""
        foreign_s = max(0.0, self.busy_s - own_cpu_s)
        return Noise(
            steal_fraction=round(self.steal_s / self.available_s, 5),
            foreign_fraction=round(foreign_s / self.available_s, 5),
            clock_change=None if self.clock_change is None else round(self.clock_change, 5),
            throttled_s=round(self.throttled_s, 5),
            shared_machine=shared_machine,
        )


def worst_of(noises: Sequence[Noise]) -> Noise:
    """Return the noise of a launch on several machines, with the worst machine's value of each quantity."""
    clocks = [noise.clock_change for noise in noises if noise.clock_change is not None]
    return Noise(
        steal_fraction=max((noise.steal_fraction for noise in noises), default=0.0),
        foreign_fraction=max((noise.foreign_fraction for noise in noises), default=0.0),
        clock_change=max(clocks, default=None),
        throttled_s=max((noise.throttled_s for noise in noises), default=0.0),
        shared_machine=any(noise.shared_machine for noise in noises),
    )


class NoiseWatch:
    """Measures the noise on a launch's cores, from construction until `stop`."""

    def __init__(
        self,
        cores: Sequence[int],
        ranks: Callable[[], Iterable[int]],
        *,
        shared_machine: bool,
        helpers: bool,
    ) -> None:
        """Begin to measure.

        `cores` are the cores of the ranks and their loader workers. `ranks` returns the ranks' process ids, once known.
        `helpers`: ranks start loader workers, whose CPU time `tick` must sample.
        """
        self._cores = frozenset(cores)
        self._ranks = ranks
        self._shared = shared_machine
        self._helpers = helpers
        self._helper_cpu_s: dict[int, float] = {}
        self._frequencies: dict[int, list[float]] = {}
        self._next_sample = 0.0
        self._start = self._sample()

    def _sample(self) -> _Sample:
        busy, steal = _core_times(self._cores)
        return _Sample(time.monotonic(), busy, steal, _throttled_s())

    def tick(self, *, computing: bool) -> None:
        """Sample the loader workers' CPU times and, if ranks are `computing`, the cores' clocks, once a second.

        An idle core's clock is low without any disturbance.
        """
        now = time.monotonic()
        if now < self._next_sample:
            return
        self._next_sample = now + _SAMPLE_S
        if self._helpers:
            self._watch_helpers()
        for core in self._cores if computing else ():
            path = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
            try:
                self._frequencies.setdefault(core, []).append(float(path.read_bytes()))
            except (OSError, ValueError):
                return

    def _watch_helpers(self) -> None:
        for rank in self._ranks():
            with contextlib.suppress(psutil.Error):
                for helper in psutil.Process(rank).children(recursive=True):
                    times = helper.cpu_times()
                    self._helper_cpu_s[helper.pid] = times.user + times.system

    def stop(self, ranks_cpu_s: float) -> Noise:
        """Return the noise since construction, given the CPU time of the launch's ranks (s)."""
        return self.totals().noise(ranks_cpu_s + self.helper_cpu_s, shared_machine=self._shared)

    @property
    def helper_cpu_s(self) -> float:
        """Return the CPU time of the ranks' loader workers (s), as last sampled by `tick`."""
        return sum(self._helper_cpu_s.values())

    def totals(self) -> Totals:
        """Return how all processes together have used the cores since construction."""
        end = self._sample()
        changes = [
            (max(seen) - min(seen)) / max(seen)
            for seen in self._frequencies.values()
            if len(seen) > 1 and max(seen) > 0
        ]
        return Totals(
            available_s=max(end.wall_s - self._start.wall_s, 1e-9) * max(len(self._cores), 1),
            busy_s=end.busy_s - self._start.busy_s,
            steal_s=end.steal_s - self._start.steal_s,
            throttled_s=end.throttled_s - self._start.throttled_s,
            clock_change=max(changes, default=None),
        )


def _core_times(cores: Container[int]) -> tuple[float, float]:
    """Return the cores' busy and stolen time since boot (s).

    psutil numbers cores by lines of /proc/stat, which is wrong if some are offline.
    """
    tick = os.sysconf("SC_CLK_TCK")
    busy = steal = 0
    for line in _text(Path("/proc/stat")).splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(field) for field in fields[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
    return busy / tick, steal / tick


def _throttled_s() -> float:
    """Return how long the CPU quota has throttled this control group (s); 0 without a quota."""
    for line in _lines(Path("/proc/self/cgroup")):
        if line.startswith("0::"):
            stat = Path("/sys/fs/cgroup") / line[3:].strip("/") / "cpu.stat"
            return sum(_counter(stat, "throttled_usec")) / 1e6
    return 0.0


def own_cpu_s() -> float:
    """Return the CPU time (s) of this process and all its descendants, including processes that have ended."""
    spent = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])  # user, system, and both of children that were waited for
    return spent


def oom_kills(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> int:
    """Return how often the out-of-memory killer has struck in this control group, or else on this machine."""
    for path in memory_files("memory.events", "memory.oom_control", sys_root, proc_root):
        if counts := _counter(path, "oom_kill"):
            return counts[0]
    return sum(_counter(proc_root / "vmstat", "oom_kill"))


OUT_OF = "ran out of"


def out_of_memory() -> str:
    """Return a phrase that says whether the machine or the control group ran out of memory, and what to do."""
    limit = memory_quota()
    whose = f"this machine {OUT_OF} memory"
    if limit is not None:
        whose = f"this control group {OUT_OF} its {format_bytes(limit)} of memory"
    return f"{whose}: use a smaller batch or model, or fewer ranks{'' if limit is None else ', or raise the limit'}"


def _text(path: Path) -> str:
    """Return the text of a kernel file, which may contain the names of control groups.

    In text mode, Python would store a decoder under a new name each time and never free it.
    """
    return os.fsdecode(path.read_bytes())


def _lines(path: Path) -> list[str]:
    try:
        return _text(path).splitlines()
    except OSError:
        return []


def _counter(path: Path, name: str) -> list[int]:
    return [int(line.split()[1]) for line in _lines(path) if line.split()[0] == name]


def own_environment_allows_sharing() -> bool:
    """Return whether DDPBENCH_SHARED_MACHINE=1 allows other sweeps on the same cores; all numbers are then flagged."""
    return os.environ.get("DDPBENCH_SHARED_MACHINE", "") == "1"
