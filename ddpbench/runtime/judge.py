"""Decide whether an ended launch succeeded, and why not, from the watchdog's observations and the ranks' records."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpbench.causes import is_users, limits_part, signals_part
from ddpbench.errors import NOT_TRANSFERRED, LaunchError, UnreadableError
from ddpbench.guard import signal_name
from ddpbench.machine.disturbance import OUT_OF
from ddpbench.records import (
    Block,
    Checkpoint,
    LaunchDir,
    LaunchOutcome,
    LaunchRecords,
    LaunchRequest,
    LossCurve,
    Noise,
    Proof,
    RankOutcome,
    Status,
    Warmup,
    read_launch,
    write_atomically,
)
from ddpbench.records.files import check_room, field_lines, read_end
from ddpbench.records.reader import RankRecords
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.launched import RESTARTS
from ddpbench.runtime.watchdog import Seen

EXIT_NO_RECORD = 74  # os.EX_IOERR: the rank could not write its records
_PEER_ERRORS = (
    NOT_TRANSFERRED,
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "remote process exited",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchVerdict:
    """A launch's status; if it is not ok, also the cause as a sentence, the failed rank and its phase."""

    status: Status
    error: str = ""
    rank: int | None = None
    phase: str = ""


def judge(records: LaunchRecords, seen: Seen, *, purpose: Purpose, oom: bool) -> LaunchVerdict:
    """Return a launch's verdict: ok, or the cause of failure from the first check that finds one.

    `oom` is true if the kernel's out-of-memory killer struck during the launch.

    Raises:
        LaunchError: a rank could not write its records.
    """
    _check_written(records.directory, seen)
    return (
        _server_gone(seen, oom=oom)
        or _hung(records, seen)
        or _rank_killed(records, seen, oom=oom)
        or _left_early(records, seen)
        or _said_what_failed(records)
        or _ended_unrecorded(records, seen)
        or _silent(records, seen)
        or _not_whole(records, purpose)
        or LaunchVerdict(status="ok")
    )


def _check_written(directory: LaunchDir, seen: Seen) -> None:
    """Check that every rank could write its records.

    Raises:
        LaunchError: a rank could not write its records.
    """
    if EXIT_NO_RECORD in seen.codes.values():
        free = shutil.disk_usage(directory.path).free
        cause = "the disk is full" if free < 1 << 20 else "see its log"
        raise LaunchError(f"a rank could not write its records in {directory.path}: {cause}")


def _server_gone(seen: Seen, *, oom: bool) -> LaunchVerdict | None:
    if not seen.server_gone:
        return None
    advice = "this machine ran out of memory: use a smaller batch or model" if oom else "use --retry-failed"
    error = f"{seen.server_gone}, and its ranks with it; {advice}"
    if oom and OUT_OF in seen.server_gone:  # the text already says what to do
        error = f"{seen.server_gone}, and its ranks with it"
    return LaunchVerdict(status="oom" if oom else "failed", error=error)


def _hung(records: LaunchRecords, seen: Seen) -> LaunchVerdict | None:
    if not seen.hang:
        return None
    rank, error = seen.hung_rank or 0, seen.hang
    differ = unequal_collectives(records.directory, sorted(seen.ended_by_us)) if seen.hang_advice else ""
    if differ:
        error = (
            f"ranks wait for one another in different collectives {seen.where(rank)} ({differ}): their steps differ, "
            f"for example because each uses other blocks of the model for its own batch; {seen.hang_end}"
        )
    elif seen.hang_advice:  # steps don't show which rank lacks data: all stop at the same one
        for each in sorted(seen.ended_by_us):
            place = waiting_for_data(records.directory, each)
            if place is not None:
                rank = each
                advice = seen.hang_advice.format(what="a batch")
                error = (
                    f"rank {rank} waits for its next batch {seen.where(rank)}{place}: its dataset, loader or storage "
                    f"gives none; {advice}"
                )
                break
    return LaunchVerdict(status="hung", error=error, rank=rank, phase=seen.pulse(rank).phase)


def _rank_killed(records: LaunchRecords, seen: Seen, *, oom: bool) -> LaunchVerdict | None:
    killed = seen.first_bad
    if killed is None or seen.codes[killed] >= 0:
        return None
    name = signal_name(-seen.codes[killed])
    pulse = seen.pulse(killed)
    where = f"in {pulse.phase} after {pulse.steps} steps"
    if oom and name == "SIGKILL":
        error = (
            f"rank {killed} was killed {where}: this machine ran out of memory; use a smaller batch or model"
        )
        return LaunchVerdict(status="oom", error=error, rank=killed, phase=pulse.phase)
    log = records.directory.log(killed).name
    why = f"{signals_part(name)}{limits_part(log_end(records.directory, killed))}"
    error = f"rank {killed} was killed by {name} {where}{_missed(records)}{why}; see {log}"
    return LaunchVerdict(status="failed", error=error, rank=killed, phase=pulse.phase)


