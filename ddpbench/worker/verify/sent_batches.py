"""Batches as bytes that one rank sends to the others, which read them without unpickling.

A message is the length of its outline (8 bytes), the outline as JSON, then the bytes of the tensors and arrays in it,
in order. The outline names classes; the reader makes objects of a class after one in its own batch, so that a message
can bring values but no code.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import pickle
import re
from collections.abc import Callable, Mapping, MutableMapping
from copy import copy
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddpbench.collectives.exchange import (
    ForeignMessageError,
    decoded,
    foreign,
    gather_bytes,
    name_of_type,
    shape_of,
    type_of_numbers,
)
from ddpbench.strategies.base import CannotTrainError
from ddpbench.strategies.trees import fields_of, like

_ROOM = 64 << 20
_TIMES = 64
"""A received batch has at most this many times the bytes of this rank's, and `_ROOM` more: texts and graphs differ."""
_DEEPEST = 12
"""Deepest nesting of a batch: an outline takes up to four levels of JSON for each level, of the 64 that are read."""
_MOST_NODES = 1 << 18
"""Most values of a batch, counting each tensor or array as one."""
_LAYOUTS = {
    str(layout): layout
    for layout in (
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
        torch.strided,
        torch.jagged,
    )
}


_NUMBERS = re.compile(r"[<>|=]?[biufcSUmM]\d{1,9}(\[\w+\])?", re.ASCII)
"""The types of an array's numbers or texts, as numpy writes them, without types of objects."""


def _written(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()


_WRITTEN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    float: ("float", float.hex, float.fromhex),
    complex: (
        "complex",
        lambda value: [value.real.hex(), value.imag.hex()],
        lambda given: complex(*map(float.fromhex, given)),
    ),
    int: ("int", hex, lambda text: int(text, 16)),
    str: ("text", _written, lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass")),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    type(Path()): (
        "path",
        lambda path: _written(str(path)),
        lambda text: Path(bytes.fromhex(text).decode("utf-8", "surrogatepass")),
    ),
}
"""By class, the kind of a value's node, its writer and its reader; JSON has texts and short integers itself."""


_OF_PYTHON = 1 << 9
"""The flag of classes made by a `class` statement; objects of classes written in C keep more than attributes."""


class _UnknownError(Exception):
    """Raised for a value that only the sending rank has; the message is the value's class."""


