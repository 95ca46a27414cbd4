"""Two sides measured alternately: their order, when to stop, and the files in the comparison's directory.

comparison.json   the request, the sides, and the order of turns
base/  new/       run directories; rounds of the same number ran one after the other, or in alternating blocks of steps
.code/            the files of the commits that were measured
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import queue
import random
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, Field

from ddpbench.errors import LaunchError, OutputError, RequestError, SideError
from ddpbench.guard import descendants, die_with_parent, kill_all
from ddpbench.helper_process import CODE_FIRST, child_environment
from ddpbench.launch.interleave.agreement import AGREES, BEGIN, SidePlan, agree, read_plan_message
from ddpbench.launch.interleave.search import not_in_commit
from ddpbench.launch.interleave.sides import Placed
from ddpbench.machine.disturbance import NoiseWatch, own_cpu_s
from ddpbench.records import SCHEMA_VERSION, write_atomically
from ddpbench.records.checked import read_checked
from ddpbench.records.files import MOST_NOTES, damaged
from ddpbench.records.rundir import explain_os_error
from ddpbench.runtime.turnstile import IN_TURN, TURNSTILE, WHOLE, Turnstile
from ddpbench.side_code import SIDE
from ddpbench.text_safety import command
from ddpbench.units import format_about, format_seconds

FILE = "comparison.json"
START_S = 300.0
"""Seconds that a side may take to send its first message."""
SILENT_S = 600.0
"""Longest silence of a side after its first message, s. Hanging launches and trials are ended by the side's sweep."""
_END_S = 20.0
"""Seconds that a side may take to end after the request, and the same again after SIGTERM."""
_AT_ONCE_S = 3.0
"""Seconds that interrupted sides may take to end before their processes are killed."""
_STACK_S = 5.0
_MOST_WORDS = 400
_UNCHECKED = "its ddpbench is older, and does not check that the modules it imports are this side's own"


TurnKind = Literal["blocks", "launches"]
"""The unit in which two sides are interleaved: blocks of steps of concurrent launches, or entire launches."""


class StoredSide(BaseModel, strict=True):
    """A side as stored in comparison.json."""

    words: str
    commit: str = ""
    overrides: list[str] = []


class Stored(BaseModel, strict=True):
    """The content of comparison.json."""

    schema_version: int
    experiment: str
    base: StoredSide
    new: StoredSide
    order: list[Literal["base", "new"]] = []
    """The side that went first in each round."""
    turns: TurnKind = "launches"
    """The unit in which the sides were interleaved: `blocks` of steps, at least in some cases, or entire launches."""
    foreign: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = []
    """The fraction of the cores' time that other programs used in each round; empty in files of older versions."""


def read_comparison(path: Path) -> Stored:
    """Read the comparison.json of a directory that `--interleave` has written.

    Raises:
        RequestError: the file does not exist.
        IdentityError: the file is damaged, or has a different schema.
    """
    try:
        stored = read_checked(Stored, path / FILE, MOST_NOTES)
    except (FileNotFoundError, NotADirectoryError):
        raise RequestError(f"{path} is not a comparison's directory: it has no {FILE}") from None
    if len(stored.foreign) > len(stored.order):
        raise damaged(
            path / FILE,
            (
                f"foreign and order have different numbers of rounds: {len(stored.foreign)} "
                f"and {len(stored.order)}"
            ),
        )
    return stored


class TurnsListener(Protocol):
    """Receives a comparison's progress."""

    def event(self, text: str) -> None:
        """Handle a sentence about an event. Each event is reported once."""

    def round_made(self, number: int, left_s: float) -> None:
        """Handle the end of a round, which both sides have run."""


