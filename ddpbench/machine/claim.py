"""Claim cores and GPUs for one command, so that simultaneous commands do not disturb each other's measurements."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import socket
from collections.abc import Iterator, Sequence

from ddpbench.errors import InUseError, RequestError
from ddpbench.machine.names import NameHolder, holder, holders, listed_text
from ddpbench.text_safety import shortened

CLAIMS = "DDPBENCH_CLAIMS"
"""Environment variable that says whose claims count: with `own`, only those of this user's processes."""


_WAITING = 4096
"""Maximum number of connections that wait at a claim's socket. Each check by another command adds one, and none is
accepted.
"""


@contextlib.contextmanager
def claimed(cores: Sequence[int] = (), gpus: Sequence[str] = ()) -> Iterator[None]:
    """Claim cores and GPUs (by UUID) while the context lasts; the kernel releases them, however the process ends.

    A claim is a socket bound to an abstract Unix name, visible to all users of the host. Any user can take such a name,
    so DDPBENCH_CLAIMS=own ignores other users' claims. A second name with the user's id and a random number lets a
    user's sweeps find each other even then.

    Raises:
        InUseError: another command has claimed one of the cores or GPUs; the message names its process.
        RequestError: DDPBENCH_CLAIMS has a value other than `own`.
    """
    given = os.environ.get(CLAIMS, "")
    if given not in ("", "own"):
        raise RequestError(f"{CLAIMS}={shortened(given)}: set it to own, or unset it")
    own_alone = given == "own"
    some_left = bool(cores) and bool(os.sched_getaffinity(0) - claimed_cores(listed_text()))
    names = {
        f"\0ddpbench-{what.lower().replace(' ', '-')}": what
        for what in (*(f"core {core}" for core in cores), *(f"GPU {gpu}" for gpu in gpus if gpu))
    }
    with contextlib.ExitStack() as held:
        for name, what in names.items():
            if not _bound(name, held):
                by = holder(name)
                if not own_alone or by.may_be_own:
                    raise InUseError(_explain(what, by, own_alone=own_alone, some_left=some_left))
        ours = {f"{name}-of-{os.geteuid()}-": what for name, what in names.items()}
        drawn = {f"{name}{secrets.token_hex(8)}" for name in ours}
        # Before looking for others' names, so that two commands that start at once see each other.
        for name in drawn:
            _bound(name, held)
        for name, by in holders(tuple(ours), but=drawn).items():
            if by.may_be_own:
                what = next(what for ours_of, what in ours.items() if name.startswith(ours_of))
                raise InUseError(_explain(what, by, own_alone=own_alone, some_left=some_left))
        yield


def _bound(name: str, held: contextlib.ExitStack) -> bool:
    """Bind a socket to a name until `held` is closed; return whether the name was free."""
    claim = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        claim.bind(name)
    except OSError:
        return False
    claim.listen(_WAITING)
    return True


def claimed_cores(listed: str) -> set[int]:
    """Return the cores that some command has claimed, given the text of /proc/net/unix.

    Messages tell the user to choose other cores only if some usable core is not claimed.
    """
    return {int(number) for number in re.findall(r"@ddpbench-core-(\d+)", listed)}


def _explain(what: str, by: NameHolder, *, own_alone: bool, some_left: bool) -> str:
    is_core = what.startswith("core")
    elsewhere = "cores with taskset" if is_core else "GPUs with CUDA_VISIBLE_DEVICES"
    give_others = f", give this command other {elsewhere}" if some_left or not is_core else ""
    others = by.user is not None and by.user != os.geteuid()
    words = [f"process {by.process}"] if by.process else []
    words += [f"of {_called(by.user)}"] if others and by.user is not None else []
    process = f" ({' '.join(words)})" if words else ""
    pass_over = (
        f", set {CLAIMS}=own if that command measures nothing" if not own_alone and not by.may_be_own else ""
    )
    return (
        f"another ddpbench command{process} is using {what} of this machine, so each would disturb the "
        f"other's measurements. Wait until it ends{give_others}{pass_over}, or "
        "set DDPBENCH_SHARED_MACHINE=1, which measures anyway and flags every number"
    )


def _called(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
