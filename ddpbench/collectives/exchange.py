"""Exchange small values between the ranks of a group, as JSON or bytes.

Another user of the host can connect to gloo's port in place of a rank. So messages are limited in size and decoded
strictly, and never unpickled, unlike torch's object collectives.
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
"""Maximum size of a rank's JSON (bytes). The names of a model's parameters take a few MiB."""


class ForeignMessageError(RuntimeError):
    """Raised for a message that no rank of this launch would send."""


def foreign(rank: int, what: str) -> ForeignMessageError:
    """Return the error for an invalid message from `rank`; `what` says what is wrong with the message."""
    return ForeignMessageError(
        f"rank {rank} sent a message that no rank of this launch sends ({what}): does another user of a host, or "
        "of its network, connect to the ports of ranks?"
    )


def gather_bytes(
    own: bytes | bytearray | memoryview,
    most: int,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> list[torch.Tensor]:
    """Return every rank's bytes, in rank order, as uint8 tensors [bytes] on the CPU. All ranks must call this together.

    `group` defaults to the default group. `device` is the device on which the group's backend takes tensors (default:
    the CPU).

    Raises:
        ForeignMessageError: a rank announces more than `most` bytes, or a negative number of bytes.
    """
    device = device or torch.device("cpu")
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(own)], dtype=torch.int64, device=device), group=group)
    counts = [int(size.item()) for size in sizes]
    for rank, count in enumerate(counts):
        if not 0 <= count <= most:
            raise foreign(rank, f"{count:,} bytes; at most {most:,} are allowed")
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
    """Exchange every rank's value as JSON, and return `read(value)` for each, in rank order.

    All ranks must call this function together. `read` checks a value (None, booleans, finite numbers, strings, lists
    and dictionaries), and raises a ValueError, TypeError, KeyError or IndexError if no rank would send it. `device` and
    `group` are as in `gather_bytes`; `most` limits each rank's JSON (bytes).

    Raises:
        ForeignMessageError: a rank's message is too long, not JSON, or rejected by `read`.
    """
    sent = gather_bytes(json.dumps(own, separators=(",", ":")).encode(), most, group, device)
    return [decoded(rank, each, read) for rank, each in enumerate(sent)]


def decoded(rank: int, sent: torch.Tensor, read: Callable[[Any], _Read]) -> _Read:
    """Parse a rank's message, JSON in a uint8 tensor [bytes], and return `read(value)` of the parsed value.

    Raises:
        ForeignMessageError: the message is not JSON, or `read` rejects its value.
    """
    try:
        return read(parse_json(sent.numpy().tobytes()))
    except (ValueError, TypeError, LookupError) as error:
        raise foreign(rank, f"{type(error).__name__}: {error}"[:200]) from None


def texts(value: Any) -> list[str]:
    """Return `value` if it is a list of strings.

    Raises:
        TypeError: `value` is anything else.
    """
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError("expected a list of texts")
    return value


def whole(value: Any, most: int) -> int:
    """Return `value` if it is an int from 0 to `most`.

    Raises:
        TypeError: `value` is not an int.
        ValueError: `value` is less than 0 or more than `most`.
    """
    if type(value) is not int:
        raise TypeError("expected a whole number")
    if not 0 <= value <= most:
        raise ValueError(f"{value} is outside 0 to {most}")
    return value


def type_of_numbers(name: Any) -> torch.dtype:
    """Return the torch dtype with this name, such as `float32`.

    Raises:
        TypeError: `name` is not the name of a dtype that ranks exchange.
    """
    found = getattr(torch, name) if isinstance(name, str) and name in _TYPES else None
    if found is None:
        raise TypeError("expected a numeric dtype")
    return found  # type: ignore[no-any-return]


def name_of_type(dtype: torch.dtype) -> str:
    """Return a dtype's name, such as `float32`; `""` for a dtype that `type_of_numbers` does not return."""
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
    """Return `value` if it can be the shape of a tensor.

    Raises:
        TypeError: `value` is not a list of integers.
        ValueError: `value` has more than 64 dimensions, or lengths that no tensor has.
    """
    lengths = strides_of(value)
    if math.prod(max(1, length) for length in lengths) > _MOST_NUMBERS:
        raise ValueError("a shape too large for any tensor")
    return lengths


def strides_of(value: Any) -> list[int]:
    """Return `value` if it can be the strides of a tensor. The product of strides has no limit, unlike that of a shape.

    Raises:
        TypeError: `value` is not a list of integers.
        ValueError: `value` has more than 64 dimensions, or a stride that no tensor has.
    """
    if not isinstance(value, list):
        raise TypeError("expected a shape")
    if len(value) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(value)} dimensions; at most {_MOST_DIMENSIONS} are allowed")
    return [whole(each, _MOST_NUMBERS) for each in value]
