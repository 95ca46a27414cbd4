"""Faults in sweeps that run: signals to each of their processes at each of their phases, and surroundings
that fail.

Faults come in chains: the command that continues after one is the next one's victim, and at the end an
undisturbed command finishes the run. A fault is `VICTIM.SIGNAL.PHASE`, a chain `fault:SETUP:FAULT+FAULT+...`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaign import oracle
from tests.campaign.setups import SETUPS, Run, Setup
from tests.campaign.surroundings import SURROUNDINGS, surrounded

SIGNALS = ("KILL", "TERM", "INT", "HUP", "STOP")
CHAIN = 4
"""Most faults of one run."""
PHASE_S = 60.0
"""Seconds to wait for a phase; after that it is not reached."""
END_S = 90.0
"""Seconds within which a command must end after a fault."""
_FROM_THE_START = ("start", "report")
"""Phases that a command may have reached before Python starts: for a finished run also `report`."""
WAITS_S = 1.0
"""Seconds for which a user's or a batch system's process is stopped: nothing beneath could end it."""


@dataclass(frozen=True)
class Fault:
    """A signal to a process of a sweep in some phase."""

    victim: str
    signal: str
    phase: str

    @property
    def name(self) -> str:
        """Return its name in a chain."""
        return f"{self.victim}.{self.signal}.{self.phase}"

    @classmethod
    def of(cls, name: str) -> Fault:
        """Return the fault of a name."""
        return cls(*name.split("."))

    @property
    def codes(self) -> tuple[int, ...]:
        """Return the exit codes that the command may end with."""
        if (
            self.victim != "controller"
        ):  # a network that could not be made is the machine's fault: nothing was started
            return (0, 1, 2) if (self.victim, self.phase) == ("holder", "inspection") else (0, 1)
        if self.signal in ("KILL", "STOP"):
            return {"KILL": (-signal.SIGKILL,), "STOP": (0, 1)}[self.signal]
        # Before Python installs its handlers, a signal ends a process. So it is with a finished run.
        early = self.phase in _FROM_THE_START
        return (130, -getattr(signal, f"SIG{self.signal}")) if early else (130,)


PHASES = ("start", "inspection", "proof", "launch", "timed", "between", "report")
"""Phases in their order, which chains follow."""


def every() -> dict[str, list[Fault]]:
    """Return all faults by setup."""
    return {
        name: [
            Fault(victim, one, phase)
            for phase in PHASES
            for victim, phases in setup.victims.items()
            if phase in phases
            for one in SIGNALS
        ]
        for name, setup in SETUPS.items()
    }


def chains() -> list[str]:
    """Return all faults in chains, each with its phases in order, and all faults of the surroundings."""
    found: list[str] = []
    for setup, faults in every().items():
        count = -(-len(faults) // CHAIN)
        rows = [faults[number::count] for number in range(count)]
        found += [f"fault:{setup}:{'+'.join(fault.name for fault in row)}" for row in rows]
    return found + [f"fault:surroundings:{name}" for name in SURROUNDINGS]


def drawn(share: float, seed: int) -> list[str]:
    """Return the names of this share of all chains, at least one if any is wanted; each kind in turn."""
    generator = random.Random(seed)
    every_chain = chains()
    wanted = min(len(every_chain), max(share > 0, round(share * len(every_chain))))
    return generator.sample(every_chain, wanted)


def count(name: str) -> int:
    """Return how many faults, or inputs, a name stands for."""
    return name.count("+") + 1


def tried(name: str, here: Path, shared: Sequence[Path]) -> list[str]:
    """Return what went wrong with a chain's faults, each named."""
    _, setup, rest = name.split(":", 2)
    here.mkdir()
    try:
        if setup == "surroundings":
            return surrounded(rest, here, shared)
        return list(_chain(SETUPS[setup], [Fault.of(each) for each in rest.split("+")], here, shared))
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _chain(setup: Setup, faults: Sequence[Fault], here: Path, shared: Sequence[Path]) -> Iterator[str]:
    run = setup.run(here)
    for number, fault in enumerate(faults):
        for wrong in _one(run, fault, number, shared):
            yield f"{fault.name}: {wrong}"
    before = oracle.finished(run.directory)
    ended = run.command("last").ended(END_S)
    if not setup.ours:
        ended = oracle.without_exit_barrier(ended)
    for wrong in oracle.of_command(ended, codes=(0,)):
        yield f"the last, undisturbed command: {wrong}: {ended.stderr[-300:]}"
    yield from oracle.of_launches(before, oracle.finished(run.directory))
    if ended.code == 0:
        run.report()
        yield from oracle.of_table(setup.undisturbed(here.parent), run.directory)


