"""Run one launch to its end: start its ranks, watch their heartbeats, and report how the ranks ended."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ddpbench.errors import OutputError, ServerGoneError
from ddpbench.guard import is_stopped
from ddpbench.launch.plan import LaunchPlan
from ddpbench.machine.disturbance import NoiseWatch, oom_kills, out_of_memory, own_cpu_s
from ddpbench.records import LaunchDir, LaunchOutcome, LaunchRequest, RunDir
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.removal import remove_tree
from ddpbench.runtime.judge import Took, conclude
from ddpbench.runtime.launched import START_S
from ddpbench.runtime.server import ASKED
from ddpbench.runtime.serving import Ranks
from ddpbench.runtime.turnstile import JOINS, TURN, Turn
from ddpbench.runtime.watchdog import POLL_S, STACKS_S, Seen
from ddpbench.spec import Case, Links, TargetLoss
from ddpbench.units import utc_now

PAUSE_S = 5.0
"""Longest usual time between two looks at a launch, s. After a longer time, this process was probably stopped.

The time without progress then starts again from zero, because launches that waited for this process made no progress.
"""
RESTART_S = 40.0
"""Time limit of a restart, s: torchrun kills ranks 30 s after asking them to end, and new ranks then import torch."""


class LaunchRunner:
    """Runs launches in a run directory, watches their ranks, and writes each launch's outcome."""

    def __init__(
        self,
        run: RunDir,
        *,
        hang_timeout_s: float,
        hang_setting: str,
        shared: bool,
        session: str = "",
        run_id: str = "",
        turn: Turn | None = None,
        short_blocks: Callable[[Case], bool] = lambda _: False,
    ) -> None:
        """Keep the settings of all launches.

        Args:
            run: the run directory.
            hang_timeout_s: the time without progress after which a launch counts as hung, seconds.
            hang_setting: the name of the setting for `hang_timeout_s`, for messages.
            shared: other sweeps may run at the same time.
            session: the id of this session, for the outcomes.
            run_id: the id of the run, for the records.
            turn: in a comparison of two interleaved sides, the connection to the turnstile, a server at which ranks
                wait before each block of steps; else None.
            short_blocks: returns whether a case's blocks are as short as those of launches that alternate, even if a
                launch of it runs alone.
        """
        self._run, self._run_id = run, run_id
        self._settings = _Settings(
            hang_timeout_s=hang_timeout_s, hang_setting=hang_setting, shared=shared, session=session
        )
        self._turn, self._short_blocks = turn, short_blocks

    def run_launch(
        self,
        server: Ranks,
        plan: LaunchPlan,
        *,
        measured_s: float,
        server_share_s: float,
        target_loss: TargetLoss | None = None,
        on_pulse: Callable[[Pulse], None] = lambda _: None,
        lost: Callable[[], str] = str,
    ) -> LaunchOutcome:
        """Run one launch and return its outcome. `lost` returns why the launch cannot continue, or an empty text.

        Raises:
            LaunchError: no rank can be started, or their records cannot be written.
            OSError: the run directory can no longer be written.
        """
        running = self.begin(
            server,
            plan,
            measured_s=measured_s,
            server_share_s=server_share_s,
            target_loss=target_loss,
            on_pulse=on_pulse,
            lost=lost,
        )
        try:
            running.start()
            while not running.over:
                running.look(POLL_S)
        except BaseException:
            running.abandon()
            raise
        return running.conclude()

    def begin(
        self,
        server: Ranks,
        plan: LaunchPlan,
        *,
        measured_s: float,
        server_share_s: float,
        target_loss: TargetLoss | None = None,
        on_pulse: Callable[[Pulse], None] = lambda _: None,
        lost: Callable[[], str] = str,
        interleaved: Interleaved | None = None,
    ) -> RunningLaunch:
        """Make the launch's directory and return the launch, whose ranks are not started yet.

        `interleaved` describes this process's launches with which it alternates. Other arguments are as in
        `run_launch`.

        Raises:
            OSError: the run directory can no longer be written.
        """
        groups = 1 if interleaved is None else interleaved.groups
        request = replace(self._request(plan, measured_s, target_loss), groups=groups)
        asked = self._turn_of(plan) if interleaved is None else {TURN: interleaved.address, JOINS: "1"}
        if plan.purpose == "proof":
            asked[SECRET_VARIABLE] = secrets.token_hex(32)
        return RunningLaunch(
            server=server,
            plan=plan,
            directory=self._fresh(request),
            request=request,
            asked=asked,
            interleaved=interleaved,
            settings=self._settings,
            server_share_s=server_share_s,
            on_pulse=on_pulse,
            lost=lost,
        )

    def _request(self, plan: LaunchPlan, measured_s: float, target_loss: TargetLoss | None) -> LaunchRequest:
        return LaunchRequest(
            case=plan.case,
            purpose=plan.purpose,
            round=plan.round,
            measured_s=measured_s,
            target_loss=target_loss,
            run_id=self._run_id,
            short_blocks=plan.purpose == "measure" and self._short_blocks(plan.case),
        )

    def _fresh(self, request: LaunchRequest) -> LaunchDir:
        directory = self._run.launch(request.case.case_id, request.purpose, request.round)
        if directory.path.exists():
            self._run.set_aside(directory)
        directory.path.mkdir(parents=True)
        request.write(directory.request)
        return directory

    def _turn_of(self, plan: LaunchPlan) -> dict[str, str]:
        turn = self._turn
        waits = (
            turn is not None and not turn.alone and plan.purpose == "measure" and not whole_because(plan.case)
        )
        return {TURN: turn.address} if turn is not None and waits else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Interleaved:
    """Describes the launches of this process with which a launch alternates."""

    address: str
    """The address of the turnstile, at which the launch's ranks ask for their turn."""
    cores: Sequence[int]
    """The cores of all launches that alternate."""
    has_turn: Callable[[], bool]
    """Returns whether it is the launch's turn."""
    is_stopped: Callable[[], bool]
    """Returns whether the launch's ranks are stopped until its turn, so that they make no progress."""
    alternated: Callable[[], tuple[tuple[str, ...], ...]]
    """Returns the groups of launches with which this launch has alternated, each as their case ids."""
    groups: int = 1
    """Number of groups with which this launch alternates, one after another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    hang_timeout_s: float
    hang_setting: str
    shared: bool
    session: str


@dataclass(kw_only=True, slots=True)
class RunningLaunch:
    """A launch, from the start of its ranks to its outcome.

    Call `start`, then `look` until `over`, then `conclude`; if any of them fails, `abandon`.
    """

    server: Ranks
    plan: LaunchPlan
    directory: LaunchDir
    request: LaunchRequest
    asked: dict[str, str]
    """Variables of all ranks, in addition to each rank's own."""
    interleaved: Interleaved | None
    """Launches of this process that alternate with this one. They do not count as foreign load. None if none."""
    settings: _Settings
    server_share_s: float
    """The part of the fork server's start-up time that is charged to this launch (s)."""
    on_pulse: Callable[[Pulse], None]
    lost: Callable[[], str]
    """Returns why the launch cannot continue, or an empty text."""
    _noise: NoiseWatch = field(init=False)
    _seen: Seen = field(init=False)
    _start: float = field(init=False)
    _own_s: float = field(init=False)
    """CPU time of this process and its descendants at the start (s), for interleaved launches."""
    _looked_at: float = field(init=False)
    _server_gone: bool = False
    _oom_before: int = field(default_factory=oom_kills)
    _started_utc: str = field(default_factory=utc_now)

    def _begin_now(self) -> None:
        self._noise = self._noise_of()
        self._own_s = own_cpu_s() if self.interleaved else 0.0
        self._start = self._looked_at = time.monotonic()
        self._seen = _unseen(self.plan, self._start)

    def _noise_of(self) -> NoiseWatch:
        server, plan = self.server, self.plan
        return NoiseWatch(
            plan.cores if self.interleaved is None else self.interleaved.cores,
            lambda: [
                pid for pid in server.pids if pid != server.pid
            ],  # a launcher's own process, if it is not known yet
            shared_machine=self.settings.shared,
            # A fork server reports the helpers' times when ranks end.
            helpers=plan.case.loader_workers > 0 and not server.reports_helper_times,
        )

    def start(self) -> None:
        """Start the ranks.

        Raises:
            LaunchError: no rank can be started.
        """
        self._begin_now()
        asked = {**self.asked, ASKED: str(time.perf_counter_ns())}
        try:
            if self.server.launch([rank.env | asked for rank in self.plan.ranks], self.directory):
                # Imports are charged to the server's start-up and not to the launch.
                self.server_share_s += time.monotonic() - self._start
                self._begin_now()
        except ServerGoneError as error:
            self._lose(error)

    @property
    def over(self) -> bool:
        """Return whether all ranks have ended, or cannot be waited for any longer."""
        return not self._seen.left or self._seen.unheard(time.monotonic()) or self._server_gone

    @property
    def server_gone(self) -> str:
        """Return why the launch lost the fork server or launcher of its ranks; empty if it did not."""
        return self._seen.server_gone if self._server_gone else ""

    @property
    def out_of_memory(self) -> str:
        """Return a phrase if the kernel killed a rank because memory ran out; otherwise an empty text."""
        killed = self._seen.killed
        return out_of_memory() if killed is not None and oom_kills() > self._oom_before else ""

    def look(self, timeout_s: float) -> None:
        """Wait for the ranks' next events, up to `timeout_s`, look at their heartbeats, and end them if they must end.

        Raises:
            OSError: the run directory can no longer be written.
        """
        try:
            self._look(timeout_s)
        except ServerGoneError as error:
            self._lose(error)

    def _lose(self, error: ServerGoneError) -> None:
        self.server.signal_ranks(signal.SIGKILL)
        self._seen.server_gone, self._server_gone = str(error), True

    def _look(self, timeout_s: float) -> None:
        server, seen = self.server, self._seen
        for event in server.events(timeout_s):
            if event["event"] != "exited":
                continue
            rank, at = int(event["rank"]), time.monotonic()
            seen.beat(rank, server.pulse(rank), at)
            seen.exited(rank, int(event["code"]), float(event["cpu_s"]), at)
        now = time.monotonic()
        if now - self._looked_at > PAUSE_S or (self.interleaved and self.interleaved.is_stopped()):
            seen.alive_at = now
        self._looked_at = now
        for rank in range(seen.ranks):
            seen.beat(rank, server.pulse(rank), now)
        has_turn = self.interleaved is None or self.interleaved.has_turn()
        self._noise.tick(computing=has_turn and seen.pulse(0).phase == "timed steps")
        self.on_pulse(seen.pulse(0))
        if not seen.server_gone and (seen.left or seen.first_bad is not None):
            seen.server_gone = self.lost()
        if seen.server_gone or seen.must_end(now):
            self._end()
        elif seen.hangs(now, self.settings.hang_timeout_s):
            self._explain_hang()
            self._end()

    def _end(self) -> None:
        self._seen.end(time.monotonic())
        self.server.signal_ranks(signal.SIGKILL, tuple(self.server.pids[rank] for rank in self._seen.left))

    def _explain_hang(self) -> None:
        """Record which rank the others wait for, and make every rank log its stack traces.

        Raises:
            ServerGoneError: the server is stopped; the ranks may have ended long ago.
        """
        server, seen, settings = self.server, self._seen, self.settings
        if server.is_stopped:
            server.give_up_stopped()
        stopped = [rank for rank in seen.left if is_stopped(server.pids[rank])]
        for rank in seen.left:
            if rank not in stopped:
                server.signal_ranks(signal.SIGUSR1, (server.pids[rank],))
        time.sleep(STACKS_S)
        seen.explain_hang(stopped, settings.hang_timeout_s, settings.hang_setting)

    def abandon(self) -> None:
        """Kill the ranks, and remove their checkpoints. The server keeps running for further launches."""
        self.server.signal_ranks(signal.SIGKILL)
        self.server.forget()
        _remove_checkpoints(self.request, self.directory)

    def conclude(self) -> LaunchOutcome:
        """Judge the launch, whose ranks have ended, write its outcome, and return it.

        Raises:
            LaunchError: the ranks' records cannot be written.
            OSError: the run directory can no longer be written.
        """
        self.server.forget()
        wall_s = time.monotonic() - self._start
        found = self._noise.stop(own_cpu_s() - self._own_s if self.interleaved else self._seen.cpu_s)
        self.directory.rendezvous.unlink(missing_ok=True)
        _remove_checkpoints(self.request, self.directory)
        return conclude(
            self.directory,
            self.request,
            self._seen,
            oom=oom_kills() > self._oom_before,
            took=Took(started_utc=self._started_utc, wall_s=wall_s, server_s=self.server_share_s),
            noise=found,
            session=self.settings.session,
            alternated=None if self.interleaved is None else self.interleaved.alternated(),
        )


