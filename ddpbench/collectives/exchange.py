"""Exchange of small values between the ranks of a group, as JSON and plain bytes. Imports torch at once.

Another user of the host can take a rank's place at gloo's port, so that what arrives may be anybody's: it is bounded,
decoded strictly and never unpickled, as torch's object collectives do. Nothing else of ddpbench's exchanges objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ddpbench.records.files import parse_json

_Read = TypeVar("_Read")

MOST_BYTES = 64 << 20
"""Most bytes of a rank's JSON: the names of a model's parameters take some MiB."""


class ForeignMessageError(RuntimeError):
    """Raised if what arrived from a rank is nothing that a rank of this launch sends."""


def foreign(rank: int, what: str) -> ForeignMessageError:
    """Return the error for a message from a rank; `what` is wrong with it."""
    return ForeignMessageError(
        f"rank {rank} sent what no rank of this launch sends ({what}): does another user of a host, or of its network, "
        "connect to the ports of ranks?"
    )


def gather_bytes(
    own: bytes | bytearray | memoryview,
    most: int,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> list[torch.Tensor]:
    """Return every rank's bytes in the order of ranks, each a uint8 tensor [bytes] on the CPU; all ranks call it.

    `device` is where the group's backend takes tensors, by default the CPU. The group is the default one if None.

    Raises:
        ForeignMessageError: a rank's message has more than `most` bytes, or a negative number of them.
    """
    device = device or torch.device("cpu")
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(own)], dtype=torch.int64, device=device), group=group)
    counts = [int(size.item()) for size in sizes]
    for rank, count in enumerate(counts):
        if not 0 <= count <= most:
            raise foreign(rank, f"{count:,} bytes; {most:,} are the most")
    padded = torch.zeros(max(1, *counts), dtype=torch.uint8, device=device)
    if own:
        padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    found = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(found, padded, group=group)
    return [each[:count].cpu() for each, count in zip(found, counts, strict=True)]


def gather_values(
    own: Any,
    read: Callable[[Any], _Read],
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | None = None,
    most: int = MOST_BYTES,
) -> list[_Read]:
    """Return what `read` makes of every rank's JSON value, in the order of ranks; all ranks call it.

    `read` is given a value of None, booleans, finite numbers, texts, lists and dictionaries. It checks it, and raises
    a ValueError, TypeError, KeyError or IndexError for one that no rank sends. `device` and `group` are as for
    `gather_bytes`; `most` limits a value, in bytes.

    Raises:
        ForeignMessageError: a rank's message is too long, no JSON, or refused by `read`.
    """
    sent = gather_bytes(json.dumps(own, separators=(",", ":")).encode(), most, group, device)
    return [decoded(rank, each, read) for rank, each in enumerate(sent)]


def decoded(rank: int, sent: torch.Tensor, read: Callable[[Any], _Read]) -> _Read:
    """Return what `read` makes of the JSON value that a rank has sent, a uint8 tensor [bytes].

    Raises:
        ForeignMessageError: it is no JSON, or refused by `read`.
    """
    try:
        return read(parse_json(sent.numpy().tobytes()))
    except (ValueError, TypeError, LookupError) as error:
        raise foreign(rank, f"{type(error).__name__}: {error}"[:200]) from None


def texts(value: Any) -> list[str]:
    """Return a list of texts.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError("a list of texts is expected")
    return value


def whole(value: Any, most: int) -> int:
    """Return a whole number from 0 to `most`.

    Raises:
        TypeError: it is none.
        ValueError: it is less than 0 or more than `most`.
    """
    if type(value) is not int:
        raise TypeError("a whole number is expected")
    if not 0 <= value <= most:
        raise ValueError(f"{value} is not from 0 to {most}")
    return value


def type_of_numbers(name: Any) -> torch.dtype:
    """Return torch's type of numbers of a name such as float32, each number of one byte or more.

    Raises:
        TypeError: there is none.
    """
    found = getattr(torch, name) if isinstance(name, str) and name in _TYPES else None
    if found is None:
        raise TypeError("a type of numbers is expected")
    return found  # type: ignore[no-any-return]


def name_of_type(dtype: torch.dtype) -> str:
    """Return the name of a type of numbers; empty for one that `type_of_numbers` does not return."""
    name = str(dtype).removeprefix("torch.")
    return name if name in _TYPES else ""


_TYPES = frozenset(
    f"{kind}{bits}"
    for kind in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
    if hasattr(torch, f"{kind}{bits}")
) | {
    name
    for name in ("bool", "bfloat16", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")
    if hasattr(torch, name)
}

_MOST_DIMENSIONS = 64
_MOST_NUMBERS = 1 << 48


def shape_of(value: Any) -> list[int]:
    """Return a tensor's shape from a JSON value.

    Raises:
        TypeError: it is no list of whole numbers.
        ValueError: it has more than 64 dimensions, or lengths that no tensor has.
    """
    if not isinstance(value, list):
        raise TypeError("a shape is expected")
    if len(value) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(value)} dimensions; {_MOST_DIMENSIONS} are the most")
    lengths = [whole(length, _MOST_NUMBERS) for length in value]
    if math.prod(max(1, length) for length in lengths) > _MOST_NUMBERS:
        raise ValueError("no tensor has such a shape")
    return lengths
