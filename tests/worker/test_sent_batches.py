"""Batches that ranks send each other for a proof: they arrive as pickles do, and only from ranks of the launch."""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import hmac
import os
import pickle
import sys
from collections import UserDict, defaultdict, namedtuple
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ddpbench.collectives.exchange import ForeignMessageError
from ddpbench.records.job_key import SECRET_VARIABLE
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


class Slotted:
    __slots__ = ("edges", "name")

    def __init__(self, rank: int) -> None:
        self.edges = torch.arange(2 + rank)
        self.name = f"graph {rank}"


class Graph:
    """Like those of graph libraries: pickled in a special way, with attributes that differ from batch to batch."""

    def __init__(self, rank: int) -> None:
        self.parts = defaultdict(list, {"x": [torch.ones(1 + rank)]})
        setattr(self, f"only_{rank}", rank)

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (Graph,), vars(self)  # type: ignore[attr-defined]


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
        "slotted": Slotted(rank),
        "on one rank": [Slotted(rank)] * rank,
        "graph": Graph(rank),
        "enum": Kind.FIRST,
        "array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2] + rank,
        "words": np.array(["a", "bc"]),
        "objects": np.array([rank, "a"], dtype=object),
        "time": np.datetime64("2026-01-01") + rank,
        "number": np.float64(0.1),
        "bool": torch.tensor([True, False]),
        "half": torch.full((2, 1), 0.1, dtype=torch.bfloat16),
        "complex": torch.tensor([1 + 2j]).conj(),
        "empty": torch.empty(0, 5),
        "transposed": torch.arange(6.0).reshape(2, 3).t() + rank,
        "every other": torch.arange(8.0)[rank::2],
        "expanded": torch.ones(1).expand(3 + rank),
        "sparse": torch.eye(2 + rank).to_sparse(),
        "rows": torch.eye(2 + rank).to_sparse_csr(),
        "columns": torch.eye(2).to_sparse_csc(),
        "nested": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
        "packed": nn.utils.rnn.pack_sequence(rows),
        "marked": marked,
        "kind": (int, float)[rank],
        "delta": datetime.timedelta(days=rank),
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
    """Return whether two values are equal, of equal classes, and their tensors of equal types, shapes and strides."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.layout) != (other.dtype, other.layout):
            return False
        if one.is_nested:
            return all(torch.equal(a, b) for a, b in zip(one.unbind(), other.unbind(), strict=True))
        if vars(one) != vars(other):
            return False
        if one.layout == torch.strided and one.stride() != other.stride():
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
    if isinstance(one, Slotted):
        return _alike([one.edges, one.name], [other.edges, other.name])
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


def _shared(rank: int, size: int) -> list[bool]:
    row, whole, itself = [rank], torch.arange(4), Plain(rank)
    itself.parts = [itself]  # type: ignore[attr-defined]
    sent = {
        "rows": [row, row],
        "parts": [whole[:2], whole[1:]],
        "itself": itself,
        "many": [*range(2 * 10**6)],
    }
    other = gather_batches(sent if rank else {"many": []}, None)[1]
    other["parts"][0][1] = 7
    return [
        other["rows"][0] is other["rows"][1],
        int(other["parts"][1][0]) == 7,
        other["itself"].parts[0] is other["itself"],
        other["many"] == [*range(2 * 10**6)],
    ]


def test_what_a_batch_shares_stays_shared_and_it_may_be_long_on_one_rank() -> None:
    assert run_ranks(_shared, 2) == [[True] * 4] * 2


class _Ends:
    """Ends the process that pickles it, or that unpickles it."""

    def __init__(self, when: str) -> None:
        self.when = when

    def __reduce__(self) -> Any:
        if self.when == "pickled":
            sys.exit("enough")
        return sys.exit, ("enough",)


def _kept_to_itself() -> Any:
    class Local:
        pass

    return Local()


def _refused(rank: int, size: int, kind: str) -> str:
    own: dict[str, Any] = {
        "local": _kept_to_itself(),
        "function": [lambda: None],
        "generator": {"all": (each for each in ())},
        "ends": _Ends("pickled"),
        "ends later": _Ends("unpickled"),
    }
    with pytest.raises(CannotTrainError) as error:
        gather_batches([torch.ones(1), own[kind] if rank == 1 else 3], None)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "local",
            f"its batches hold an object of {__name__}._kept_to_itself.<locals>.Local, which cannot be pickled:",
        ),
        ("function", "its batches hold an object of builtins.function, which cannot be pickled:"),
        (
            "generator",
            "its batches hold an object of builtins.generator, which cannot be pickled: TypeError:",
        ),
        (
            "ends",
            f"its batches hold an object of {__name__}._Ends, which cannot be pickled: SystemExit: enough",
        ),
        ("ends later", "rank 0 cannot unpickle rank 1's batches: SystemExit: enough"),
    ],
)
def test_what_one_rank_cannot_send_or_read_is_said_on_every_rank(kind: str, words: str) -> None:
    found = run_ranks(_refused, 3, kind)
    assert len(set(found)) == 1
    assert found[0].startswith(words)


def _without_secret(rank: int, size: int) -> str:
    if rank == 1:
        del os.environ[SECRET_VARIABLE]
    with pytest.raises(CannotTrainError) as error:
        gather_batches(torch.ones(1), None)
    return str(error.value)


def test_a_rank_without_the_secret_has_all_ranks_say_so() -> None:
    found = run_ranks(_without_secret, 3)
    assert len(set(found)) == 1
    assert "have no key to authenticate them: start the ranks by ddpbench sweep" in found[0]


class _RanError(BaseException):
    """Raised when a message of a test has run code; not caught with what unpickling raises."""


class _Runs:
    def __reduce__(self) -> Any:
        return _ran, ()


def _ran() -> None:
    raise _RanError


def test_the_pickle_of_a_test_runs_code_where_it_is_unpickled() -> None:
    with pytest.raises(_RanError):
        pickle.loads(pickle.dumps(_Runs()))


_BATCH = 3
"""The index of the message with a batch among those of an exchange; two exchanges are made."""
_EACH = 5
_LIES: dict[str, Callable[[list[bytes]], bytes]] = {
    "forged": lambda sent: bytes(32) + pickle.dumps(_Runs()),
    "of another secret": lambda sent: _signed(sent[-1][32:]),
    "changed": lambda sent: sent[-1][:-1] + bytes([sent[-1][-1] ^ 1]),
    "replayed": lambda sent: sent[_BATCH],
    "the message before": lambda sent: sent[-2],
    "as rank 0": lambda sent: sent[-1],
    "truncated": lambda sent: sent[-1][:-1],
    "lengthened": lambda sent: sent[-1] + b"\0",
    "shorter than a code": lambda sent: sent[-1][:16],
    "empty": lambda sent: b"",
}
"""Return what rank 1 sends in place of its second batch, by what it should be taken for."""


def _signed(content: bytes) -> bytes:
    return hmac.digest(b"another", content, "sha256") + content


class _LiedError(Exception):
    """Raised in the rank that has lied, as the other one leaves too."""


def _to_a_liar(rank: int, size: int, lie: str, trusting: bool) -> str:
    """Return what is said to rank 0 of rank 1's lie, without unpickling anything."""
    sent: list[bytes] = []
    exchange, of = sent_batches.gather_bytes, sent_batches._Exchange._mac

    def lying(own: bytes, most: int, group: Any) -> list[torch.Tensor]:
        sent.append(own)
        if len(sent) <= _EACH + _BATCH:
            return exchange(own, most, group)
        exchange(_LIES[lie](sent), 1 << 20, group)
        raise _LiedError

    def mac(self: Any, sender: int, content: bytes) -> bytes:
        return of(self, 0 if self._number == _BATCH and len(sent) > _EACH else sender, content)

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(sent_batches, "gather_bytes", lying)
            if lie == "as rank 0":
                patch.setattr(sent_batches._Exchange, "_mac", mac)
        gather_batches([torch.ones(9)], None)
        if rank == 1:
            with pytest.raises(_LiedError):
                gather_batches([torch.ones(9)], None)
            return ""
        # Otherwise a message that is too long is refused earlier.
        patch.setattr(sent_batches, "gather_bytes", lambda own, most, group: exchange(own, most + 1, group))
        patch.setattr(torch, "load", lambda *_, **__: _ran())
        if trusting:
            patch.setattr(hmac, "compare_digest", lambda *_: True)
        with pytest.raises((ForeignMessageError, _RanError)) as error:
            gather_batches([torch.ones(9)], None)
        return f"{error.type.__name__} {error.value}"


