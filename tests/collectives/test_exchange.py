"""Small values between ranks: bounded, decoded strictly, and never unpickled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpbench.collectives.exchange import (
    ForeignMessageError,
    gather_bytes,
    gather_values,
    name_of_type,
    shape_of,
    strides_of,
    texts,
    type_of_numbers,
    whole,
)
from tests.ranks import run_ranks


def _pair(rank: int, size: int) -> Any:
    values = gather_values(["a" * rank, "ä"], texts)
    data = gather_bytes(bytes(range(3 * rank)), 100)
    return values, [each.tolist() for each in data]


def test_values_and_bytes_of_all_ranks_arrive_in_the_order_of_ranks() -> None:
    found = run_ranks(_pair, 3)
    values = [["", "ä"], ["a", "ä"], ["aa", "ä"]]
    assert found == [(values, [[], [0, 1, 2], [0, 1, 2, 3, 4, 5]])] * 3


def _hostile(rank: int, size: int, sent: bytes, said: int, most: int) -> str:
    """Return what rank 0 says of a message of bytes; rank 1 says that it has another length."""
    if rank:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(lengths, torch.tensor([said]))
        if 0 <= said <= most:
            padded = torch.zeros(max(1, *(int(each) for each in lengths)), dtype=torch.uint8)
            padded[: len(sent)] = torch.tensor(list(sent), dtype=torch.uint8)
            dist.all_gather([torch.empty_like(padded) for _ in lengths], padded)
        return ""
    with pytest.raises(ForeignMessageError) as error:
        gather_values(["own"], texts, most=most)
    return str(error.value)


PICKLED = b"cos\nsystem\n(S'touch PWNED'\ntR."


@pytest.mark.parametrize(
    ("sent", "said", "words"),
    [
        (PICKLED, len(PICKLED), "no rank of this launch sends .JSONDecodeError"),
        (b"\x80\x04", 2, "UnicodeDecodeError"),
        (b"", 1 << 62, "4,611,686,018,427,387,904 bytes; at most 1,000 are allowed"),
        (b"", -1, "-1 bytes; at most 1,000 are allowed"),
        (b"", 0, "no rank of this launch sends"),
        (b'["a",1]', 7, "expected a list of texts"),
        (b"[" * 450 + b"]" * 450, 900, "nested more than"),
    ],
)
def test_what_no_rank_sends_is_refused_in_a_sentence(sent: bytes, said: int, words: str) -> None:
    (found, _) = run_ranks(_hostile, 2, sent, said, 1000)
    assert found.startswith("rank 1 sent a message that no rank of this launch sends (")
    assert re.search(words, found), found


def test_shapes_and_types_are_checked() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8, torch.uint16):
        assert type_of_numbers(name_of_type(dtype)) == dtype
    assert name_of_type(torch.quint8) == ""
    for name in ("Tensor", "load", "quint8", 3, None, ["float32"]):
        with pytest.raises(TypeError):
            type_of_numbers(name)
    assert shape_of([]) == []
    assert shape_of([0, 3]) == [0, 3]
    for shape in ([-1], [1 << 49], [1 << 40, 0, 1 << 40], [1] * 65, ["1"], [True], 3, None, [[1]]):
        with pytest.raises((TypeError, ValueError)):
            shape_of(shape)
    assert whole(3, 3) == 3
    assert json.loads(json.dumps(texts(["a"]))) == ["a"]


def test_strides_may_have_a_product_that_no_shape_has() -> None:
    strides = [*torch.empty(2, 64, 16, 112, 112, device="meta").stride()]
    assert strides_of(strides) == strides
    with pytest.raises(ValueError, match="a shape too large for any tensor"):
        shape_of(strides)
    with pytest.raises(TypeError):
        strides_of(3)
