"""How a launch ends: what its watchdog sees of its ranks, when that is enough, and the status it comes to."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpbench.errors import LaunchError
from ddpbench.records import (
    Block,
    Curve,
    LaunchDir,
    LaunchOutcome,
    LaunchRecords,
    LaunchRequest,
    Noise,
    Proof,
    RankOutcome,
    RunDir,
    Snapshot,
    Status,
    Warmup,
    as_json,
    read_launch,
    write_atomically,
)
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.rundir import Purpose

POLL_S = 0.2
"""A watchdog wakes this often; each time costs tens of microseconds on a core that ranks may be using."""
REAP_S = 10.0
"""How long after killing ranks their ends are waited for."""
GRACE_S = 3.0
"""How long the other ranks may take to end by themselves after one has failed."""
STACKS_S = 0.3
"""How long ranks are given to write their stacks into their logs."""
GIVE_UP_AFTER = 2
"""A case that failed this often and never succeeded is not launched again."""
EXIT_NO_RECORD = 74  # os.EX_IOERR: the rank could not write its records
_NO_MESSAGE = "did not go through"
"""How `collectives.transport.CollectiveError` ends what it says of a message."""
_PEER_ERRORS = (
    _NO_MESSAGE,
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
)
_UNBORN = Pulse(0, "starting")

Key = tuple[str, Purpose, int]
"""A launch of a plan: case id, purpose, round."""


@dataclass(slots=True)
class Seen:
    """What the watchdog knows of a launch under way. `now` is always its own monotonic clock, seconds."""

    ranks: int
    alive_at: float
    codes: dict[int, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    pulses: dict[int, Pulse] = field(default_factory=dict)
    first_bad: int | None = None
    first_bad_at: float = 0.0
    ended_by_us: set[int] = field(default_factory=set)
    ended_at: float | None = None
    hang: str = ""
    hung_rank: int | None = None
    server_gone: str = ""

    @property
    def left(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank in range(self.ranks) if rank not in self.codes]

    def exited(self, rank: int, code: int, cpu_s: float, now: float) -> None:
        """A rank has ended; minus a signal's number is the code of one that was killed."""
        self.codes[rank] = code
        self.cpu_s += cpu_s
        self.alive_at = now
        if code == 0 or rank in self.ended_by_us:
            return
        if self.first_bad is None:
            self.first_bad, self.first_bad_at = rank, now
        elif code < 0 <= self.codes[self.first_bad]:
            self.first_bad = rank  # the others failed because this one was killed, and were heard of first

    def beat(self, rank: int, pulse: Pulse, now: float) -> None:
        """A rank's heartbeat as it reads now; a change is a sign of life of the whole launch."""
        if self.pulses.get(rank) != pulse:
            self.pulses[rank] = pulse
            self.alive_at = now

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's last known heartbeat."""
        return self.pulses.get(rank, _UNBORN)

    def must_end(self, now: float) -> bool:
        """Return whether a rank has failed and the others have had their time to end by themselves."""
        return self.first_bad is not None and now - self.first_bad_at > GRACE_S

    def hangs(self, now: float, timeout_s: float) -> bool:
        """Return whether no rank has shown life for so long; False once that has been explained."""
        return not self.hang and now - self.alive_at > timeout_s

    def end(self, now: float) -> None:
        """Notes that all ranks that are left are being ended."""
        self.ended_by_us.update(self.left)
        self.ended_at = self.ended_at or now

    def unheard(self, now: float) -> bool:
        """Return whether ranks were killed and have not been heard of: their codes stay unknown."""
        return self.ended_at is not None and now - self.ended_at > REAP_S

    def explain_hang(self, stopped: Sequence[int], timeout_s: float, setting: str) -> None:
        """Notes which rank holds the others up. `setting` is what a user changes to wait longer."""
        if stopped:
            self.hung_rank = stopped[0]
            what = f"rank {stopped[0]} is stopped (by SIGSTOP or a debugger)"
        else:
            self.hung_rank = min(self.left, key=lambda rank: self.pulse(rank).steps)
            what = f"rank {self.hung_rank} made no step"
        pulse = self.pulse(self.hung_rank)
        self.hang = (
            f"{what} in {pulse.phase} after {pulse.steps} steps; ended after {timeout_s:g} s without "
            f"progress. The ranks' stacks are in their logs; raise {setting} if steps take that long"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A launch's status, and for what is not ok a sentence, the rank it is about and its phase."""

    status: Status
    error: str = ""
    rank: int | None = None
    phase: str = ""


def judge(records: LaunchRecords, seen: Seen, *, purpose: Purpose, oom: bool) -> Verdict:
    """Return the launch's status: a hang, then a rank killed from outside, then the first rank that said what failed.

    `oom`: the kernel's out-of-memory killer struck meanwhile.

    Raises:
        LaunchError: a rank could not write its records.
    """
    directory = records.directory
    if EXIT_NO_RECORD in seen.codes.values():
        free = shutil.disk_usage(directory.path).free
        cause = "the disk is full" if free < 1 << 20 else "see its log"
        raise LaunchError(
            f"a rank could not write its records in {directory.path}: {cause}. "
            "Mend it, then run the same command again to resume"
        )
    if seen.server_gone:
        advice = (
            "this machine ran out of memory: use a smaller batch or model" if oom else "use --retry-failed"
        )
        status: Status = "oom" if oom else "failed"
        return Verdict(status=status, error=f"{seen.server_gone}, and its ranks with it; {advice}")
    if seen.hang:
        rank = seen.hung_rank or 0
        return Verdict(status="hung", error=seen.hang, rank=rank, phase=seen.pulse(rank).phase)
    killed = seen.first_bad
    if killed is not None and seen.codes[killed] < 0:
        name = signal.Signals(-seen.codes[killed]).name
        pulse = seen.pulse(killed)
        where = f"in {pulse.phase} after {pulse.steps} steps"
        if oom and name == "SIGKILL":
            error = f"rank {killed} was killed {where}: this machine ran out of memory; use a smaller batch or model"
            return Verdict(status="oom", error=error, rank=killed, phase=pulse.phase)
        error = (
            f"rank {killed} was killed by {name} {where}{_missed(records)}; see {directory.log(killed).name}"
        )
        return Verdict(status="failed", error=error, rank=killed, phase=pulse.phase)
    outcomes = _outcomes(records)
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
        return Verdict(status=outcome.status, error=error, rank=rank, phase=outcome.phase)
    if killed is not None:
        log = directory.log(killed).name
        error = f"rank {killed} ended with exit code {seen.codes[killed]} and no record; see {log}"
        return Verdict(status="failed", error=error, rank=killed, phase=seen.pulse(killed).phase)
    silent = [rank for rank in range(seen.ranks) if outcomes.get(rank) is None]
    if silent:
        error = f"rank {silent[0]} ended without saying how (code that calls os._exit?)"
        return Verdict(status="failed", error=error, rank=silent[0])
    if purpose == "proof" and not any(rank.of(Proof) for rank in records.ranks):
        return Verdict(status="failed", error="the proof made no comparison")
    if records.damage:
        return Verdict(status="failed", error=f"damaged records: {records.damage[0]}")
    return Verdict(status="ok")


def conclude(
    directory: LaunchDir,
    request: LaunchRequest,
    seen: Seen,
    *,
    oom: bool,
    started_utc: str,
    wall_s: float,
    server_s: float,
    noise: Noise,
    session: str = "",
) -> LaunchOutcome:
    """Judges a launch of which all ranks are gone, and writes its outcome.

    `session` is the id of the sweep that ran it; launches of different ones are not pairs.

    Raises:
        LaunchError: a rank could not write its records.
        OSError: the outcome cannot be written.
    """
    records = read_launch(directory)
    verdict = judge(records, seen, purpose=request.purpose, oom=oom)
    outcome = LaunchOutcome(
        case_id=request.case.case_id,
        round=request.round,
        purpose=request.purpose,
        status=verdict.status,
        error=verdict.error,
        failed_rank=verdict.rank,
        phase=verdict.phase,
        last_log_line=last_log_line(directory, verdict.rank) if verdict.status != "ok" else "",
        exit_codes=tuple(seen.codes.get(rank) for rank in range(seen.ranks)),
        started_utc=started_utc,
        wall_s=round(wall_s, 6),
        measured_s=round(measured_seconds(records), 6),
        server_s=round(server_s, 6),
        noise=noise,
        session=session,
    )
    write_atomically(directory.outcome, json.dumps(as_json(outcome), indent=1) + "\n")
    return outcome


def _outcomes(records: LaunchRecords) -> dict[int, RankOutcome | None]:
    return {rank.rank: rank.last(RankOutcome) for rank in records.ranks}


def _missed(records: LaunchRecords) -> str:
    """Return what another rank was waiting for when it failed, where it could tell: which collective, and from whom."""
    told = (outcome.error for outcome in _outcomes(records).values() if outcome is not None)
    missed = next((error for error in told if _NO_MESSAGE in error), "")
    start = missed.find("rank ")
    return f"; {missed[start : missed.index(_NO_MESSAGE)]}{_NO_MESSAGE}" if missed else ""


def _is_peer_error(outcome: RankOutcome) -> bool:
    return any(words in outcome.error.lower() for words in _PEER_ERRORS)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"


def last_log_line(directory: LaunchDir, rank: int | None) -> str:
    """Return the last line a rank wrote to its log, or nothing."""
    if rank is None:
        return ""
    try:
        lines = directory.log(rank).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    filled = [line.strip() for line in lines if line.strip()]
    return filled[-1][:500] if filled else ""


def measured_seconds(records: LaunchRecords) -> float:
    """Rank 0's time in warm-up, steps of every kind and snapshots, seconds; building and proof are not in it."""
    for rank in records.ranks:
        warmup, blocks = rank.last(Warmup), rank.of(Block)
        if rank.rank != 0 or warmup is None or not blocks:
            continue
        timed = [block.end_ns for block in blocks if block.phase == "timed"]
        extra = sum(block.end_ns - block.start_ns for block in blocks if block.phase != "timed")
        extra += sum(snapshot.end_ns - snapshot.start_ns for snapshot in rank.of(Snapshot))
        extra += sum(curve.end_ns - curve.start_ns for curve in rank.of(Curve))
        return (max(timed, default=warmup.end_ns) - warmup.start_ns + extra) / 1e9
    return 0.0


def finished_launches(run: RunDir, case_ids: Sequence[str]) -> tuple[dict[Key, LaunchOutcome], set[Key]]:
    """Return the outcomes earlier sessions left in a run, and which of those launches have damaged records."""
    outcomes: dict[Key, LaunchOutcome] = {}
    damaged: set[Key] = set()
    for case_id in case_ids:
        for directory in [run.launch(case_id, "proof"), *run.launches(case_id)]:
            if not directory.outcome.exists():
                continue
            records = read_launch(directory)
            outcome = records.outcome
            if outcome is None:
                continue
            key = (case_id, outcome.purpose, outcome.round)
            outcomes[key] = outcome
            if records.damage:
                damaged.add(key)
    return outcomes, damaged


def given_up(case_id: str, outcomes: Mapping[Key, LaunchOutcome]) -> bool:
    """Return whether launching a case again would teach nothing: its proof failed, or it keeps failing."""
    proof = outcomes.get((case_id, "proof", 0))
    if proof is not None and proof.status != "ok":
        return True
    statuses = [
        outcome.status
        for (other, purpose, _), outcome in outcomes.items()
        if other == case_id and purpose == "measure"
    ]
    return "ok" not in statuses and len(statuses) >= GIVE_UP_AFTER


def is_ok(case_id: str, outcomes: Mapping[Key, LaunchOutcome], rounds_min: int) -> bool:
    """Return whether a case is ok as the report counts: proved, and launched well as often as was asked at least."""
    proof = outcomes.get((case_id, "proof", 0))
    if proof is None or proof.status != "ok":
        return False
    well = [
        outcome
        for (other, purpose, _), outcome in outcomes.items()
        if other == case_id and purpose == "measure" and outcome.status == "ok"
    ]
    return len(well) >= rounds_min