def _left_early(records: LaunchRecords, seen: Seen) -> LaunchVerdict | None:
    outcomes = _outcomes(records)
    left = [
        rank
        for rank, code in seen.codes.items()
        if code >= 0 and outcomes.get(rank) is None and rank not in seen.ended_by_us
    ]
    failed = [one for one in outcomes.values() if one is not None and one.status != "ok"]
    lost = all(map(_is_peer_error, failed))
    if not left or not (seen.first_bad in left or lost):
        return None
    if seen.first_bad in left and seen.codes[seen.first_bad] == 1 and not lost:
        return None  # Ray ends the other ranks with code 1, and may report their ends first
    rank = seen.first_bad if seen.first_bad in left else left[0]
    code = seen.codes[rank]
    how = f"with exit code {code} and no record" if code else "without saying how"
    hint = "" if code == 1 else f" (code that calls os._exit({code})?)"  # 1 is a failing interpreter's code
    limits = limits_part(log_end(records.directory, rank))
    error = (
        f"rank {rank} ended {how} {seen.where(rank)}{hint}{limits}; see {records.directory.log(rank).name}"
    )
    return LaunchVerdict(status="failed", error=error, rank=rank, phase=seen.pulse(rank).phase)


def _said_what_failed(records: LaunchRecords) -> LaunchVerdict | None:
    bad = [
        (rank, outcome)
        for rank, outcome in _outcomes(records).items()
        if outcome is not None and outcome.status != "ok"
    ]
    if not bad:
        return None
    # When a rank fails, the others lose their connection to it, and record failures that are not the cause.
    bad.sort(key=lambda item: (_is_peer_error(item[1]), item[1].finished_ns))
    rank, outcome = bad[0]
    if outcome.status == "skipped":  # the reason is the strategy's and holds on every rank
        return LaunchVerdict(status="skipped", error=outcome.error, rank=rank, phase=outcome.phase)
    error = f"rank {rank}{f' in {outcome.phase}' if outcome.phase else ''}: {outcome.error}"
    if max(each.attempt for each in records.ranks) >= RESTARTS:
        error += f" (torchrun restarted its ranks {RESTARTS} times, the most allowed)"
    return LaunchVerdict(status=outcome.status, error=error, rank=rank, phase=outcome.phase)


def _ended_unrecorded(records: LaunchRecords, seen: Seen) -> LaunchVerdict | None:
    bad = seen.first_bad
    if bad is None:
        return None
    log = records.directory.log(bad).name
    error = f"rank {bad} ended with exit code {seen.codes[bad]} and no record; see {log}"
    return LaunchVerdict(status="failed", error=error, rank=bad, phase=seen.pulse(bad).phase)


def _silent(records: LaunchRecords, seen: Seen) -> LaunchVerdict | None:
    outcomes = _outcomes(records)
    silent = [rank for rank in range(seen.ranks) if outcomes.get(rank) is None]
    if not silent:
        return None
    error = f"rank {silent[0]} ended without saying how; see {records.directory.log(silent[0]).name}"
    return LaunchVerdict(status="failed", error=error, rank=silent[0])


def _not_whole(records: LaunchRecords, purpose: Purpose) -> LaunchVerdict | None:
    if purpose == "proof" and not any(rank.of(Proof) for rank in records.ranks):
        return LaunchVerdict(status="failed", error="the proof made no comparison")
    if records.damage:
        return LaunchVerdict(status="failed", error=f"damaged records: {records.damage[0]}")
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Took:
    """When a launch began and how long it took (s), including `server_s` to start its fork server."""

    started_utc: str
    wall_s: float
    server_s: float


def conclude(
    directory: LaunchDir,
    request: LaunchRequest,
    seen: Seen,
    *,
    oom: bool,
    took: Took,
    noise: Noise,
    session: str = "",
    alternated: tuple[tuple[str, ...], ...] | None = None,
) -> LaunchOutcome:
    """Judge a launch whose ranks have all ended, and write its outcome to the launch's directory.

    `session` is the id of the sweep; launches of different sessions are not paired. If the launch waited for others,
    the foreign share of `noise` is theirs and set to 0, unless `alternated` says that they were of this process.

    Raises:
        LaunchError: a rank could not write its records.
        OSError: the disk is too full for the outcome or for a rank's records, so that no rank is to blame.
    """
    records = read_launch(directory)
    verdict = judge(records, seen, purpose=request.purpose, oom=oom)
    if verdict.status == "failed":
        check_room(directory.path)
    waited_s = waited_seconds(records)
    if waited_s > 0:
        foreign = 0.0 if alternated is None else noise.foreign_fraction
        noise = replace(noise, in_turn=True, foreign_fraction=foreign)
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
        started_utc=took.started_utc,
        wall_s=round(took.wall_s - waited_s, 6),
        measured_s=round(measured_seconds(records), 6),
        server_s=round(took.server_s, 6),
        noise=noise,
        session=session,
        run_id=request.run_id,
        alternated=alternated or (),
    )
    write_atomically(directory.outcome, field_lines(outcome.to_json()))
    return outcome


