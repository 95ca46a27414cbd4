"""The process of a slot: its signal handlers, its exit code, and the message that it prints at its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ddpbench.errors import DdpbenchError, LaunchError, RequestError
from ddpbench.records import RunDir
from ddpbench.records.job_key import KEY_VARIABLE, job_key
from ddpbench.worker.place import SlotPlace, host_name
from ddpbench.worker.slot.ending import (
    EXIT_INTERRUPTED,
    EXIT_NOT_OK,
    EXIT_REQUEST,
    StoppedError,
    explained,
)
from ddpbench.worker.slot.follower import follow
from ddpbench.worker.slot.leader import Leader
from ddpbench.worker.slot.slot import Slot, say

if TYPE_CHECKING:
    from ddpbench.worker.slot.meeting import Meeting

GOODBYE_S = 5.0


def run(run_dir: Path, *, retry_failed: bool = False, env: Mapping[str, str] = os.environ) -> int:
    """Run a slot from start to end; return its exit code and leave no process behind.

    The exit code is 0 if every case is ok or skipped, 1 if a case failed or the job could not continue, 2 if the
    request was wrong and nothing was measured, and 130 after an interruption.
    """
    run_directory = RunDir(run_dir)
    try:
        place = SlotPlace.from_environment(env)
        key, problem = job_key(run_directory, env)
    except (ValueError, RequestError) as error:
        return _say(EXIT_REQUEST, str(error))
    os.environ.pop(KEY_VARIABLE, None)  # ranks don't need it
    if place.rank == 0:
        _warn(place, key, problem)
    _listen()
    lives = _launcher_check()
    meeting: Meeting | None = None
    reason: str | None = None
    try:
        try:
            meeting = _meet(place, lives, key)
            meeting.seals.private = not problem
            with Slot(run_directory, place, meeting, lives) as slot:
                code = slot.attend(
                    lead=lambda own: Leader(own, retry_failed=retry_failed).lead(), follow=follow
                )
        finally:
            _ignore_signals()  # what remains is to report the end, which takes seconds at most
    except StoppedError as error:
        code, reason = error.code, str(error)
    except (DdpbenchError, OSError) as error:
        refused = isinstance(error, RequestError)
        code, reason = EXIT_REQUEST if refused else EXIT_NOT_OK, explained(error)
        if meeting is not None:  # slots with a different key refuse this message
            why = f"slot {place.rank} on {host_name()}: {reason}"
            meeting.stop(why, code)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        if meeting is not None:
            why = f"slot {place.rank} on {host_name()} was interrupted"
            meeting.stop(why, EXIT_NOT_OK)
    except BaseException:  # otherwise, the other slots would wait for minutes
        if meeting is not None:
            why = f"slot {place.rank} on {host_name()} failed; its traceback is in its own output"
            meeting.stop(why, EXIT_NOT_OK)
        raise
    if reason and place.local_rank == 0:
        _say(code, reason)
    if meeting is not None:
        meeting.leave(GOODBYE_S)
    return code


def _say(code: int, text: str) -> int:
    say(f"ddpbench: {text}")
    return code


def _warn(place: SlotPlace, key: bytes, problem: str) -> None:
    if not key:
        say(
            f"ddpbench: jobs are not authenticated, because {problem} and {KEY_VARIABLE} is not set. Cases of "
            f"several ranks cannot be proved and are skipped. Anybody who reaches port {place.master_port} of "
            f"{place.master_addr} can have the slots launch any case of this plan, falsify records, or end the "
            "job. To make a key, print the lines again with ddpbench plan RUN_DIR"
        )
    elif problem:
        say(f"ddpbench: {problem}")


def _listen() -> None:
    """Let the first SIGINT or SIGTERM interrupt this process, and ignore later ones.

    Launchers signal the process group and each process; the second signal must not interrupt the clean-up.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored under nohup, or behind a script's &
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _launcher_check() -> Callable[[], None]:
    """Return a function that raises LaunchError once this process's parent has ended.

    PR_SET_PDEATHSIG would watch only the thread that started this process.
    """
    parent = os.getppid()

    def check_parent() -> None:
        if os.getppid() != parent:
            raise LaunchError("the launcher that started this slot has ended")

    return check_parent


def _meet(place: SlotPlace, lives: Callable[[], None], key: bytes) -> Meeting:
    """Connect to the store. torch's C++ log is off meanwhile, because it would report every wait for a key."""
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # read once, when torch is imported
    from ddpbench.worker.slot.meeting import Meeting, join_within_s

    if quiet:
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # ranks log as usual
    return Meeting(place, lives, key, join_s=join_within_s())
