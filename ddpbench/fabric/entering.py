"""Enter namespaces, by system calls that Python 3.11 lacks."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_SET_DUMPABLE = 4

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """Move this thread into new namespaces of the kinds in `flags`, such as CLONE_NEWNET.

    Raises:
        OSError: the kernel refuses.
    """
    _checked(_libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Move this thread into the namespace that a descriptor refers to.

    Raises:
        OSError: the kernel refuses.
    """
    _checked(_libc.setns(descriptor, kind))


def stay_readable() -> None:
    """Make this process's /proc files belong to its user, so that the user's other processes can access them.

    Entering a user namespace may have changed the owner.
    """
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def enter(net_ns: str, user_ns: str = "") -> None:
    """Move this process into a node of a fabric, right after a fork and before starting threads.

    `net_ns` and `user_ns` are the attributes of `RankPlace`. Entering may clear PR_SET_PDEATHSIG and PR_SET_DUMPABLE,
    so both are set again: the rank dies with its parent, and debuggers and /proc can access it.

    Raises:
        OSError: the fabric is gone, or this process has several threads or another user's rights.
    """
    parent = os.getppid()
    with_parent = ctypes.c_int(0)
    _checked(_libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(with_parent), 0, 0, 0))
    # Open both before entering the first: seen from inside, the holder is in a different namespace.
    paths = [(path, kind) for path, kind in ((user_ns, CLONE_NEWUSER), (net_ns, CLONE_NEWNET)) if path]
    descriptors = [(os.open(path, os.O_RDONLY | os.O_CLOEXEC), kind) for path, kind in paths]
    for descriptor, kind in descriptors:
        setns(descriptor, kind)
        os.close(descriptor)
    if user_ns:
        stay_readable()
        if with_parent.value:
            _checked(_libc.prctl(_PR_SET_PDEATHSIG, with_parent.value, 0, 0, 0))
            if os.getppid() != parent:
                os._exit(1)
