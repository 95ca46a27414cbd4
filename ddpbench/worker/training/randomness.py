"""State of the random generators that a model or its data may draw from, in torch, the standard library and NumPy."""

from __future__ import annotations

import functools
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OWN = struct.Struct("<625I?d")
"""Layout of the state of `random`: words, position, and the second number of a Gaussian pair if still unused."""
_NUMPYS = struct.Struct("<?624IQ?d")
"""Layout of the state of NumPy's MT19937: whether there is a state, words, position, and an unused Gaussian number."""


def seed_all(seed: int) -> None:
    """Seed torch on every device, the module `random`, and NumPy's global generator if NumPy is imported."""
    if _for_cpus_alone():
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := _numpy_random()) is not None:
        numpy.seed(seed % 2**32)


@functools.cache
def _for_cpus_alone() -> bool:
    """Return whether this torch was built without accelerators.

    Its `manual_seed` formats and keeps the stack of each call, for devices that it will never have.
    """
    known: Any = getattr(torch, "accelerator", None)  # torch 2.5 lacks it
    return known is not None and known.current_accelerator() is None


def random_state() -> Any:
    """Return the states of torch's generators, of `random` and of NumPy's global generator, for `set_random_state`."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    numpy = _numpy_random()
    return torch.get_rng_state(), cuda, random.getstate(), None if numpy is None else numpy.get_state()


def set_random_state(state: Any) -> None:
    """Restore the generators' states that `random_state` returned."""
    cpu, cuda, own, numpys = state
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(own)
    numpy = _numpy_random()
    if numpys is not None and numpy is not None:
        numpy.set_state(numpys)


def have_drawn(before: Any, now: Any) -> bool:
    """Return whether any generator's state differs between two results of `random_state`."""
    pairs = [(before[0], now[0]), *zip(before[1], now[1], strict=False)]
    if before[2] != now[2] or any(not torch.equal(one, other) for one, other in pairs):
        return True
    return before[3] is not None and now[3] is not None and _comparable(before[3]) != _comparable(now[3])


class Draws:
    """Result of `noticing_draws`: whether the enclosed code has drawn random numbers."""

    found = False


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, draws: Draws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = draws

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._draws.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextmanager
def noticing_draws() -> Iterator[Draws]:
    """Record in the yielded object whether the enclosed code draws random numbers.

    Numbers from private generators of torch count too.
    """
    draws, before = Draws(), random_state()
    with _Watched(draws):
        yield draws
    draws.found |= have_drawn(before, random_state())


def random_bytes() -> torch.Tensor:
    """Return the states of the CPU's generators and of this process's GPU as bytes, the same number on all ranks."""
    _, words, left = random.getstate()
    packed = _OWN.pack(*words, left is not None, left or 0.0) + _packed_numpys()
    parts = [torch.get_rng_state(), torch.frombuffer(bytearray(packed), dtype=torch.uint8)]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        parts.append(torch.cuda.get_rng_state())
    return torch.cat(parts)


def set_random_bytes(states: torch.Tensor) -> None:
    """Restore the generators' states that `random_bytes` returned."""
    packed = _OWN.size + _NUMPYS.size
    cpu = torch.get_rng_state().numel()
    torch.set_rng_state(states[:cpu].clone())
    content = bytes(states[cpu : cpu + packed].tolist())
    *words, has_left, left = _OWN.unpack_from(content)
    random.setstate((random.getstate()[0], tuple(words), left if has_left else None))
    usual, *keys, position, has_gauss, cached = _NUMPYS.unpack_from(content, _OWN.size)
    numpy = _numpy_random()
    if usual and numpy is not None:
        numpy.set_state(("MT19937", keys, position, int(has_gauss), cached))
    if states.numel() > cpu + packed:
        torch.cuda.set_rng_state(states[cpu + packed :].clone())


def _packed_numpys() -> bytes:
    numpy = _numpy_random()
    state = None if numpy is None else numpy.get_state(legacy=False)
    if state is None or state["bit_generator"] != "MT19937":
        return bytes(_NUMPYS.size)  # never drawn from, or of a kind whose state has another form
    keys, position = state["state"]["key"].tolist(), state["state"]["pos"]
    return _NUMPYS.pack(True, *keys, position, bool(state["has_gauss"]), state["gauss"])


def _numpy_random() -> Any:
    """Return `numpy.random`; None if NumPy is not imported and so cannot have drawn numbers."""
    return getattr(sys.modules.get("numpy"), "random", None)


def _comparable(state: Any) -> tuple[Any, ...]:
    """Return a NumPy state with arrays as lists, so that `==` compares two states."""
    return tuple(each.tolist() if hasattr(each, "tolist") else each for each in state)
