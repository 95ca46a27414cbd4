"""The generators that a model or its data may draw from: torch's, the standard library's and NumPy's."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def seed_all(seed: int) -> None:
    """Seed torch on every device, `random`, and NumPy's global generator where NumPy is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := _numpy_random()) is not None:
        numpy.seed(seed % 2**32)


def random_state() -> Any:
    """Return the state of all of them."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    numpy = _numpy_random()
    return torch.get_rng_state(), cuda, random.getstate(), None if numpy is None else numpy.get_state()


def set_random_state(state: Any) -> None:
    """Set all of them to a `random_state`."""
    cpu, cuda, own, numpys = state
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(own)
    numpy = _numpy_random()
    if numpys is not None and numpy is not None:
        numpy.set_state(numpys)


def _numpy_random() -> Any:
    """Return `numpy.random`, or None where NumPy is not imported: then nothing can have drawn from it."""
    return getattr(sys.modules.get("numpy"), "random", None)
