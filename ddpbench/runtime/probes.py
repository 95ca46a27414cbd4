"""Examine the machine or a user's workload class in a child process of a fork server."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpbench.errors import LaunchError, WorkloadError
from ddpbench.guard import signal_name
from ddpbench.runtime.running_server import START_TIMEOUT_S, tail_of
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Case

_AS_KILLED: dict[int, str] = {
    signal.SIGKILL: ", as the kernel does where memory runs out: use a smaller batch or model"
}
"""Likely cause of a signal that ends a trial, to append to the message, by the signal's number."""


def probed(server: ServerProcess, folder: Path, *, log_stays: bool = True) -> dict[str, Any]:
    """Return what a process with torch finds about this machine; see `ddpbench.worker.probe`.

    Pass `log_stays=False` if the folder will be removed, so that errors do not refer to its log.

    Raises:
        LaunchError: the examination failed.
    """
    path = folder / "probe.json"
    code = server.probe(path, None, START_TIMEOUT_S)
    if code is None:
        raise LaunchError(f"the check of this machine did not end within {START_TIMEOUT_S:.0f} s")
    if code != 0:
        said = tail_of(path.with_suffix(".log"), where=log_stays)
        raise LaunchError(f"torch does not work here{said}")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def inspected(
    server: ServerProcess, case: Case, folder: Path, timeout_s: float, largest: Case | None = None
) -> dict[str, Any]:
    """Try a case's own workload in a rank, and return facts about it; see `ddpbench.worker.verify.inspection`.

    If the trial fails, the dictionary has a sentence about the failure under the key `problem`.
    """
    return _tried(server, case, folder, timeout_s, "trying one step of it", largest=largest)


def gradients_of(server: ServerProcess, case: Case, folder: Path, timeout_s: float) -> list[int] | None:
    """Return the size of each gradient of a case (bytes), in the order of readiness; None if unknown."""
    path = folder / "probe.json"
    path.unlink(missing_ok=True)
    if server.probe(path, case.to_json(), timeout_s, order=True) != 0 or not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found.get("gradients")


def stated_batch(server: ServerProcess, name: str, folder: Path) -> int | None:
    """Return the local batch size that a user's class states; None without one, or if the import fails.

    Raises:
        WorkloadError: importing the class did not end in time.
    """
    path = folder / "probe.json"
    path.unlink(missing_ok=True)
    code = server.probe(path, None, START_TIMEOUT_S, workload=name)
    if code is None:
        raise WorkloadError(
            f"{name}: importing it did not end within {START_TIMEOUT_S:.0f} s: does it train, loop or "
            "wait at module level? Move that code into a function"
        )
    if code != 0 or not path.exists():
        return None
    found: dict[str, int | None] = json.loads(path.read_text(encoding="utf-8"))
    return found["local_batch"]


def profiled(
    server: ServerProcess, case: Case, folder: Path, *, steps: int | None, cores: Sequence[int]
) -> dict[str, Any]:
    """Profile a case's workload in a process on these cores, and return the profile as a dictionary.

    See `ddpbench.worker.rank.profiling` for its keys. If `steps` is None, the number of steps is chosen by the widths
    of confidence intervals. If profiling fails, the dictionary has a sentence about the failure under the key
    `problem`.
    """
    profile = {"steps": steps, "cores": list(cores)}
    return _tried(server, case, folder, math.inf, "profiling it", profile)


def _tried(
    server: ServerProcess,
    case: Case,
    folder: Path,
    timeout_s: float,
    what: str,
    profile: dict[str, Any] | None = None,
    *,
    largest: Case | None = None,
) -> dict[str, Any]:
    path = folder / "probe.json"
    for old in (path, path.with_suffix(".log")):
        old.unlink(missing_ok=True)
    code = server.probe(path, case.to_json(), timeout_s, profile, largest=largest)
    if code == 0 and path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    last = tail_of(path.with_suffix(".log"), where=False)
    if code is None:
        advice = "check whether its code loops or waits, for example for a download, a lock or other ranks"
        return {"problem": f"{case.workload}: {what} did not end within {timeout_s:.0f} s{last}; {advice}"}
    ended = (
        f"killed it by {signal_name(-code)}{_AS_KILLED.get(-code, '')}"
        if code < 0
        else f"ended its process (exit code {code}), but it must return"
    )
    return {"problem": f"{case.workload}: {what} {ended}{last}"}
