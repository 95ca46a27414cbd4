"""System calls for namespaces that Python 3.11 lacks, and the way a rank enters its node's namespace.

Imported by the fork server of ranks and by the process that holds a fabric: the standard library only.
"""

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
    """Move this thread into new namespaces.

    Raises:
        OSError: the kernel refuses.
    """
    _checked(_libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Move this thread into the namespace of a descriptor.

    Raises:
        OSError: the kernel refuses.
    """
    _checked(_libc.setns(descriptor, kind))


def stay_readable() -> None:
    """Keep /proc/self this user's own, so that other processes of the user can write its maps and open its descriptors.

    A change of credentials, such as entering a user namespace, may take that away.
    """
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def enter(net_ns: str, user_ns: str = "") -> None:
    """Move this process into a node of a fabric: right after the fork, while it has one thread.

    `net_ns` and `user_ns` are `RankPlace`'s; without privilege the network belongs to a user namespace, which
    is entered first. That may clear PR_SET_PDEATHSIG and PR_SET_DUMPABLE: both are set again here, so that a
    rank that was to die with its parent still does, and debuggers and /proc still see it.

    Raises:
        OSError: the fabric is gone, or this process has several threads or another user's rights.
    """
    parent = os.getppid()
    with_parent = ctypes.c_int(0)
    _checked(_libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(with_parent), 0, 0, 0))
    # Both are opened before the first is entered: from inside, the holder belongs to another namespace.
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
