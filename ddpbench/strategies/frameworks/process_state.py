"""Save and restore those parts of a process's state that frameworks change during their set-up."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

FOREIGN = ("ACCELERATE_", "FSDP_", "DEEPSPEED_", "DS_")
"""Prefixes of environment variables that frameworks' launchers set, and that would override a strategy's options."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class ProcessState:
    """A copy of the environment variables, torch's number of threads, the random states and the signal handlers."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._threads = torch.get_num_threads()
        self._torch, self._python, self._numpy = (
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state(),
        )
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore(self) -> None:
        """Restore everything that has changed since this object was made."""
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        os.environ.update(
            {name: value for name, value in self._environment.items() if os.environ.get(name) != value}
        )
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)


@contextmanager
def unchanged() -> Iterator[None]:
    """Hide variables of frameworks' launchers from the enclosed code, and restore the process state at its end."""
    state = ProcessState()
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    try:
        yield
    finally:
        state.restore()
