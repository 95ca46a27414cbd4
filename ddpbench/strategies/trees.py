"""Functions that split, join and convert batches, which may be dictionaries, tuples, lists and dataclasses of tensors.

The first dimension of a batch's tensors counts its samples. A tensor of a different length, or without dimensions,
belongs to all samples. A list with an entry for each sample, such as the targets in object detection, is split too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def map_tensors(act: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return a copy of the structure with `act(tensor)` in place of every tensor."""
    import torch

    return _mapped(act, value, torch.Tensor)


def copied(value: Any) -> Any:
    """Return a copy without a shared tensor or container, so that a loss may change it."""
    return map_tensors(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), value)


def _mapped(act: Callable[[torch.Tensor], torch.Tensor], value: Any, tensor: type[torch.Tensor]) -> Any:
    if isinstance(value, tensor):
        return act(value)
    if isinstance(value, list | tuple):
        return like(value, [_mapped(act, part, tensor) for part in value])
    if isinstance(value, MutableMapping):
        return like(value, {key: _mapped(act, part, tensor) for key, part in value.items()})
    if (held := fields_of(value)) is not None:
        return like(value, {key: _mapped(act, part, tensor) for key, part in held.items()})
    return value


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass instance by name, or None for any other value."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    return {
        each.name: getattr(value, each.name)
        for each in dataclasses.fields(value)
        if hasattr(value, each.name)
    }


