"""The sweeps that faults are tried on: small, with real ranks, each with the roles of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.campaign import oracle

ROOT = Path(__file__).parents[2]
_ALL = ("start", "inspection", "proof", "launch", "timed", "between", "report")
_RANKS = ("inspection", "proof", "launch", "timed")
_HEAD = f"""
question = "What becomes of a sweep when something breaks?"
[base]
strategy = "ddp"
world_size = 2
local_batch = 4
workload = "{ROOT}/tests/failures/faulty.py:Sound"
"""
_BUDGET = """
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = "300 ms"
hang_timeout = "15 s"
"""


@dataclass(frozen=True)
class Command:
    """A running command, with its output in files: it continues without a reader."""

    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    tag: str
    folder: Path
    began: float
    other_nodes: Sequence[subprocess.Popen[bytes]] = ()
    """Agents of other nodes."""

    def ended(self, within_s: float) -> oracle.Ended:
        """Return it ended, or killed after `within_s` seconds if it was still running."""
        code: int | None
        try:
            code = self.process.wait(within_s)
            for other in self.other_nodes:
                other.wait(within_s)
        except subprocess.TimeoutExpired:
            code = None
            for process in (self.process, *self.other_nodes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out, stderr = (
            (self.folder / f"{self.tag}.{name}").read_bytes().decode("utf-8", "replace")
            for name in ("out", "stderr")
        )
        return oracle.Ended(self.argv, code, out, stderr, time.monotonic() - self.began)


@dataclass
class Setup:
    """A sweep to disturb."""

    name: str
    experiment: str
    victims: Mapping[str, Sequence[str]]
    """Kinds of processes, each with the phases in which it can be a victim."""
    launches: int
    """Launches of an undisturbed run, proofs included."""
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Words that a message must contain when a launch was lost to a victim."""
    argv: Callable[[Path, Path, str], list[str]] | None = None
    """Return the command for experiment, run directory and number; None for a sweep."""
    private: bool = True
    """True if nobody beyond the machine has to reach it."""
    ours: bool = True
    """True if its first process is ddpbench: exit codes and words are ours."""
    _undisturbed: Path | None = None

    def run(self, here: Path) -> Run:
        """Return a new run of it, not started."""
        (here / "tmp").mkdir()
        (here / "given.toml").write_text(self.experiment, encoding="utf-8")
        return Run(self, here)

    def undisturbed(self, folder: Path) -> Path:
        """Return an undisturbed run; made once."""
        if self._undisturbed is None:
            here = folder / f"undisturbed-{self.name}"
            here.mkdir()
            run = self.run(here)
            ended = run.command("only").ended(300.0)
            if ended.code != 0:
                raise RuntimeError(f"an undisturbed sweep ended with {ended.code}: {ended.stderr[-500:]}")
            run.report()
            self._undisturbed = run.directory
        return self._undisturbed


@dataclass
class Run:
    """A run on which several commands work, one after another."""

    setup: Setup
    here: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    """Extra environment variables."""
    before: Callable[[], None] | None = None
    """Called in the command's process before the command starts."""
    tag: str = ""

    @property
    def directory(self) -> Path:
        """Return the run directory."""
        return self.here / "run"

    def command(self, name: str) -> Command:
        """Start the next command, which continues where the last one ended."""
        self.tag = f"fault-{os.getpid()}-{time.monotonic_ns()}"
        environment = {
            **os.environ,
            oracle.TAG: self.tag,
            "TMPDIR": str(self.here / "tmp"),
            "COLUMNS": "100",
            "MPLCONFIGDIR": str(self.here.parent / "matplotlib"),
            "DDPBENCH_JOIN_TIMEOUT": "30",  # a slot that is killed before it joins is waited for
            **self.extra,
        }
        began = time.monotonic()
        lines = self._lines(name)
        with (
            (self.here / f"{self.tag}.out").open("wb") as out,
            (self.here / f"{self.tag}.stderr").open("wb") as errors,
        ):
            processes = [
                subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    cwd=ROOT,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=self.before,  # noqa: PLW1509 - a limit of this process, set in it alone
                )
                for argv in lines
            ]
        return Command(lines[0], processes[0], self.tag, self.here, began, processes[1:])

    def report(self) -> None:
        """Write the table if the command does not."""
        if self.setup.argv is not None:
            line = [sys.executable, "-m", "ddpbench", "report", str(self.directory)]
            subprocess.run(line, check=True, capture_output=True, cwd=ROOT)

    def _lines(self, name: str) -> list[list[str]]:
        if self.setup.argv is None:
            argv = ["sweep", str(self.here / "given.toml"), "--out", str(self.directory), "--retry-failed"]
            return [[sys.executable, "-m", "ddpbench", *argv]]
        return agents(self.here / "given.toml", self.directory)

    def pids(self, victim: str, controller: int) -> list[int]:
        """Return the live processes of a kind: `controller`, `server`, `rank`, `loader`, `holder`, `agent` or
        `slot`.
        """
        if victim == "controller":
            return [controller]
        found: list[int] = []
        for process in oracle.processes_of(self.tag):
            with contextlib.suppress(psutil.Error):
                if _does(process) == victim:
                    found.append(process.pid)
        return found[-1:] if victim in ("rank", "loader", "slot") else found[:1]


