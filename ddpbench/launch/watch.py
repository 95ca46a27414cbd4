"""Run one launch to its end: start its ranks, watch their heartbeats, and report how the ranks ended."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable

from ddpbench.errors import OutputError, ServerGoneError
from ddpbench.guard import is_stopped
from ddpbench.launch.plan import LaunchPlan
from ddpbench.machine.disturbance import NoiseWatch, oom_kills
from ddpbench.records import LaunchDir, LaunchOutcome, LaunchRequest, RunDir
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.removal import remove_tree
from ddpbench.runtime.judge import Took, conclude
from ddpbench.runtime.launched import START_S
from ddpbench.runtime.server import ASKED
from ddpbench.runtime.serving import Ranks
from ddpbench.runtime.turnstile import TURN, Turn
from ddpbench.runtime.watchdog import POLL_S, STACKS_S, Seen
from ddpbench.spec import Case, Links, TargetLoss
from ddpbench.units import utc_now

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
        """
        self._run = run
        self._hang_timeout_s = hang_timeout_s
        self._hang_setting = hang_setting
        self._shared = shared
        self._session = session
        self._run_id = run_id
        self._turn = turn

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
        request = self._request(plan, measured_s, target_loss)
        directory = self._fresh(request)
        started_utc = utc_now()
        asked = self._turn_of(plan)
        if plan.purpose == "proof":
            asked[SECRET_VARIABLE] = secrets.token_hex(32)
        noise = self._noise_of(server, plan)
        oom_before = oom_kills()
        start = time.monotonic()
        seen = _unseen(plan, start)
        try:
            asked[ASKED] = str(time.perf_counter_ns())
            if server.launch([rank.env | asked for rank in plan.ranks], directory):
                server_share_s += (
                    time.monotonic() - start
                )  # charged to the server's start-up and not to the launch
                noise, start = self._noise_of(server, plan), time.monotonic()
                seen.alive_at = start
            self._watch(server, seen, noise, on_pulse, lost)
        except ServerGoneError as error:
            server.signal_ranks(signal.SIGKILL)
            seen.server_gone = str(error)
        except BaseException:
            server.signal_ranks(signal.SIGKILL)  # the server may have further launches to serve
            server.forget()
            _remove_checkpoints(request, directory)
            raise
        server.forget()
        wall_s = time.monotonic() - start
        found = noise.stop(seen.cpu_s)
        directory.rendezvous.unlink(missing_ok=True)
        _remove_checkpoints(request, directory)
        return conclude(
            directory,
            request,
            seen,
            oom=oom_kills() > oom_before,
            took=Took(started_utc=started_utc, wall_s=wall_s, server_s=server_share_s),
            noise=found,
            session=self._session,
        )

    def _request(self, plan: LaunchPlan, measured_s: float, target_loss: TargetLoss | None) -> LaunchRequest:
        return LaunchRequest(
            case=plan.case,
            purpose=plan.purpose,
            round=plan.round,
            measured_s=measured_s,
            target_loss=target_loss,
            run_id=self._run_id,
        )

    def _fresh(self, request: LaunchRequest) -> LaunchDir:
        """Make the launch's directory with its request in it. An existing directory of that name is renamed first."""
        directory = self._run.launch(request.case.case_id, request.purpose, request.round)
        if directory.path.exists():
            self._run.set_aside(directory)
        directory.path.mkdir(parents=True)
        request.write(directory.request)
        return directory

    def _noise_of(self, server: Ranks, plan: LaunchPlan) -> NoiseWatch:
        """Return a new monitor, which measures the load that other programs put on the launch's cores."""
        return NoiseWatch(
            plan.cores,
            lambda: [
                pid for pid in server.pids if pid != server.pid
            ],  # a launcher's own process, if it is not known yet
            shared_machine=self._shared,
            # A fork server reports the helpers' times when ranks end.
            helpers=plan.case.loader_workers > 0 and not server.reports_helper_times,
        )

    def _turn_of(self, plan: LaunchPlan) -> dict[str, str]:
        """Return the environment variable that makes ranks wait for their turn between blocks; empty if none waits."""
        turn = self._turn
        waits = (
            turn is not None and not turn.alone and plan.purpose == "measure" and not whole_because(plan.case)
        )
        return {TURN: turn.address} if turn is not None and waits else {}

    def _watch(
        self,
        server: Ranks,
        seen: Seen,
        noise: NoiseWatch,
        on_pulse: Callable[[Pulse], None],
        lost: Callable[[], str],
    ) -> None:
        while seen.left:
            for event in server.events(POLL_S):
                if event["event"] != "exited":
                    continue
                rank, at = int(event["rank"]), time.monotonic()
                seen.beat(rank, server.pulse(rank), at)
                seen.exited(rank, int(event["code"]), float(event["cpu_s"]), at)
            now = time.monotonic()
            for rank in range(seen.ranks):
                seen.beat(rank, server.pulse(rank), now)
            noise.tick(computing=seen.pulse(0).phase == "timed steps")
            on_pulse(seen.pulse(0))
            if not seen.server_gone and (seen.left or seen.first_bad is not None):
                seen.server_gone = lost()
            if seen.server_gone or seen.must_end(now):
                self._end(server, seen)
            elif seen.hangs(now, self._hang_timeout_s):
                self._explain_hang(server, seen)
                self._end(server, seen)
            if seen.unheard(now):
                return

    def _end(self, server: Ranks, seen: Seen) -> None:
        seen.end(time.monotonic())
        server.signal_ranks(signal.SIGKILL, tuple(server.pids[rank] for rank in seen.left))

    def _explain_hang(self, server: Ranks, seen: Seen) -> None:
        """Record which rank the others wait for, and make every rank write its stack traces into its log.

        Raises:
            ServerGoneError: the server is stopped; the ranks may have ended long ago.
        """
        if server.is_stopped:
            server.give_up_stopped()
        stopped = [rank for rank in seen.left if is_stopped(server.pids[rank])]
        for rank in seen.left:
            if rank not in stopped:
                server.signal_ranks(signal.SIGUSR1, (server.pids[rank],))
        time.sleep(STACKS_S)
        seen.explain_hang(stopped, self._hang_timeout_s, self._hang_setting)


def whole_because(case: Case) -> str:
    """Return why the two sides of a comparison must alternate by entire launches of this case, not by blocks of steps.

    The text is a clause; it is empty if the sides can alternate by blocks.
    """
    if case.device != "cpu":
        return "both launches would hold a GPU's memory"
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
    """Return what is known about a launch's ranks before any of them has started."""
    recovers = plan.case.recovery != "off"
    return Seen(
        ranks=len(plan.ranks),
        alive_at=start,
        still_s=plan.case.collective_timeout + RESTART_S if recovers else 0.0,
        start_s=START_S.get(plan.case.launcher, 0.0),
    )


def _remove_checkpoints(request: LaunchRequest, directory: LaunchDir) -> None:
    """Remove the checkpoints of a launch, because killed ranks could not remove them."""
    case = request.case
    if case.checkpoint or case.recovery != "off":
        with contextlib.suppress(OutputError):  # other users may be able to write there meanwhile
            remove_tree(directory.checkpoints(case.checkpoint_dir, request.run_id), private=True)
