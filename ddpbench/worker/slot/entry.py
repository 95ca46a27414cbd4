"""The process of a slot: its signals, its exit code, and what it says when it ends."""

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
    """Run a slot from its start to its end; return its exit code and leave no process behind.

    0: all cases are ok or skipped; 1: some case is not, or the job could not go on; 2: the request was
    wrong and nothing was measured; 130: interrupted. The first slot of each node prints why.
    """
    run_directory = RunDir(run_dir)
    try:
        place = SlotPlace.from_environment(env)
        key, problem = job_key(run_directory, env)
    except (ValueError, RequestError) as error:
        return _say(EXIT_REQUEST, str(error))
    os.environ.pop(KEY_VARIABLE, None)  # it is nothing to the ranks
    if place.rank == 0:
        _warn(place, key, problem)
    _listen()
    lives = _launcher_check()
    meeting: Meeting | None = None
    told: str | None = None
    try:
        try:
            meeting = _meet(place, lives, key)
            with Slot(run_directory, place, meeting, lives) as slot:
                code = slot.attend(
                    lead=lambda own: Leader(own, retry_failed=retry_failed).lead(), follow=follow
                )
        finally:
            _ignore_signals()  # the last words take seconds at most
    except StoppedError as error:
        code, told = error.code, str(error)
    except (DdpbenchError, OSError) as error:
        refused = isinstance(error, RequestError)
        code, told = EXIT_REQUEST if refused else EXIT_NOT_OK, explained(error)
        if meeting is not None:  # who was refused together with all others is heard by none of them
            why = f"slot {place.rank} on {host_name()}: {told}"
            meeting.stop(why, code)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        if meeting is not None:
            why = f"slot {place.rank} on {host_name()} was interrupted"
            meeting.stop(why, EXIT_NOT_OK)
    except BaseException:  # the others would wait for minutes
        if meeting is not None:
            why = f"slot {place.rank} on {host_name()} failed; its traceback is in its own output"
            meeting.stop(why, EXIT_NOT_OK)
        raise
    if told and place.local_rank == 0:
        _say(code, told)
    if meeting is not None:
        meeting.leave(GOODBYE_S)
    return code


def _say(code: int, text: str) -> int:
    say(f"ddpbench: {text}")
    return code


def _warn(place: SlotPlace, key: bytes, problem: str) -> None:
    """Says what must be trusted where jobs cannot be authenticated, and when the key is not kept."""
    if not key:
        say(
            f"ddpbench: jobs are not authenticated, since {problem} and {KEY_VARIABLE} is not set: whoever reaches "
            f"port {place.master_port} of {place.master_addr} can have the slots launch any case of this plan, falsify "
            "records, or end the job. Print the lines again with ddpbench plan RUN_DIR, which makes a key"
        )
    elif problem:
        say(f"ddpbench: {problem}")


def _listen() -> None:
    """Has the first SIGINT or SIGTERM interrupt, and those after it do nothing.

    Launchers send both: to the terminal's process group and to each process; what the first has begun to end
    must not be cut short by the second.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as under nohup, or behind a script's &
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _launcher_check() -> Callable[[], None]:
    """Return a function that raises once the process that started this one is gone.

    The kernel could kill with the parent, but counts the parent's thread, and a launcher may use many.
    """
    parent = os.getppid()

    def check_parent() -> None:
        if os.getppid() != parent:
            raise LaunchError("the launcher that started this slot is gone")

    return check_parent


def _meet(place: SlotPlace, lives: Callable[[], None], key: bytes) -> Meeting:
    """Connects to the store. Waiting for a key for a while is not an event, but torch logs each time."""
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # read once, when torch is imported
    from ddpbench.worker.slot.meeting import Meeting, join_within_s

    if quiet:
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # ranks log as ever
    return Meeting(place, lives, key, join_s=join_within_s())