def _is_worker(process: psutil.Process | None) -> bool:
    return process is not None and "ddpbench.worker" in process.cmdline()


def _does(process: psutil.Process) -> str:
    """Return the role of a process of a sweep."""
    words = process.cmdline()
    parent = process.parent()
    if "ddpbench.fabric" in words:
        return "holder"
    if "torch.distributed.run" in words:
        return "agent"
    if _is_worker(process):
        if parent is not None and "torch.distributed.run" in parent.cmdline():
            return "slot"
        return "rank" if _is_worker(parent) else "server"
    if _is_worker(parent) or any("multiprocessing" in word for word in words):
        return "loader"
    return ""


def agents(experiment: Path, directory: Path) -> list[list[str]]:
    """Return the command lines of two torchrun agents, on loopback, on a run directory that is planned first."""
    if not directory.exists():
        plan = [sys.executable, "-m", "ddpbench", "plan", str(experiment), "--nodes", "127.0.0.1,127.0.0.1"]
        subprocess.run([*plan, "--out", str(directory)], check=True, capture_output=True, cwd=ROOT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meet = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    return [
        [
            *(sys.executable, "-m", "torch.distributed.run", *meet, f"--node-rank={node}"),
            *("-m", "ddpbench.worker", str(directory), "--retry-failed"),
        ]
        for node in (0, 1)
    ]


def _torchrun(experiment: Path, directory: Path, _name: str) -> list[str]:
    return agents(experiment, directory)[0]


SETUPS = {
    setup.name: setup
    for setup in (
        Setup(
            "local",
            _HEAD + _BUDGET.format(rounds=3),
            {"controller": _ALL, "server": _ALL[:-1], "rank": _RANKS},
            launches=8,
            words={"server": ("fork server",), "rank": ("rank",)},
        ),
        Setup(
            "loader",
            _HEAD + "loader_workers = 1\n" + _BUDGET.format(rounds=2).replace("15 s", "40 s"),
            {"controller": ("launch", "timed"), "server": ("timed",), "rank": ("timed",), "loader": _RANKS},
            launches=6,
            words={"rank": ("rank",)},
        ),
        Setup(
            "fabric",
            _HEAD + '[fabric]\nbandwidth = "1 gbit"\n' + _BUDGET.format(rounds=2),
            {
                "controller": ("start", "proof", "timed", "between"),
                "holder": ("inspection", "proof", "timed", "between"),
                "server": ("timed",),
                "rank": ("timed",),
            },
            launches=6,
            words={"server": ("fork server",), "rank": ("rank",), "holder": ("network",)},
        ),
        Setup(
            "torchrun",
            _HEAD.replace("world_size = 2", "world_size = 2\nnodes = 2\nlauncher = 'torchrun'")
            + _BUDGET.format(rounds=2),
            {"agent": _RANKS[1:], "slot": ("start", *_RANKS[1:], "between")},
            launches=6,
            argv=_torchrun,
            private=False,
            ours=False,
        ),
    )
}
