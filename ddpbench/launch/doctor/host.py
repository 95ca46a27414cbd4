"""Sources that checks read (system files, commands and the network), which tests can replace."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpbench.guard import signal_name
from ddpbench.helper_process import child_environment
from ddpbench.launch.catalog import TableCatalog
from ddpbench.machine.hardware import Hardware, read_hardware
from ddpbench.machine.interfaces import Interface, list_interfaces, look_up
from ddpbench.spec import Catalog

TORCH_TIMEOUT_S = 120.0
"""Time limit for a first import of torch, seconds. The import takes long from a slow disk."""
COMMAND_TIMEOUT_S = 20.0
"""Time limit for a command, seconds; nvidia-smi is slow if no process keeps the driver loaded."""

ASK_TORCH = (sys.executable, "-P", "-m", "ddpbench.worker.checkup")
GPU_FIELDS = (
    *("index", "name", "memory.total", "memory.used", "utilization.gpu", "pci.bus_id"),
    *("driver_version", "persistence_mode", "compute_mode", "mig.mode.current"),
)
ASK_GPUS = ("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
ASK_GPU_LINKS = ("nvidia-smi", "topo", "-m")


@dataclass(frozen=True, slots=True)
class Reply:
    """A command's exit code and output. `code` is None if the command could not be started or took too long."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def last_words(self) -> str:
        """The last line of the command's error output, or else of its output, or else how it ended."""
        for text in (self.err, self.out):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1]
        if self.code is not None and self.code < 0:
            return f"ended by {signal_name(-self.code)}"
        return f"exit code {self.code}" if self.code is not None else "no answer"


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system's size and free space, bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """CPU use over some time: the mean number of busy cores, and the fraction of time that the hypervisor took away."""

    busy_cores: float
    stolen_share: float
    users: tuple[tuple[str, float], ...]
    """Names of the busiest processes, and how many cores each uses. They may run on cores that are not measured."""


@dataclass(frozen=True, slots=True)
class TorchAnswer:
    """Torch's report about its build and devices (made by `ddpbench.worker.checkup`), or why it is missing."""

    facts: dict[str, Any] | None
    failure: str = ""
    code: int | None = 0


def run_command(argv: Sequence[str], timeout_s: float) -> Reply:
    """Run a command to its end and return its reply, which also reports a failed start or a timeout."""
    try:
        done = subprocess.run(
            argv,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Reply(None, err=f"no answer within {timeout_s:.0f} s")
    except OSError as error:
        return Reply(None, err=error.strerror or str(error))
    return Reply(done.returncode, done.stdout, done.stderr)


def _disk(path: Path) -> Disk:
    usage = shutil.disk_usage(path)
    return Disk(usage.total, usage.free)


@dataclass(kw_only=True)
class Host:
    """The facts about a machine that checks read. Each field is a source of facts, by default about this machine."""

    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    dev_root: Path = Path("/dev")
    etc_root: Path = Path("/etc")
    folder: Path = field(default_factory=Path.cwd)
    """The working directory, which contains or will contain reports/."""
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    host_name: str = field(default_factory=socket.gethostname)
    run: Callable[[Sequence[str], float], Reply] = run_command
    resolve: Callable[[str], list[str]] = look_up
    interfaces: Callable[[], list[Interface]] = list_interfaces
    disk: Callable[[Path], Disk] = _disk
    writable: Callable[[Path], bool] = lambda path: os.access(path, os.W_OK | os.X_OK)
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    which: Callable[[str], str | None] = shutil.which
    c_library: str = field(default_factory=lambda: platform.libc_ver()[0])
    """`glibc`, or empty for another C library."""
    pause: Callable[[float], None] = time.sleep
    catalog: Catalog = field(default_factory=TableCatalog)
    """The available strategies and workloads."""
    load: CpuLoad | None = None
    """The load before the checks start working, as measured by `examine`."""
    _asked: dict[tuple[str, ...], Future[Reply]] = field(default_factory=dict)

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Start slow commands in the thread pool, so that they run during the other checks."""
        self._asked[ASK_TORCH] = pool.submit(self.run, ASK_TORCH, TORCH_TIMEOUT_S)
        if self.which("nvidia-smi") is not None:
            for argv in (ASK_GPUS, ASK_GPU_LINKS):
                self._asked[argv] = pool.submit(self.run, argv, COMMAND_TIMEOUT_S)

    def ask(self, *argv: str) -> Reply:
        """Return a command's reply. If `begin` has started the command, wait for it, otherwise run the command now."""
        begun = self._asked.get(argv)
        return begun.result() if begun is not None else self.run(argv, COMMAND_TIMEOUT_S)

    def read(self, path: Path) -> str:
        """Return a file's text, stripped; empty if it cannot be read."""
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; none if it cannot be read."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except OSError:
            return []

    def hardware(self) -> Hardware:
        """Return the machine's cores and GPUs, read without torch.

        Raises:
            MachineError: this is not Linux.
        """
        return read_hardware(self.sys_root, self.proc_root, self.dev_root)

    def torch(self) -> TorchAnswer:
        """Wait for torch's report about its build and devices, and return it."""
        reply = self.ask(*ASK_TORCH)
        if reply.code == 0:
            try:
                facts = json.loads(reply.out.splitlines()[-1])
            except (IndexError, ValueError):
                return TorchAnswer(None, "its answer could not be read")
            return TorchAnswer(facts)
        return TorchAnswer(None, reply.last_words, reply.code)

    def group_numbers(self, controller: str, unified: str, legacy: str) -> list[int]:
        """Return a number about this process's control group and about each parent group, innermost group first.

        It is in the group's file `unified` (v2) or `legacy` (v1, of `controller`). Unreadable files and `max` are left
        out.
        """
        numbers: list[int] = []
        for line in self.read(self.proc_root / "self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0":
                base, name = self.sys_root / "fs/cgroup", unified
            elif controller in controllers.split(","):
                base, name = self.sys_root / "fs/cgroup" / controller, legacy
            else:
                continue
            parts = [part for part in path.split("/") if part]
            for depth in range(len(parts), -1, -1):
                text = self.read(base.joinpath(*parts[:depth]) / name)
                if text.isdigit():
                    numbers.append(int(text))
        return numbers
