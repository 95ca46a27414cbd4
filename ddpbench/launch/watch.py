"""Runs one launch to its end: starts its ranks, watches their heartbeats, and says how they ended."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ddpbench.errors import LaunchError, ServerGoneError
from ddpbench.launch.noise import NoiseWatch, oom_kills
from ddpbench.launch.plan import LaunchPlan
from ddpbench.launch.server import ServerProcess
from ddpbench.records import (
    Block,
    LaunchDir,
    LaunchOutcome,
    LaunchRecords,
    LaunchRequest,
    Proof,
    RankOutcome,
    RunDir,
    Status,
    Warmup,
    as_json,
    read_launch,
    write_atomically,
)
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.rundir import Purpose

POLL_S = 0.2
"""The watchdog wakes this often; each time costs tens of microseconds on a core that ranks may be using."""
REAP_S = 10.0
"""How long after killing ranks their ends are waited for."""
GRACE_S = 3.0
"""How long the other ranks may take to end by themselves after one has failed."""
EXIT_NO_RECORD = 74  # os.EX_IOERR: the rank could not write its records
_PEER_ERRORS = ("connection closed by peer", "connection reset by peer", "connection refused", "broken pipe")


@dataclass(slots=True)
class _Watched:
    """What the watchdog knows of a launch under way."""

    codes: dict[int, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    first_bad: int | None = None
    first_bad_at: float = 0.0
    ended_by_us: set[int] = field(default_factory=set)
    ended_at: float | None = None
    hang: str = ""
    hung_rank: int | None = None
    server_gone: str = ""


class LaunchRunner:
    """Runs launches on a fork server and writes their outcomes."""

    def __init__(self, run: RunDir, *, hang_timeout_s: float, hang_setting: str, shared: bool) -> None:
        """`hang_setting` is what a user changes to wait longer; `shared` that other sweeps may run beside."""
        self._run = run
        self._hang_timeout_s = hang_timeout_s
        self._hang_setting = hang_setting
        self._shared = shared

    def run_launch(
        self,
        server: ServerProcess,
        plan: LaunchPlan,
        *,
        measured_s: float,
        server_share_s: float,
        on_pulse: Callable[[Pulse], None] = lambda _: None,
    ) -> LaunchOutcome:
        """One launch from request to outcome.

        Raises:
            LaunchError: ranks cannot be started at all, or their records cannot be written.
            OSError: the run directory cannot be written any more.
        """
        directory = self._run.launch(plan.case.case_id, plan.purpose, plan.round)
        if directory.path.exists():
            self._run.set_aside(directory)
        directory.path.mkdir(parents=True)
        request = LaunchRequest(case=plan.case, purpose=plan.purpose, round=plan.round, measured_s=measured_s)
        request.write(directory.request)
        started_utc = datetime.now(UTC).isoformat(timespec="seconds")
        noise = NoiseWatch(
            plan.cores,
            server.pid,
            shared_machine=self._shared,
            helpers=plan.case.loader_workers > 0,
        )
        oom_before = oom_kills()
        start = time.monotonic()
        watched = _Watched()
        try:
            server.launch(plan, directory)
            self._watch(server, len(plan.ranks), watched, noise, on_pulse)
        except ServerGoneError as error:
            server.signal_ranks(signal.SIGKILL)
            watched.server_gone = str(error)
        server.pids = ()
        wall_s = time.monotonic() - start
        directory.rendezvous.unlink(missing_ok=True)
        records = read_launch(directory)
        verdict = _judge(
            records, watched, directory, server, purpose=plan.purpose, oom=oom_kills() > oom_before
        )
        outcome = LaunchOutcome(
            case_id=plan.case.case_id,
            round=plan.round,
            purpose=plan.purpose,
            status=verdict.status,
            error=verdict.error,
            failed_rank=verdict.rank,
            phase=verdict.phase,
            last_log_line=last_log_line(directory, verdict.rank) if verdict.status != "ok" else "",
            exit_codes=tuple(watched.codes.get(rank) for rank in range(len(plan.ranks))),
            started_utc=started_utc,
            wall_s=round(wall_s, 6),
            measured_s=round(measured_seconds(records), 6),
            server_s=round(server_share_s, 6),
            noise=noise.stop(watched.cpu_s),
        )
        write_atomically(directory.outcome, json.dumps(as_json(outcome), indent=1) + "\n")
        return outcome

    def _watch(
        self,
        server: ServerProcess,
        ranks: int,
        watched: _Watched,
        noise: NoiseWatch,
        on_pulse: Callable[[Pulse], None],
    ) -> None:
        pids = server.pids
        pulses: dict[int, Pulse] = {}
        alive_at = time.monotonic()
        while len(watched.codes) < ranks:
            for event in server.events(POLL_S):
                if event["event"] != "exited":
                    continue
                rank, code = int(event["rank"]), int(event["code"])
                watched.codes[rank] = code
                watched.cpu_s += float(event["cpu_s"])
                alive_at = time.monotonic()
                with contextlib.suppress(ProcessLookupError):  # loader workers outlive a killed rank
                    server.signal_ranks(signal.SIGKILL, (pids[rank],))
                if code != 0 and watched.first_bad is None and rank not in watched.ended_by_us:
                    watched.first_bad, watched.first_bad_at = rank, time.monotonic()
            now = time.monotonic()
            seen = {rank: server.pulse(rank) for rank in range(ranks)}
            if seen != pulses:
                pulses, alive_at = seen, now
            noise.tick(computing=seen[0].phase == "timed steps")
            on_pulse(seen[0])
            left = [rank for rank in range(ranks) if rank not in watched.codes]
            if watched.first_bad is not None and now - watched.first_bad_at > GRACE_S:
                self._end(server, left, watched)
            if watched.ended_at is not None and now - watched.ended_at > REAP_S:
                return  # killed, and not heard of: their codes stay unknown
            elif now - alive_at > self._hang_timeout_s and not watched.hang:
                self._explain_hang(server, left, seen, watched)
                self._end(server, left, watched)
            if watched.ended_at is not None and now - watched.ended_at > REAP_S:
                return  # killed, and not heard of: their codes stay unknown

    def _end(self, server: ServerProcess, ranks: list[int], watched: _Watched) -> None:
        watched.ended_by_us.update(ranks)
        watched.ended_at = watched.ended_at or time.monotonic()
        server.signal_ranks(signal.SIGKILL, tuple(server.pids[rank] for rank in ranks))

    def _explain_hang(
        self, server: ServerProcess, ranks: list[int], pulses: dict[int, Pulse], watched: _Watched
    ) -> None:
        """Notes which rank holds the others up, and has each write its stacks into its log."""
        stopped = [rank for rank in ranks if _state(server.pids[rank]) in "Tt"]
        for rank in ranks:
            if rank not in stopped:
                server.signal_ranks(signal.SIGUSR1, (server.pids[rank],))
        time.sleep(0.3)  # for the stacks to be written
        if stopped:
            watched.hung_rank = stopped[0]
            what = f"rank {stopped[0]} is stopped (by SIGSTOP or a debugger)"
        else:
            watched.hung_rank = min(ranks, key=lambda rank: pulses[rank].steps)
            what = f"rank {watched.hung_rank} made no step"
        pulse = pulses[watched.hung_rank]
        watched.hang = (
            f"{what} in {pulse.phase} after {pulse.steps} steps; ended after {self._hang_timeout_s:g} s without "
            f"progress. The ranks' stacks are in their logs; raise {self._hang_setting} if steps take that long"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Verdict:
    status: Status
    error: str = ""
    rank: int | None = None
    phase: str = ""


def _judge(
    records: LaunchRecords,
    watched: _Watched,
    directory: LaunchDir,
    server: ServerProcess,
    *,
    purpose: Purpose,
    oom: bool,
) -> _Verdict:
    """The launch's status: a hang, then a rank killed from outside, then the first rank that said what failed."""
    if EXIT_NO_RECORD in watched.codes.values():
        free = shutil.disk_usage(directory.path).free
        cause = "the disk is full" if free < 1 << 20 else "see its log"
        raise LaunchError(
            f"a rank could not write its records in {directory.path}: {cause}. "
            "Mend it, then run the same command again to resume"
        )
    if watched.server_gone:
        advice = (
            "this machine ran out of memory: use a smaller batch or model" if oom else "use --retry-failed"
        )
        status: Status = "oom" if oom else "failed"
        return _Verdict(status=status, error=f"{watched.server_gone}, and its ranks with it; {advice}")
    if watched.hang:
        rank = watched.hung_rank or 0
        return _Verdict(status="hung", error=watched.hang, rank=rank, phase=server.pulse(rank).phase)
    killed = watched.first_bad
    if killed is not None and watched.codes[killed] < 0:
        name = signal.Signals(-watched.codes[killed]).name
        pulse = server.pulse(killed)
        where = f"in {pulse.phase} after {pulse.steps} steps"
        if oom and name == "SIGKILL":
            error = f"rank {killed} was killed {where}: this machine ran out of memory; use a smaller batch or model"
            return _Verdict(status="oom", error=error, rank=killed, phase=pulse.phase)
        error = f"rank {killed} was killed by {name} {where}; see {directory.log(killed).name}"
        return _Verdict(status="failed", error=error, rank=killed, phase=pulse.phase)
    outcomes = {rank.rank: rank.last(RankOutcome) for rank in records.ranks}
    bad = [
        (rank, outcome)
        for rank, outcome in outcomes.items()
        if outcome is not None and outcome.status != "ok"
    ]
    if bad:
        # When a rank fails the others lose their connection to it: theirs is the later, lesser failure.
        bad.sort(key=lambda item: (_is_peer_error(item[1]), item[1].finished_ns))
        rank, outcome = bad[0]
        error = f"rank {rank} {f'in {outcome.phase}' if outcome.phase else ''}: {outcome.error}"
        return _Verdict(status=outcome.status, error=error, rank=rank, phase=outcome.phase)
    if killed is not None:
        log = directory.log(killed).name
        error = f"rank {killed} ended with exit code {watched.codes[killed]} and no record; see {log}"
        return _Verdict(status="failed", error=error, rank=killed, phase=server.pulse(killed).phase)
    silent = [rank for rank in range(len(watched.codes)) if outcomes.get(rank) is None]
    if silent:
        error = f"rank {silent[0]} ended without saying how (code that calls os._exit?)"
        return _Verdict(status="failed", error=error, rank=silent[0])
    if purpose == "proof" and not any(rank.of(Proof) for rank in records.ranks):
        return _Verdict(status="failed", error="the proof made no comparison")
    if records.damage:
        return _Verdict(status="failed", error=f"damaged records: {records.damage[0]}")
    return _Verdict(status="ok")


def _is_peer_error(outcome: RankOutcome) -> bool:
    return any(words in outcome.error.lower() for words in _PEER_ERRORS)


def _state(pid: int) -> str:
    """A process's state letter; `T` is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "?"


def last_log_line(directory: LaunchDir, rank: int | None) -> str:
    """The last line a rank wrote to its log, or nothing."""
    if rank is None:
        return ""
    try:
        lines = directory.log(rank).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    filled = [line.strip() for line in lines if line.strip()]
    return filled[-1][:500] if filled else ""


def measured_seconds(records: LaunchRecords) -> float:
    """Rank 0's time in warm-up, timed and instrumented steps, seconds; building and proof are not in it."""
    for rank in records.ranks:
        warmup, blocks = rank.last(Warmup), rank.of(Block)
        if rank.rank != 0 or warmup is None or not blocks:
            continue
        timed = [block.end_ns for block in blocks if block.phase == "timed"]
        extra = sum(block.end_ns - block.start_ns for block in blocks if block.phase != "timed")
        return (max(timed, default=warmup.end_ns) - warmup.start_ns + extra) / 1e9
    return 0.0