def _one(run: Run, fault: Fault, number: int, shared: Sequence[Path]) -> Iterator[str]:
    before, left = oracle.finished(run.directory), oracle.Before.now(shared)
    earlier = _launches(run)
    command = run.command(f"{number}")
    if not _awaited(run, command.process, fault, earlier):
        ended = command.ended(END_S)
        if run.setup.ours:
            yield from (f"before it came: {wrong}" for wrong in oracle.of_command(ended, codes=(0, 1)))
        return
    reachable = oracle.beyond_loopback() if shared and run.setup.private else []
    hit = run.pids(fault.victim, command.process.pid)
    for pid in hit:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, f"SIG{fault.signal}"))
    # A suspended job continues; and a slot that has just been started has no process of ours yet.
    suspended = fault.victim in ("controller", "agent") or (fault.victim, fault.phase) == ("slot", "start")
    if fault.signal == "STOP" and suspended:
        time.sleep(WAITS_S)
        for pid in hit:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    ended = command.ended(END_S)
    named = run.setup.words.get(fault.victim, ()) if ended.code == 1 else ()
    if not run.setup.ours and ended.code is None:
        yield f"still running after {ended.seconds:.0f} s"
    ours = run.setup.ours and not _is_pythons_own(fault, ended)
    for wrong in oracle.of_command(ended, codes=fault.codes, named=named) if ours else ():
        yield f"{wrong}: {ended.stderr[-300:]}"
    planned = fault.phase not in ("start", "inspection")  # before these there is nothing to resume
    if planned and ended.code == 130 and "resume with" not in ended.stderr:
        yield "an interrupted sweep does not say how to resume"
    # a torchrun agent that is killed leaves folders for logs: torch's, not ours
    yield from oracle.of_what_is_left(left, shared if run.setup.ours else (), command.tag)
    yield from oracle.of_launches(before, oracle.finished(run.directory))
    if reachable:
        yield f"others can reach {', '.join(reachable)}"


def _is_pythons_own(fault: Fault, ended: oracle.Ended) -> bool:
    """Return whether Ctrl-C came while Python was starting: it then ends with 1 or a traceback, for any
    program.
    """
    may_be = fault.signal == "INT" and fault.phase in _FROM_THE_START and ended.code in (1, -signal.SIGINT)
    return may_be and "KeyboardInterrupt" in ended.stderr and "ddpbench/__main__.py" not in ended.stderr


def _launches(run: Run) -> frozenset[int]:
    """Return the folders of launches, by what they keep when they are set aside."""
    return frozenset(path.stat().st_ino for path in run.directory.glob("cases/*/*"))


def _awaited(run: Run, process: subprocess.Popen[bytes], fault: Fault, earlier: frozenset[int]) -> bool:
    """Wait until a sweep is at a phase and its victim lives; return whether that happened.

    Launches that `earlier` commands began and never finished do not count.
    """
    deadline = time.monotonic() + PHASE_S
    known = len(oracle.finished(run.directory))
    while process.poll() is None and time.monotonic() < deadline:
        if _is_at(run, fault.phase, known, earlier) and run.pids(fault.victim, process.pid):
            return process.poll() is None
        time.sleep(0.01)
    return False


def _is_at(run: Run, phase: str, known: int, earlier: frozenset[int]) -> bool:
    directory = run.directory
    if phase == "start":
        return True
    if phase == "inspection":
        return bool(run.pids("rank", 0)) and not any(directory.glob("cases/*/*/launch.json"))
    if phase == "between":
        return len(oracle.finished(directory)) > known
    if phase == "report":
        return len(oracle.finished(directory)) >= run.setup.launches
    purpose = "proof" if phase == "proof" else "launch-*"
    for begun in directory.glob(f"cases/*/{purpose}"):
        if ".aside-" in begun.name or (begun / "outcome.json").exists():
            continue
        try:
            if begun.stat().st_ino in earlier:
                continue
        except FileNotFoundError:  # it is being set aside
            continue
        if phase != "timed" or any(b'"block"' in path.read_bytes() for path in begun.glob("rank-*.jsonl")):
            return True
    return False