def _outcomes(records: LaunchRecords) -> dict[int, RankOutcome | None]:
    return {rank.rank: rank.last(RankOutcome) for rank in records.ranks}


def _missed(records: LaunchRecords) -> str:
    errors = (outcome.error for outcome in _outcomes(records).values() if outcome is not None)
    missed = next((error for error in errors if NOT_TRANSFERRED in error), "")
    start = missed.find("rank ")
    return f"; {missed[start : missed.index(NOT_TRANSFERRED)]}{NOT_TRANSFERRED}" if missed else ""


def _is_peer_error(outcome: RankOutcome) -> bool:
    return any(words in outcome.error.lower() for words in _PEER_ERRORS)


def last_log_line(directory: LaunchDir, rank: int | None) -> str:
    """Return the last non-empty line of a rank's log, cut to 500 characters; `""` if there is none."""
    if rank is None:
        return ""
    filled = [line.strip() for line in log_end(directory, rank).splitlines() if line.strip()]
    return filled[-1][:500] if filled else ""


def log_end(directory: LaunchDir, rank: int) -> str:
    """Return the last part of a rank's log; `""` if it cannot be read."""
    try:
        return read_end(directory.log(rank), _STACKS_BYTES).decode(errors="replace")
    except (OSError, UnreadableError):
        return ""


_LOADING = re.compile(r'File "[^"]*ddpbench/worker/training/batches\.py", line \d+ in ')
"""Pattern of a stack frame, as faulthandler writes it, in which a batch is loaded. Frames of exceptions do not match,
because they have a comma after the line number.
"""
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in ')
_STACKS_BYTES = 1 << 18


_COLLECTIVE = re.compile(
    r'File "[^"]*torch/distributed/distributed_c10d\.py", line \d+ in '
    r"_?((?:all_|reduce|broadcast|barrier|gather|scatter)\w*)"
)
"""Pattern of a stack frame in which a rank waits for a collective of all ranks of a group."""


def unequal_collectives(directory: LaunchDir, ranks: Sequence[int]) -> str:
    """Describe the collectives in which ranks wait, from the stacks in their logs, such as `rank 0 in all_gather`.

    The result is empty if some rank is in no collective, or if all are in the same one.
    """
    found: dict[int, str] = {}
    for rank in ranks:
        _, current, stack = log_end(directory, rank).rpartition("Current thread ")
        innermost = _COLLECTIVE.search(stack) if current else None
        if innermost is None:
            return ""
        found[rank] = innermost[1]
    if len(set(found.values())) < 2:
        return ""
    first = {name: rank for rank, name in reversed(found.items())}
    return ", ".join(
        f"rank {rank} in {name}" for name, rank in sorted(first.items(), key=lambda each: each[1])
    )


def waiting_for_data(directory: LaunchDir, rank: int) -> str | None:
    """Return `, in FILE:LINE` of the user code in which a rank waits for a batch, by the stacks in its log.

    `""` if no frame is in the user's code, None without a wait for a batch.
    """
    text = log_end(directory, rank)
    for stack in re.split(r"^(?:Current t|T)hread ", text, flags=re.MULTILINE)[1:]:
        if loading := _LOADING.search(stack):
            own = (frame for frame in _FRAME.finditer(stack, 0, loading.start()) if is_users(frame[1]))
            return next((f", in {Path(frame[1]).name}:{frame[2]}" for frame in own), "")
    return None


def measured_seconds(records: LaunchRecords) -> float:
    """Return rank 0's time in warm-up, steps, checkpoints and loss curves, without waits for a turn (s)."""
    for rank in records.ranks:
        warmup, blocks = rank.last(Warmup), rank.of(Block)
        if rank.rank != 0 or warmup is None or not blocks:
            continue
        timed = [block.end_ns for block in blocks if block.phase == "timed"]
        waited = warmup.waited_ns + sum(block.waited_ns for block in blocks if block.phase == "timed")
        extra = sum(block.end_ns - block.start_ns for block in blocks if block.phase != "timed")
        extra += sum(checkpoint.end_ns - checkpoint.start_ns for checkpoint in rank.of(Checkpoint))
        extra += sum(curve.end_ns - curve.start_ns for curve in rank.of(LossCurve))
        return (max(timed, default=warmup.end_ns) - warmup.start_ns - waited + extra) / 1e9
    return 0.0


def waited_seconds(records: LaunchRecords) -> float:
    """Return how long a launch's ranks waited for their turn in an interleaved comparison, summed over ranks (s)."""
    return sum(_waited_ns(rank) for rank in records.ranks) / 1e9


def _waited_ns(rank: RankRecords) -> int:
    warmups = sum(warmup.waited_ns for warmup in rank.of(Warmup))
    return warmups + sum(block.waited_ns for block in rank.of(Block))