@dataclass
class Turns:
    """A running comparison of two sides, which are measured alternately."""

    sides: tuple[Placed, Placed]
    out: Path
    listener: TurnsListener
    overrides: Sequence[str] = ()
    """Settings of both sides, in addition to each side's own."""
    turns: TurnKind = "launches"
    cores: Sequence[int] = ()
    """The cores on which both sides measure."""
    made: int = 0
    """Number of rounds that both sides have finished."""
    _foreign: list[float] = field(default_factory=list)
    _processes: list[_Process] = field(default_factory=list)
    _turnstile: Turnstile | None = None

    def measure(
        self,
        total_s: float,
        enough: Callable[[], bool],
        *,
        rounds: tuple[int, int],
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Run rounds until `enough` returns True, or the time or the rounds are spent; return how many were run.

        `rounds` has the smallest and the largest number of rounds. `enough` is called after each round from the
        smallest number on. Rounds come in pairs of opposite orders, and the order of each pair is random.

        Raises:
            LaunchError: a side cannot continue; measurements are kept.
            RequestError: a side cannot start.
        """
        start, dice, order = clock(), random.Random(seed), list[Literal["base", "new"]]()
        try:
            self._turnstile = self._opened() if self.turns == "blocks" else None
            self._write(order)
            if not self._begun():
                self.end()
                return self.made
            self._tell_whole()
            first, stopped_by = dice.randrange(2), "there was no time for more"
            while self.made < rounds[1]:
                first = dice.randrange(2) if self.made % 2 == 0 else 1 - first
                began = clock()
                order.append("new" if first else "base")
                self._write(order)
                watch = NoiseWatch(self.cores, tuple, shared_machine=False, helpers=False)
                own_s = own_cpu_s()
                goes_on = self._make_round(first)
                self._foreign.append(watch.stop(own_cpu_s() - own_s).foreign_fraction)
                self._write(order)
                self.made += 1
                now = clock()
                left, took = start + total_s - now, now - began
                self.listener.round_made(self.made, left)
                if not all(goes_on):
                    stopped_by = "nothing is left to measure"
                    break
                if self.made == 1 and (words := too_short(total_s, left, took, rounds[0])):
                    self.listener.event(words)
                if left < took or (self.made >= rounds[0] and enough()):
                    break
            if self.made < rounds[0]:
                self.listener.event(
                    f"only {self.made} of the {rounds[0]} rounds that were planned: {stopped_by}"
                )
        except BaseException:
            self.end(at_once=True)
            raise
        self.end()
        return self.made

    def _begun(self) -> bool:
        """Start both sides; return False if a side has no case that can be measured.

        Raises:
            RequestError: a side cannot start, or the sides cannot be compared.
        """
        for placed in self.sides:  # one after the other, so that proofs do not disturb each other
            run = self.out / placed.spec.name
            self._processes.append(_Process(placed, run, self.overrides, self.listener, self._turnstile))
            self._processes[-1].await_plan()
        for process, cases in zip(self._processes, self._agreed(), strict=True):
            process.begin(cases)
            if not process.await_ready(first=True):
                return False
        return True

    def _agreed(self) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """Return the order of each side's cases; None for a side's own order, if a side has not described its plan.

        Raises:
            RequestError: the sides cannot be compared.
        """
        base, new = (process.plan for process in self._processes)
        if base is None or new is None:
            return None, None
        agreement = agree(self.sides, (base, new))
        for note in agreement.notes:
            self.listener.event(note)
        return agreement.base, agreement.new

    def _opened(self) -> Turnstile | None:
        """Open a turnstile; None if that fails, and entire launches then alternate."""
        try:
            return Turnstile()
        except OSError as error:
            self.turns = "launches"
            self.listener.event(f"{WHOLE}, because no socket can be made ({error})")
            return None

    def _tell_whole(self) -> None:
        words, of_all = why_whole(self._processes)
        if self._turnstile is None or not words:
            return
        self.listener.event(words)
        if of_all:
            self.turns = "launches"
            self._turnstile.close()
            self._turnstile = None

    def _make_round(self, first: int) -> list[bool]:
        """Run a round, side `first` first; return for each side, in this order, whether it has another round.

        Raises:
            LaunchError: a side cannot continue.
        """
        in_order = [self._processes[index] for index in (first, 1 - first)]
        if self._turnstile is None:
            return [process.make_round() for process in in_order]
        self._turnstile.begin([process.name for process in in_order])
        for process in in_order:
            process.heard_at = time.monotonic()  # it may have waited long for the other side's proofs
            process.say(IN_TURN)
        one, other = in_order
        return [one.await_ready(other=other), other.await_ready()]

    def _write(self, order: Sequence[Literal["base", "new"]]) -> None:
        def as_stored(placed: Placed) -> StoredSide:
            return StoredSide(
                words=placed.spec.words, commit=placed.commit, overrides=list(placed.spec.overrides)
            )

        base, new = self.sides
        stored = Stored(
            schema_version=SCHEMA_VERSION,
            experiment=str(base.experiment),
            base=as_stored(base),
            new=as_stored(new),
            order=list(order),
            turns=self.turns,
            foreign=self._foreign,
        )
        try:
            write_atomically(self.out / FILE, stored.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise OutputError(f"{self.out} cannot be written: {explain_os_error(error)}") from None

    def end(self, *, at_once: bool = False) -> None:
        """End both sides' processes. A running launch is interrupted only if `at_once`. Finished launches are kept."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.ask_to_end(at_once=at_once)
        until = time.monotonic() + (_AT_ONCE_S if at_once else 2 * _END_S)
        for process in processes:
            process.end(until, signalled=at_once)
        if self._turnstile is not None:
            self._turnstile.close()
            self._turnstile = None


def too_short(total_s: float, left_s: float, round_s: float, fewest: int) -> str:
    """Return a sentence if the time does not suffice for `fewest` rounds as long as the first; else empty."""
    rounds = 1 + max(0, math.floor(left_s / round_s)) if round_s > 0 else fewest
    if rounds >= fewest:
        return ""
    needed = format_about(total_s + (fewest - 1) * round_s - left_s)
    before = format_seconds(max(0.0, total_s - left_s - round_s))
    return (
        f"starting both sides took {before}, and a round takes {format_seconds(round_s)}. Only about "
        f"{rounds} of the {fewest} planned rounds fit into {format_seconds(total_s)}; to measure all, "
        f"give {command('--total', needed)}"
    )


class ReadySide(Protocol):
    """The attributes that `why_whole` needs of a side that is ready for its first round."""

    at_turnstile: bool
    cases: Sequence[int]
    whole: Mapping[str, str]

    @property
    def words(self) -> str:
        """The side in a sentence."""


def why_whole(sides: Sequence[ReadySide]) -> tuple[str, bool]:
    """Return why some cases alternate by entire launches, and whether all cases do.

    The reason is empty if all cases alternate by blocks.
    """
    for side in sides:
        if not side.at_turnstile:
            return f"{WHOLE}, because {side.words} cannot see whose turn it is (an older ddpbench?)", True
    base, new = sides
    if base.cases != new.cases:  # the orders would pair launches of different cases
        return f"{WHOLE}, because the sides cannot measure the same cases", True
    whole = {**base.whole, **new.whole}
    if not whole:
        return "", False
    of_all = len(whole) == len(base.cases)
    of = "" if of_all else f"of {len(whole)} of {len(base.cases)} cases "
    return f"{of}{WHOLE}: {'; '.join(dict.fromkeys(whole.values()))}", of_all


def side_environment(side: Placed) -> dict[str, str]:
    """Return the environment of a side's processes, in which Python finds modules in the side's own folders first."""
    first = os.pathsep.join(map(str, side.first))
    env = {name: value for name, value in child_environment().items() if name != SIDE}
    given = [part for part in (first, env["PYTHONPATH"]) if part]
    described = {} if side.code is None else {SIDE: side.code.to_json()}
    return {
        **env,
        CODE_FIRST: first,
        "PYTHONPATH": os.pathsep.join(given),
        **described,
        **_extensions(side, env),
    }


_EXTENSIONS = "TORCH_EXTENSIONS_DIR"


def _extensions(side: Placed, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable for a side's own folder of the extensions that `torch.utils.cpp_extension` builds.

    torch finds them by name only. In one folder, a rank may wait until the other side has built its version, and load
    that. The user's own folder serves the code in the working directory.
    """
    if side.spec.ref and side.folder is not None:
        return {_EXTENSIONS: str(side.folder.with_name(f".{side.folder.name}.extensions"))}
    if not (side.spec.path or side.spec.python):
        return {}
    digest = hashlib.sha256(f"{side.folder}\n{side.python}".encode(errors="surrogateescape")).hexdigest()[:12]
    root = env.get(_EXTENSIONS) or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache", "torch_extensions"))
    return {_EXTENSIONS: os.path.join(os.path.expanduser(root), f"ddpbench-{digest}")}  # noqa: PTH111, PTH118  unknown homes


class _Talking:
    """Reads the messages of a side's process, and writes requests to it."""

    words: str
    name: str
    heard_at: float
    _placed: Placed
    _process: subprocess.Popen[str]
    _turnstile: Turnstile | None
    _heard: queue.SimpleQueue[dict[str, Any] | None]
    _last_words: list[str]
    _doing: str
    _patience_s: float
    _words: threading.Thread

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # printed by other code
                if isinstance(message, dict):
                    self.heard_at = time.monotonic()
                    if message.get("event") == "ready":
                        self._leave_turnstile()
                    self._heard.put(message)
        self._leave_turnstile()
        self._heard.put(None)

    def _leave_turnstile(self) -> None:
        if self._turnstile is not None:
            self._turnstile.leave(self.name)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last_words = [*self._last_words[-_MOST_WORDS:], line.rstrip()]

    def _hear(self, *, first: bool) -> dict[str, Any]:
        """Return the side's next message.

        Raises:
            SideError: before it could start (`first`), the side has ended, or has sent no message for too long.
            LaunchError: the side cannot continue.
        """
        try:
            message = self._heard.get(timeout=self._patience_s)
        except queue.Empty:
            silent = f"it printed nothing for {format_seconds(self._patience_s)} while {self._doing}"
            raise self._error(f"{silent}{self._where()}: it was ended", first=first) from None
        self._patience_s = SILENT_S
        if message is None:
            self._words.join(1)
            raise self._error("\n".join(self._last_words[-5:]) or "it ended and said nothing", first=first)
        return message

    def _error(self, why: str, *, first: bool) -> SideError | LaunchError:
        missing = not_in_commit(self._placed, why)
        sentence = f"{self._placed.spec.words}: {why}{missing and f' ({missing})'}"
        return SideError(self._placed.spec.name, sentence) if first else LaunchError(sentence)

    def _where(self) -> str:
        """Abort the silent side; return the file and line that it was executing, empty if unknown."""
        with contextlib.suppress(OSError):
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
        self._process.send_signal(signal.SIGABRT)  # on which Python prints its stack
        self._words.join(_STACK_S)
        stack = "\n".join(self._last_words).rpartition("Current thread")[2]
        position = re.search(r'File "([^"\n]+)", line (\d+)', stack)
        return f", at line {position[2]} of {position[1]}" if position else ""

    def check_alive(self) -> None:
        """End the side if it has sent no message for too long, when nothing else waits for one.

        Raises:
            LaunchError: the side was silent for too long.
        """
        if time.monotonic() - self.heard_at > SILENT_S:
            silent = f"it printed nothing for {format_seconds(SILENT_S)} while {self._doing}"
            raise self._error(f"{silent}{self._where()}: it was ended", first=False)

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()


class _Process(_Talking):
    def __init__(
        self,
        placed: Placed,
        run: Path,
        overrides: Sequence[str],
        listener: TurnsListener,
        turnstile: Turnstile | None,
    ) -> None:
        self._placed, self._listener = placed, listener
        self._turnstile = turnstile
        self.name = placed.spec.name
        self.words = placed.spec.words
        self.cases: Sequence[int] = ()
        """The cases that the side measures, as indices into the list of all planned cases."""
        self.whole: Mapping[str, str] = {}
        """Reasons why cases alternate by entire launches, by the cases' indices."""
        self.heard_at = time.monotonic()
        self.at_turnstile = False
        """True if the side asks the turnstile before it measures; False if it cannot, as in older versions."""
        self.plan: SidePlan | None = None
        """The side's plan; None if its ddpbench is older and does not describe it."""
        self._waits = False
        self._kept: dict[str, Any] | None = None
        env = side_environment(placed) | {AGREES: "1"}
        if turnstile is not None:
            env[TURNSTILE] = turnstile.address(self.name)
        parent = os.getpid()
        self._process = subprocess.Popen(
            [
                *(placed.python, "-P", "-X", "faulthandler", "-m", "ddpbench.launch.interleave.turn"),
                *(str(placed.experiment), str(run.absolute())),
                *(word for text in (*overrides, *placed.overrides) for word in ("--set", text)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            cwd=placed.folder,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),  # noqa: PLW1509  one prctl
        )
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last_words: list[str] = []
        self._doing = "its interpreter started"
        self._patience_s = START_S
        self._said = threading.Thread(target=self._listen, daemon=True)
        self._words = threading.Thread(target=self._read_errors, daemon=True)
        self._said.start()
        self._words.start()

    def await_plan(self) -> None:
        """Wait until the side has planned its cases. An older version continues until it can start a round.

        Raises:
            SideError: the side cannot start.
        """
        while True:
            message = self._hear(first=True)
            kind = str(message.get("event"))
            if kind == "planned":
                self.plan, self._waits = read_plan_message(message), True
                return
            if kind in ("done", "ready"):
                self._kept = message
                return
            self._note(kind, message, first=True)

    def begin(self, order: Sequence[int] | None) -> None:
        """Let a side that has described its plan start, its cases in this order of indices; None for its own order."""
        if self._waits:
            self._waits, self._doing = False, "it was starting"
            self.say(f"{BEGIN}{json.dumps(order)}")

    def _note(self, kind: str, message: Mapping[str, Any], *, first: bool) -> None:
        """Handle a message on progress or a failure.

        Raises:
            SideError: the side cannot start (`first`).
            LaunchError: the side cannot continue.
        """
        if kind == "failed":
            raise self._error(str(message.get("error")), first=first)
        if kind == "doing":
            self._doing = f"it was {message.get('what')}"
        elif kind == "warning":
            self._listener.event(f"{self._placed.spec.words}: {message.get('text', '')}")
        elif kind == "launch" and message.get("status") != "ok":
            self._listener.event(f"{self._placed.spec.words}: {message.get('label')}: {message.get('error')}")

    def await_ready(self, *, first: bool = False, other: _Process | None = None) -> bool:
        """Wait until the side can start a round; return whether a round is left.

        If the `other` side runs a round meanwhile, check that it is alive.

        Raises:
            SideError: the side cannot start (`first`).
            LaunchError: the side or `other` cannot continue.
        """
        while True:
            message, self._kept = self._kept or self._hear(first=first), None
            if other is not None:
                other.check_alive()
            kind = str(message.get("event"))
            if kind == "done":
                return False
            if kind == "ready":
                cases, whole = message.get("cases"), message.get("whole")
                # Versions that do not send these use a different protocol at the turnstile.
                self.at_turnstile = message.get("turnstile") is True and isinstance(whole, dict)
                self.cases = tuple(cases) if isinstance(cases, list) else ()
                self.whole = whole if isinstance(whole, dict) else {}
                if first and self._placed.code is not None and message.get("checks_modules") is not True:
                    self._listener.event(f"{self.words}: {_UNCHECKED}")
                return True
            self._note(kind, message, first=first)

    def make_round(self) -> bool:
        """Run a round and wait for its end; return whether a round is left.

        Raises:
            LaunchError: the side cannot continue.
        """
        self.say("go")
        return self.await_ready()

    def ask_to_end(self, *, at_once: bool) -> None:
        """Ask the side to end after its launch, or `at_once`; stopped processes are continued to react."""
        self.say("stop")
        if at_once:
            self._process.terminate()
        self._continue()
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _continue(self) -> None:
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)

    def has_ended(self, within_s: float) -> bool:
        try:
            self._process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, until: float, *, signalled: bool) -> None:
        """Wait until the monotonic clock reads `until`, then kill the process and its children.

        Unless it was `signalled` before, it gets SIGTERM after half of the time.
        """
        if not signalled and not self.has_ended((until - time.monotonic()) / 2):
            self._process.terminate()
        if not self.has_ended(until - time.monotonic()):
            kill_all([*descendants(self._process.pid), self._process.pid])
            self._process.wait()
        for thread in (self._said, self._words):  # these threads close what they read
            thread.join(_STACK_S)