@pytest.mark.parametrize("lie", _LIES)
def test_what_is_not_that_ranks_message_is_refused_before_it_is_unpickled(lie: str) -> None:
    said, _ = run_ranks(_to_a_liar, 2, lie, False)
    assert said.startswith("ForeignMessageError rank 1 sent a message that no rank of this launch sends (")


@pytest.mark.parametrize("lie", ["forged", "replayed"])
def test_without_the_check_of_its_code_it_would_be_unpickled(lie: str) -> None:
    said, _ = run_ranks(_to_a_liar, 2, lie, True)
    assert said.startswith("_RanError")


def _with_other_numbers(rank: int, size: int, length: int) -> str:
    """Return what is said of a rank that draws a random number of another length."""
    exchange = sent_batches.gather_bytes
    drawn: list[bytes] = []

    def lying(own: bytes, most: int, group: Any) -> list[torch.Tensor]:
        if drawn:
            return exchange(own, most, group)
        drawn.append(own)
        exchange(own[:length], most, group)
        raise _LiedError

    if rank == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sent_batches, "gather_bytes", lying)
            with pytest.raises(_LiedError):
                gather_batches([], None)
        return ""
    with pytest.raises(ForeignMessageError) as error:
        gather_batches([], None)
    return str(error.value)


def test_a_random_number_of_another_length_is_refused() -> None:
    said, _ = run_ranks(_with_other_numbers, 2, 15)
    assert "a random number of 15 bytes" in said


def _with_others_for_mine(rank: int, size: int) -> bool:
    """Return whether a rank's codes depend on the number that it has drawn, if another one comes back for it."""
    exchange = sent_batches.gather_bytes
    drawn: list[bytes] = []

    def lying(own: bytes, most: int, group: Any) -> list[torch.Tensor]:
        drawn.append(own)
        return [torch.zeros(16, dtype=torch.uint8) for _ in exchange(own, most, group)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sent_batches, "gather_bytes", lying)
        made = sent_batches._Exchange(None)
    return drawn[0] in made._drawn


def test_ones_own_random_number_is_not_taken_from_others() -> None:
    assert run_ranks(_with_others_for_mine, 2) == [True, True]
