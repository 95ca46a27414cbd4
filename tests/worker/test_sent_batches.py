"""Batches that ranks send each other for a proof: all kinds of values arrive as they are, and nothing else does."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pickle
from collections import UserDict, defaultdict, namedtuple
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ddpbench.collectives.exchange import ForeignMessageError
from ddpbench.strategies.base import CannotTrainError
from ddpbench.worker.verify import sent_batches
from ddpbench.worker.verify.sent_batches import gather_batches
from tests.ranks import run_ranks

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Held:
    ids: torch.Tensor
    words: list[str]


class Plain:
    def __init__(self, rank: int) -> None:
        self.edges = torch.arange(2 + rank)
        self.name = f"graph {rank}"


class Graph:
    """Like those of graph libraries: pickled in a special way, with attributes that differ from batch to batch."""

    def __init__(self, rank: int) -> None:
        self.parts = defaultdict(list, {"x": [torch.ones(1 + rank)]})
        setattr(self, f"only_{rank}", rank)

    def __reduce__(self) -> Any:
        return Graph, (0,), vars(self)


@dataclasses.dataclass
class Derived:
    """Has an attribute that is not a field."""

    ids: torch.Tensor

    def __post_init__(self) -> None:
        self.total = self.ids.numel()


class Encoding(UserDict):  # type: ignore[type-arg]
    """Has an attribute next to its items, as the encodings of a tokenizer."""

    def __init__(self, rank: int) -> None:
        super().__init__({"ids": torch.arange(rank + 1)})
        self.count = rank + 1


class Counted(dict):  # type: ignore[type-arg]
    def __init__(self, rank: int) -> None:
        super().__init__({"ids": torch.arange(rank + 1)})
        self.count = rank + 1


class Kind(Enum):
    FIRST, SECOND = 1, 2


class Marked(torch.Tensor):
    pass


def _batch(rank: int) -> Any:
    marked = torch.full((2,), float(rank)).as_subclass(Marked)
    marked.canvas = (3, 4 + rank)  # type: ignore[attr-defined]
    rows = [torch.arange(3.0) + rank, torch.arange(2.0)]
    return {
        "none": None,
        "numbers": [True, rank, -(2**40), 0.1 + rank, float("inf")],
        "text": "ä" * rank,
        3: (b"\x00\xff", bytearray(b"a" * rank), {1, 2}, frozenset("a")),
        ("a", 1): Point(torch.arange(3 + rank), [rank]),
        "user": UserDict({"ids": torch.ones(rank, 2, dtype=torch.int64)}),
        "held": Held(torch.tensor(rank), ["x"] * rank),
        "plain": Plain(rank),
        "graph": Graph(rank),
        "enum": Kind.FIRST,
        "array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2] + rank,
        "words": np.array(["a", "bc"]),
        "time": np.datetime64("2026-01-01") + rank,
        "number": np.float64(0.1),
        "bool": torch.tensor([True, False]),
        "half": torch.full((2, 1), 0.1, dtype=torch.bfloat16),
        "complex": torch.tensor([1 + 2j]).conj(),
        "empty": torch.empty(0, 5),
        "transposed": torch.arange(6.0).reshape(2, 3).t() + rank,
        "sparse": torch.eye(2 + rank).to_sparse(),
        "rows": torch.eye(2 + rank).to_sparse_csr(),
        "columns": torch.eye(2).to_sparse_csc(),
        "nested": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
        "marked": marked,
        "kind": int,
        "day": datetime.date(2026, 1, 1 + rank),
        "moment": datetime.datetime(2026, 1, 1, rank, tzinfo=datetime.UTC),
        "path": Path(f"image {rank}.png"),
        "member": list(Kind)[rank],
        "large": 10**30 + rank,
        "numbers too": complex(rank, -0.0),
        "odd": f"a\0b\ud800 {rank}",
        "derived": Derived(torch.arange(2.0 + rank)),
        "encoding": Encoding(rank),
        "ordered": Counted(rank),
    }


def _alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, of equal classes, and their tensors of equal types and shapes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.layout) != (other.dtype, other.layout):
            return False
        if one.is_nested:
            return all(torch.equal(a, b) for a, b in zip(one.unbind(), other.unbind(), strict=True))
        if vars(one) != vars(other):
            return False
        dense, same = (each if each.layout == torch.strided else each.to_dense() for each in (one, other))
        return bool(torch.equal(dense.as_subclass(torch.Tensor), same.as_subclass(torch.Tensor)))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict | UserDict):
        if getattr(one, "count", 0) != getattr(other, "count", 0):
            return False
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, Held | Plain | Graph | Derived):
        return _alike(vars(one), vars(other))
    return bool(one == other)


def _gathered(rank: int, size: int) -> list[str]:
    found = gather_batches(_batch(rank), None)
    wrong = []
    for other, batch in enumerate(found):
        expected = _batch(other)
        wrong += [f"{other} {key}" for key in expected if not _alike(batch[key], expected[key])]
        if list(batch) != list(expected):
            wrong.append(f"{other} keys")
    return wrong


def test_values_of_every_kind_arrive_as_they_are() -> None:
    assert run_ranks(_gathered, 2) == [[], []]


def _refused(rank: int, size: int, kind: str) -> str:
    own: dict[str, Any] = {
        "delta": [torch.ones(1), datetime.timedelta(days=rank)],
        "kind": [torch.ones(1), (int, float)[rank]],
        "function": [torch.ones(1), lambda: None],
    }
    with pytest.raises(CannotTrainError) as error:
        gather_batches(own[kind], None)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("delta", "datetime.timedelta"), ("kind", "builtins.type"), ("function", "builtins.function")],
)
def test_objects_that_cannot_be_sent_are_named_on_every_rank(kind: str, words: str) -> None:
    found = run_ranks(_refused, 2, kind)
    assert all(f"its batches hold objects of {words} that differ" in each for each in found)


class _RanError(Exception):
    """Raised when a message of a test has run code."""


class _Runs:
    def __reduce__(self) -> Any:
        return _ran, ()


def _ran() -> None:
    raise _RanError


def message(outline: Any, data: bytes = b"") -> bytes:
    text = json.dumps(outline).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(name: Any = "int64", shape: Any = (1,), size: Any = 8, of: Any = "") -> Any:
    return {"tensor": [name, shape, size, of, []]}


def read(sent: bytes) -> Any:
    own = sent_batches._Outline()
    own.message([Plain(0), Point(1, 2), UserDict(), Held(torch.ones(1), [])])
    return sent_batches._read(1, torch.tensor(list(sent), dtype=torch.uint8), own)


def test_a_message_of_a_test_is_read() -> None:
    assert torch.equal(read(message(tensor(), bytes([7, *[0] * 7]))), torch.tensor([7]))
    of = f"{__name__}.Plain"
    found = read(message({"plain": [of, [["name", "x"], ["__class__", 1]]]}))
    assert type(found) is Plain
    assert vars(found) == {"name": "x", "__class__": 1}
    assert read(message(tensor("bool", [3], 3), b"\x00\x01\x07")).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 8,
        pickle.dumps(_Runs()),
        len(pickle.dumps(_Runs())).to_bytes(8, "little") + pickle.dumps(_Runs()),
        message({"exec": "1"}),
        message({"float": "import os"}),
        message({"float": 1}),
        message({"list": 3}),
        message({"dict": [[{"list": []}, 1]]}),
        message({"dict": [[1, 2, 3]]}),
        message({}),
        message([1]),
        message(tensor(), b"\x00" * 7),
        message(tensor(), b"\x00" * 9),
        message(tensor(shape=[2]), b"\x00" * 8),
        message(tensor(shape=[-1], size=-8)),
        message(tensor(shape=[1 << 39, 1 << 39], size=1 << 81)),
        message(tensor(shape=[0, *[1 << 40] * 60], size=0)),
        message(tensor("load"), b"\x00" * 8),
        message(tensor("quint8", [8]), b"\x00" * 8),
        message(tensor(size=8.0), b"\x00" * 8),
        message(tensor(of="tests.worker.test_sent_batches.Plain"), b"\x00" * 8),
        message({"array": ["O", [1], 8]}, b"\x00" * 8),
        message({"array": ["i8,O", [1], 16]}, b"\x00" * 16),
        message({"array": ["<i8", [2], 8]}, b"\x00" * 8),
        message({"array": ["<i3", [1], 3]}, b"\x00" * 3),
        message({"bytes": 1}),
        message({"bytes": -1}),
        message({"coordinates": [[2], tensor("int64", [1, 1]), tensor()]}, bytes([9, *[0] * 15])),
        message(
            {"compressed": ["torch.sparse_csr", [1, 2], tensor("int64", [2], 16), tensor(), tensor()]},
            bytes([0] * 8 + [1] + [0] * 7 + [99] + [0] * 15),
        ),
        message({"nested": ["torch.jagged", []]}),
        message({"nested": ["os.system", []]}),
        message({"object": ["tests.worker.test_sent_batches.Point", [1, 2, 3]]}),
        message({"plain": ["tests.worker.test_sent_batches.Plain", 3]}),
        message({"object": [3, []]}),
        message({"same": [1, 2]}),
    ],
)
def test_a_message_that_is_no_batch_is_refused_and_runs_nothing(sent: bytes) -> None:
    with pytest.raises(ForeignMessageError, match=r"^rank 1 sent what no rank of this launch sends"):
        read(sent)


@pytest.mark.parametrize(
    "outline",
    [
        {"object": ["subprocess.Popen", [["args", "id"]]]},
        {"plain": ["tests.worker.test_sent_batches.Plain", [[1, 1]]]},
        {"object": ["tests.worker.test_sent_batches.Held", [["other", 1]]]},
        {"same": ["os.system", ""]},
        tensor("int64", [0], 0, "torch.nn.Module"),
    ],
)
def test_a_class_or_attribute_that_ones_own_batch_lacks_is_refused(outline: Any) -> None:
    with pytest.raises(sent_batches._UnknownError):
        read(message(outline))


def _long(rank: int, size: int) -> str:
    if rank:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(sizes, torch.tensor([1 << 40]))
        return ""
    with pytest.raises(ForeignMessageError) as error:
        gather_batches(torch.ones(1), None)
    return str(error.value)


def test_a_batch_far_larger_than_ones_own_is_refused() -> None:
    found, _ = run_ranks(_long, 2)
    assert "1,099,511,627,776 bytes; " in found


def test_the_pickle_of_a_test_runs_code_where_it_is_unpickled() -> None:
    with pytest.raises(_RanError):
        pickle.loads(pickle.dumps(_Runs()))


def _contains_itself(rank: int, size: int) -> str:
    own = Plain(0)
    own.parts = [own]  # type: ignore[attr-defined]
    with pytest.raises(CannotTrainError) as error:
        gather_batches(own, None)
    return str(error.value)


def test_an_object_that_contains_itself_is_refused_in_a_sentence() -> None:
    assert all("Plain that contains itself" in each for each in run_ranks(_contains_itself, 2))


def test_very_many_values_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_batches, "_MOST_NODES", 100)
    with pytest.raises(CannotTrainError, match="more than 100 values"):
        sent_batches._Outline().message([0] * 200)