def cast_type(found: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """Return the dtype that a tensor of dtype `found` gets in a cast to `wanted`.

    Complex numbers get the complex dtype of `wanted` (complex64 for bfloat16). Integers keep their dtype. If `wanted`
    is None, all dtypes are kept.
    """
    if wanted is None:
        return found
    if found.is_complex:
        return wanted.to_complex()
    return wanted if found.is_floating_point else found


def cast(value: Any, dtype: torch.dtype | None) -> Any:
    """Return a copy of the structure with every tensor cast as in `cast_type`, or `value` itself if `dtype` is None."""
    return (
        value
        if dtype is None
        else map_tensors(lambda tensor: tensor.to(cast_type(tensor.dtype, dtype)), value)
    )


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a complex tensor as pairs of real numbers, for collectives. Return a real tensor unchanged."""
    import torch

    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def like(value: Any, parts: Any) -> Any:
    """Return the parts in a new container of the same class as `value`.

    The container is a copy of `value` if its class may have further state.
    """
    if type(value) in (list, dict):
        return parts
    if isinstance(value, MutableMapping):
        same = copy(value)
        same.update(parts)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts)
    if not isinstance(value, list | tuple):
        same = copy(value)  # a dataclass may be frozen, or have a constructor that changes its arguments
        for name, part in parts.items():
            object.__setattr__(same, name, part)
        return same
    return tuple(parts) if isinstance(value, tuple) else parts


def leaves(value: Any) -> Iterator[Any]:
    """Yield in order all tensors and other objects in a value that contain no further values."""
    if isinstance(value, MutableMapping):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    elif (held := fields_of(value)) is not None:
        yield from leaves(held)
    else:
        yield value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a value, in order."""
    import torch

    return (each for each in leaves(value) if isinstance(each, torch.Tensor))


def samples(batch: Any) -> int:
    """Return the number of samples in a batch, which is the length of its first tensor that has a dimension.

    Raises:
        ValueError: no tensor has a dimension.
    """
    for tensor in tensors(batch):
        if tensor.dim():
            return tensor.size(0)
    raise ValueError(f"a batch of type {type(batch).__name__} holds no tensor with a dimension for samples")


def chunk(batch: Any, count: int) -> list[Any]:
    """Split a batch into `count` equal parts, in the order of its samples.

    Raises:
        ValueError: the number of samples is not divisible by `count`.
    """
    size = samples(batch)
    if size % count:
        raise ValueError(f"a batch of {size} samples does not divide among {count} replicas")
    whole = _around_first(batch)
    return [
        _cut(batch, size, number * size // count, (number + 1) * size // count, whole)
        for number in range(count)
    ]


def undivided(parts: Sequence[Any]) -> tuple[int, ...]:
    """Return the lengths of the tensors that `chunk` put into each of these parts without a split."""
    everywhere = {id(each) for each in tensors(parts[-1])}
    return tuple(each.size(0) for each in tensors(parts[0]) if each.dim() and id(each) in everywhere)


def _around_first(batch: Any) -> set[int]:
    """Return the ids of the containers around a batch's first tensor; their entries are not samples."""
    found: set[int] = set()
    value = batch
    while True:
        parts: list[Any]
        if isinstance(value, list | tuple):
            found.add(id(value))
            parts = [*value]
        elif isinstance(value, MutableMapping):
            parts = [*value.values()]
        else:
            parts = [*(fields_of(value) or {}).values()]
        inner = (part for part in parts if any(tensor.dim() for tensor in tensors(part)))
        value = next(inner, None)
        if value is None:
            return found


def _by_sample(value: Sequence[Any], size: int, whole: set[int]) -> bool:
    """Return whether a list has one entry per sample, rather than entries for all samples."""
    if len(value) != size or id(value) in whole or hasattr(value, "_fields"):
        return False
    if next(tensors(value), None) is None:  # for example, a text for each sample
        return True
    entries = [entry for entry in value if entry is not None]
    if len({type(entry) for entry in entries}) > 1:
        return False
    if not isinstance(entries[0], list | tuple) and next(tensors(entries[0]), None) is not entries[0]:
        return True  # dictionaries or objects
    return any(not tensor.dim() or tensor.size(0) != size for tensor in tensors(value))


def _nested(rows: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Make a nested tensor, which torch can neither slice nor join."""
    import torch

    made: torch.Tensor = torch.nested.as_nested_tensor(list(rows), layout=like.layout)
    return made


def _laid_out(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Restore the sparse layout of `like`, because torch splits and joins only COO tensors."""
    import torch

    return rows if like.layout == torch.sparse_coo else rows.to_sparse(layout=like.layout)


def _coordinates(value: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = value.to_sparse_coo()  # type: ignore[no-untyped-call]
    return found


def _cut_tensor(value: torch.Tensor, start: int, end: int) -> torch.Tensor:
    import torch

    if value.is_nested:
        return _nested(value.unbind()[start:end], value)
    if value.layout != torch.strided:
        return _laid_out(_coordinates(value).narrow_copy(0, start, end - start), value)
    return value[start:end]


def _cut(value: Any, size: int, start: int, end: int, whole: set[int]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return _cut_tensor(value, start, end) if value.dim() and value.size(0) == size else value
    if isinstance(value, MutableMapping):
        return like(value, {key: _cut(part, size, start, end, whole) for key, part in value.items()})
    if isinstance(value, list | tuple):
        if _by_sample(value, size, whole):
            return value[start:end]
        return like(value, [_cut(part, size, start, end, whole) for part in value])
    if (held := fields_of(value)) is not None:
        return like(value, _cut(held, size, start, end, whole))
    return value


def concatenate(parts: Sequence[Any]) -> Any:
    """Join several batches into one, in order. This reverses `chunk`.

    Raises:
        ValueError: the batches do not fit together, such as texts padded to different lengths.
    """
    whole = {each for part in parts for each in _around_first(part)}
    return _joined(parts, [samples(part) for part in parts], whole)


def _joined(parts: Sequence[Any], sizes: Sequence[int], whole: set[int]) -> Any:
    import torch

    first = parts[0]
    if isinstance(first, torch.Tensor):
        return _joined_tensors(first, parts, sizes)
    if isinstance(first, MutableMapping):
        return like(first, {key: _joined([part[key] for part in parts], sizes, whole) for key in first})
    if isinstance(first, list | tuple):
        fit = [len(part) for part in parts] == list(sizes)
        if fit and any(_by_sample(part, size, whole) for part, size in zip(parts, sizes, strict=True)):
            return type(first)(item for part in parts for item in part)
        return like(first, [_joined(group, sizes, whole) for group in zip(*parts, strict=True)])
    held = [fields_of(part) for part in parts]
    if held[0] is not None:
        return like(first, _joined(held, sizes, whole))
    return first


def _joined_tensors(first: torch.Tensor, parts: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    import torch

    if first.is_nested:
        return _nested([row for part in parts for row in part.unbind()], first)
    if not first.dim() or [len(part) for part in parts] != list(sizes):
        return first
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = " and ".join(dict.fromkeys(str(list(part.shape)) for part in parts))
        raise ValueError(f"tensors of shapes {shapes} are not parts of one batch")
    if first.layout != torch.strided:
        return _laid_out(torch.cat([_coordinates(part) for part in parts]), first)
    return torch.cat(list(parts))


def describe(value: Any) -> str:
    """Describe a value's shapes and dtypes in words, such as `{'ids': int64 [4, 16], 'mask': bool [4, 16]}`."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, MutableMapping):
        return "{" + ", ".join(f"{key!r}: {describe(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        if next(tensors(value), None) is None:
            return f"{len(value)} without tensors"
        return "(" + ", ".join(describe(part) for part in value) + ")"
    if (held := fields_of(value)) is not None and next(tensors(held), None) is not None:
        return f"{type(value).__name__} {describe(held)}"
    return type(value).__name__