def whole_because(case: Case) -> str:
    """Return why the two sides of a comparison must alternate by entire launches of this case, not by blocks of steps.

    The text is a clause; it is empty if the sides can alternate by blocks.
    """
    if case.device != "cpu":
        return "several launches would hold a GPU's memory"
    if case.launcher != "local":
        return "the ranks have their own launcher"
    if case.recovery != "off":
        return "a rank fails and recovers"
    if case.loader_workers > 0:
        return "loader workers would continue fetching"
    if case.fabric and Links.parse(case.fabric).storage != "none":
        return "batches would still be read from storage"
    return ""


def _unseen(plan: LaunchPlan, start: float) -> Seen:
    recovers = plan.case.recovery != "off"
    return Seen(
        ranks=len(plan.ranks),
        alive_at=start,
        still_s=plan.case.collective_timeout + RESTART_S if recovers else 0.0,
        start_s=START_S.get(plan.case.launcher, 0.0),
    )


def _remove_checkpoints(request: LaunchRequest, directory: LaunchDir) -> None:
    """Remove a launch's checkpoints, which killed ranks could not remove."""
    case = request.case
    if case.checkpoint or case.recovery != "off":
        with contextlib.suppress(OutputError):  # other users may be able to write there meanwhile
            remove_tree(directory.checkpoints(case.checkpoint_dir, request.run_id), private=True)
