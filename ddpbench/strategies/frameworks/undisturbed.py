"""What a framework sets for its whole process while it is set up, set back. Imports torch when it is used."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

FOREIGN = ("ACCELERATE_", "FSDP_", "DEEPSPEED_", "DS_")
"""How variables begin by which frameworks' own launchers switch what options of a strategy decide here."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the states of random generators, the environment and torch's number of threads as they were before.

    Variables of the frameworks' own launchers are not seen meanwhile.
    """
    import numpy as np
    import torch

    environment = dict(os.environ)
    threads = torch.get_num_threads()
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(environment)
