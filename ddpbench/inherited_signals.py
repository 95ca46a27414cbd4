"""Undo what a process inherits from its parent for signals, because a program seldom expects it."""

from __future__ import annotations

import signal

_NEEDED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def accept_signals() -> None:
    """Unblock the signals that ddpbench waits for, and let this process learn how its children end.

    While SIGCHLD is ignored, the kernel discards exit codes, and Python reports 0 for every child. Other signals stay
    ignored, as under nohup.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NEEDED)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