def gather_batches(own: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return every rank's batch in the order of ranks, with tensors on the CPU; all ranks call it.

    A batch is a value as in `ddpbench.strategies.trees`. Objects of classes that hold no parts (neither tensors and
    arrays nor numbers and texts) have to be equal on all ranks.

    Raises:
        CannotTrainError: batches hold objects that differ from rank to rank and cannot be sent as values.
        ForeignMessageError: a rank's message is no batch, or is far larger than this rank's.
    """
    outline = _Outline()
    message = outline.message(own)
    gathered = gather_bytes(message, _TIMES * len(message) + _ROOM, group)
    found: list[Any] = []
    for rank, sent in enumerate(gathered):
        if rank == dist.get_rank(group):
            found.append(own)
            continue
        try:
            found.append(_read(rank, sent, outline))
        except _UnknownError as error:
            raise CannotTrainError(
                f"its batches hold objects of {error} that differ from rank to rank, and ranks send each other's "
                "samples as tensors, numbers and texts only: have the dataset or collate_fn return these"
            ) from None
    return found


class _Outline:
    """The outline of this rank's own batch, and the objects in it after which those of other ranks are made."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        """An object of each class, by the class's name."""
        self.opaque: dict[str, Any] = {}
        """Objects without parts, by their digests."""
        self.blocks: list[bytes] = []
        self._around: set[int] = set()
        """Identities of the values that contain the one being described."""
        self._nodes = 0

    def message(self, value: Any) -> bytes:
        """Return a batch as the bytes of a message."""
        outline = json.dumps(self._node(value, 0), separators=(",", ":")).encode()
        return b"".join([len(outline).to_bytes(8, "little"), outline, *self.blocks])

    def _node(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise CannotTrainError(
                f"its batches hold more than {_MOST_NODES:,} values: have the dataset or collate_fn return tensors"
            )
        if value is None or isinstance(value, bool) or _is_short(value) or _is_text(value):
            return value
        if depth > _DEEPEST:
            return self._whole(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if id(value) in self._around:
            raise CannotTrainError(
                f"its batches hold an object of {_name_of(type(value))} that contains itself: have the dataset or "
                "collate_fn return tensors, numbers and texts"
            )
        self._around.add(id(value))
        found = self._numbers(value) or self._container(value, depth + 1)
        self._around.discard(id(value))
        return found

    def _numbers(self, value: Any) -> Any:
        """Return the node of a number, text, date or path, or of an array of these; None for anything else."""
        if type(value) in _WRITTEN:
            kind, write, _ = _WRITTEN[type(value)]
            return {kind: write(value)}
        if type(value) in (bytes, bytearray):
            return {type(value).__name__: self._block(bytes(value))}
        if isinstance(value, Enum) and value.name in type(value).__members__:
            return self._object(value, [value.name], "member")
        if isinstance(value, np.ndarray | np.generic) and _NUMBERS.fullmatch(value.dtype.str):
            kind = "array" if isinstance(value, np.ndarray) else "number"
            data = self._block(np.ascontiguousarray(value).tobytes())
            return {kind: [value.dtype.str, [*value.shape], data]}
        return None

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._object(value, [self._node(part, depth) for part in value])
        if isinstance(value, list | tuple) or type(value) in (set, frozenset):
            known = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else ""
            return {known or type(value).__name__: [self._node(part, depth) for part in value]}
        if _is_plain(
            value
        ):  # also a dataclass or a mapping such as UserDict, which is no more than its attributes
            return self._object(value, self._items(vars(value), depth), "plain")
        if isinstance(value, MutableMapping):
            return self._mapping(value, depth)
        held = fields_of(value)
        return self._whole(value) if held is None else self._object(value, self._items(held, depth))

    def _mapping(self, value: MutableMapping[Any, Any], depth: int) -> Any:
        items = self._items(value, depth)
        if type(value) is dict:
            return {"dict": items}
        return self._object(value, items, "mapping", self._items(getattr(value, "__dict__", {}), depth))

    def _items(self, held: Mapping[Any, Any], depth: int) -> list[Any]:
        return [[self._node(key, depth), self._node(part, depth)] for key, part in held.items()]

    def _object(self, value: Any, parts: list[Any], kind: str = "object", *more: Any) -> Any:
        name = _name_of(type(value))
        self.made[name] = value
        return {kind: [name, parts, *more]}

    def _whole(self, value: Any) -> Any:
        try:
            digest = hashlib.sha256(pickle.dumps(value)).hexdigest()
        except Exception:  # any that the value's class raises
            digest = ""
        if digest:
            self.opaque[digest] = value
        return {"same": [_name_of(type(value)), digest]}

    def _block(self, data: bytes) -> int:
        self.blocks.append(data)
        return len(data)

    def _tensor(self, value: torch.Tensor) -> Any:
        parts: list[Any]
        if value.is_nested:
            rows = [self._tensor(row) for row in value.unbind()]
            return {"nested": [str(value.layout), rows]}
        if value.layout == torch.sparse_coo:
            coordinates = value.coalesce()
            parts = [self._tensor(coordinates.indices()), self._tensor(coordinates.values())]
            return {"coordinates": [[*value.shape], *parts]}
        if str(value.layout) in _LAYOUTS and value.layout != torch.strided:
            by_row = value.layout in (torch.sparse_csr, torch.sparse_bsr)
            ends = value.crow_indices() if by_row else value.ccol_indices()
            places = value.col_indices() if by_row else value.row_indices()
            parts = [self._tensor(ends), self._tensor(places), self._tensor(value.values())]
            return {"compressed": [str(value.layout), [*value.shape], *parts]}
        name = name_of_type(value.dtype)
        if not name or value.layout != torch.strided:
            return self._whole(value)
        plain = value.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
        plain = plain.contiguous().reshape(-1).view(torch.uint8)
        data = self._block(plain.numpy().tobytes())
        of, attributes = "", []
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            of = _name_of(type(value))
            self.made[of] = value
            attributes = self._items(value.__dict__, 1)
        return {"tensor": [name, [*value.shape], data, of, attributes]}


def _read(rank: int, sent: torch.Tensor, own: _Outline) -> Any:
    if len(sent) < 8:
        raise foreign(rank, f"{len(sent)} bytes are no batch")
    end = 8 + int.from_bytes(sent[:8].numpy().tobytes(), "little")
    reader = _Reader(own, sent[end:] if end <= len(sent) else sent[:0])
    try:
        return decoded(rank, sent[8:end], reader.batch)
    except (RuntimeError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        if isinstance(error, ForeignMessageError):
            raise
        raise foreign(rank, f"{type(error).__name__}: {error}"[:200]) from None


class _Reader:
    """Reads another rank's message, with the objects of this rank's own batch."""

    def __init__(self, own: _Outline, data: torch.Tensor) -> None:
        self._own, self._data, self._at = own, data, 0

    def batch(self, outline: Any) -> Any:
        """Return the batch that an outline describes.

        Raises:
            ValueError: the outline describes none; also a TypeError, a LookupError or a RuntimeError.
            _UnknownError: the batch holds an object that this rank's batch does not.
        """
        found = self._value(outline)
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at:,} bytes more than its outline says")
        return found

    def _value(self, node: Any) -> Any:
        if node is None or isinstance(node, bool | int | str):
            return node
        ((kind, given),) = node.items()
        if kind in ("list", "tuple", "set", "frozenset"):
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](
                map(self._value, given)
            )
        readers = {
            **{each: read for each, _, read in _WRITTEN.values()},
            "bytes": self._block,
            "member": lambda given: _member(self._made(given[0]), *given[1]),
            "bytearray": lambda size: bytearray(self._block(size)),
            "dict": lambda items: {self._value(key): self._value(part) for key, part in items},
            "array": self._array,
            "number": lambda of: self._array(of)[()],
            "object": self._object,
            "mapping": self._mapping,
            "plain": self._plain,
            "same": self._same,
        }
        return readers[kind](given) if kind in readers else self._tensor(node)

    def _block(self, size: Any) -> bytes:
        return self._taken(size).numpy().tobytes()

    def _taken(self, size: Any) -> torch.Tensor:
        if type(size) is not int or not 0 <= size <= len(self._data) - self._at:
            raise ValueError("fewer bytes than its outline says")
        self._at += size
        return self._data[self._at - size : self._at]

    def _array(self, given: Any) -> Any:
        name, shape, size = given
        if not isinstance(name, str) or not _NUMBERS.fullmatch(name):
            raise TypeError("an array's type of numbers is expected")
        numbers = np.dtype(name)
        lengths = shape_of(shape)
        if math.prod(lengths) * numbers.itemsize != size:
            raise ValueError("an array's shape does not fit its bytes")
        return np.frombuffer(self._block(size), dtype=numbers).reshape(lengths).copy()

    def _tensor(self, node: Any) -> torch.Tensor:
        ((kind, given),) = node.items()
        readers = {
            "tensor": self._dense,
            "nested": lambda given: torch.nested.as_nested_tensor(
                [*map(self._tensor, given[1])], layout=_LAYOUTS[given[0]]
            ),
            "same": self._same,
        }
        readers |= {"coordinates": self._coordinates, "compressed": self._compressed}
        if kind not in readers:
            raise LookupError(f"{kind!r} is no value")
        found = readers[kind](given)
        if not isinstance(found, torch.Tensor):
            raise TypeError("a tensor is expected")
        return found

    def _coordinates(self, given: Any) -> Any:
        shape, *parts = given
        indices, values = map(self._tensor, parts)
        # Checked: an index beyond the shape would reach other memory.
        return torch.sparse_coo_tensor(indices, values, shape_of(shape), check_invariants=True).coalesce()

    def _compressed(self, given: Any) -> Any:
        layout, shape, *parts = given
        ends, places, values = map(self._tensor, parts)
        return torch.sparse_compressed_tensor(
            ends, places, values, shape_of(shape), layout=_LAYOUTS[layout], check_invariants=True
        )

    def _dense(self, given: Any) -> torch.Tensor:
        name, shape, size, of, attributes = given
        dtype, lengths = type_of_numbers(name), shape_of(shape)
        if math.prod(lengths) * dtype.itemsize != size:
            raise ValueError("a tensor's shape does not fit its bytes")
        plain: torch.Tensor = (
            self._taken(size).clone().view(dtype).reshape(lengths)
        )  # cloned, so that numbers are aligned
        if dtype == torch.bool:
            plain = plain.view(torch.uint8) != 0  # a byte of a bool is 0 or 1
        if not of:
            return plain
        like_it = self._made(of)
        if not isinstance(like_it, torch.Tensor):
            raise TypeError("a class of tensors is expected")
        made: torch.Tensor = plain.as_subclass(type(like_it))
        made.__dict__.update(self._attributes(of, attributes))
        return made

    def _made(self, name: Any) -> Any:
        if not isinstance(name, str):
            raise TypeError("a class is expected")
        if name not in self._own.made:
            raise _UnknownError(name[:200])
        return self._own.made[name]

    def _object(self, given: Any) -> Any:
        name, parts = given
        mine = self._made(name)
        if isinstance(mine, tuple):
            if len(parts) != len(mine):
                raise ValueError("a named tuple of another length")
            return like(mine, [self._value(part) for part in parts])
        held, known = self._attributes(name, parts), fields_of(mine)
        if known is None or not held.keys() <= known.keys():
            raise _UnknownError(name)
        return like(mine, held)

    def _mapping(self, given: Any) -> Any:
        name, items, attributes = given
        mine = self._made(name)
        if not isinstance(mine, MutableMapping):
            raise TypeError("a mapping is expected")
        same = copy(mine)
        same.clear()
        same.update({self._value(key): self._value(part) for key, part in items})
        if held := self._attributes(name, attributes):
            vars(same).clear()
            vars(same).update(held)
        return same

    def _plain(self, given: Any) -> Any:
        name, parts = given
        mine = self._made(name)
        same = copy(mine) if _is_plain(mine) else mine
        if same is mine:
            raise _UnknownError(name)
        held = self._attributes(name, parts)
        vars(same).clear()
        vars(same).update(held)
        return same

    def _attributes(self, name: str, parts: Any) -> dict[str, Any]:
        held = {self._value(key): self._value(part) for key, part in parts}
        if not all(isinstance(each, str) for each in held):
            raise _UnknownError(name)
        return held

    def _same(self, given: Any) -> Any:
        name, digest = given
        if not isinstance(name, str) or not isinstance(digest, str):
            raise TypeError("an object's class is expected")
        if digest not in self._own.opaque:
            raise _UnknownError(name[:200])
        return self._own.opaque[digest]


def _member(mine: Any, name: Any) -> Any:
    if not isinstance(mine, Enum) or not isinstance(name, str):
        raise TypeError("a member of an enumeration is expected")
    return type(mine)[name]


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_short(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_text(value: Any) -> bool:
    return (
        type(value) is str and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    )


def _is_plain(value: Any) -> bool:
    """Return whether an object is no more than its attributes: its classes are all written in Python, without slots."""
    kinds = [kind for kind in type(value).__mro__ if kind is not object]
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, type | Enum)
        and all(kind.__flags__ & _OF_PYTHON and not vars(kind).get("__slots__") for kind in kinds)
    )
