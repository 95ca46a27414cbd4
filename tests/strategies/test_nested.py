"""Batches of several tensors: cut and joined without losing or moving a sample."""

from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from ddpbench.strategies.trees import chunk, concatenate, describe, map_tensors, samples, tensors

Point = namedtuple("Point", ["x", "y"])


def batch(start: int, count: int) -> dict[str, Any]:
    rows = torch.arange(start, start + count)
    return {
        "ids": rows,
        "pair": (rows.float(), [rows * 2]),
        "point": Point(rows, -rows),
        "names": [f"n{int(row)}" for row in rows],
        "scale": torch.tensor(3.0),
        "weights": torch.ones(7),
        "note": "same for all",
        "nothing": None,
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_parts_are_the_batches_of_their_own_samples(count: int) -> None:
    parts = chunk(batch(0, 6), count)
    size = 6 // count
    assert all(same(part, batch(number * size, size)) for number, part in enumerate(parts))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_putting_together_undoes_cutting_up(count: int) -> None:
    assert same(concatenate(chunk(batch(5, 6), count)), batch(5, 6))


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 6 samples does not divide among 4 replicas"):
        chunk(batch(0, 6), 4)


def test_texts_padded_to_different_lengths_are_no_one_batch() -> None:
    parts = [{"ids": torch.zeros(2, 5)}, {"ids": torch.zeros(2, 7)}]
    with pytest.raises(ValueError, match=r"shapes \[2, 5\] and \[2, 7\] are not parts of one batch"):
        concatenate(parts)


def test_tensors_are_found_and_replaced_wherever_they_are() -> None:
    doubled = map_tensors(lambda value: value * 2, batch(1, 3))
    assert doubled["pair"][1][0].tolist() == [4, 8, 12]
    assert isinstance(doubled["point"], Point)
    assert doubled["point"].y.tolist() == [-2, -4, -6]
    assert doubled["note"] == "same for all"
    assert len(list(tensors(batch(0, 2)))) == 7


def test_another_kind_of_mapping_stays_one() -> None:
    kept = UserDict({"ids": torch.arange(4)})
    first, second = chunk(kept, 2)
    assert isinstance(second, UserDict)
    assert second["ids"].tolist() == [2, 3]
    assert kept["ids"].tolist() == [0, 1, 2, 3]
    assert concatenate([first, second])["ids"].tolist() == [0, 1, 2, 3]


def test_samples_are_counted_by_the_first_tensor_that_has_them() -> None:
    assert samples({"scale": torch.tensor(1.0), "ids": torch.zeros(5, 2)}) == 5
    with pytest.raises(ValueError, match="a batch of type dict holds no tensor"):
        samples({"scale": torch.tensor(1.0)})


def test_a_batch_is_described_in_words() -> None:
    described = describe(({"ids": torch.zeros(2, 3, dtype=torch.int64)}, torch.zeros(2), None))
    assert described == "({'ids': int64 [2, 3]}, float32 [2], NoneType)"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_rows_of_unequal_lengths_are_divided_and_joined(layout: torch.layout) -> None:
    rows = [torch.full((length, 2), float(length)) for length in (1, 4, 2, 3)]
    kept = {"rows": torch.nested.nested_tensor(rows, layout=layout), "y": torch.arange(4)}
    assert samples(kept) == 4
    first, second = chunk(kept, 2)
    assert [len(each) for each in second["rows"].unbind()] == [2, 3]
    assert [len(each) for each in concatenate([first, second])["rows"].unbind()] == [1, 4, 2, 3]
    assert concatenate([first, second])["rows"].layout == layout


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_rows_are_divided_and_joined(layout: torch.layout) -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    kept = {"rows": rows.to_sparse(layout=layout), "y": torch.arange(4)}
    first, second = chunk(kept, 2)
    assert torch.equal(second["rows"].to_dense(), rows[2:])
    joined = concatenate([first, second])["rows"]
    assert joined.layout == layout
    assert torch.equal(joined.to_dense(), rows)


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    names: list[str]


def test_a_dataclass_is_divided_joined_and_described() -> None:
    kept = Sample(torch.arange(4), ["a", "b", "c", "d"])
    first, second = chunk(kept, 2)
    assert isinstance(second, Sample)
    assert (second.x.tolist(), second.names) == ([2, 3], ["c", "d"])
    assert concatenate([first, second]).x.tolist() == [0, 1, 2, 3]
    assert describe(kept) == "Sample {'x': int64 [4], 'names': 4 without tensors}"


def test_an_entry_for_each_sample_goes_with_its_sample() -> None:
    boxes = [torch.rand(1, 4), torch.rand(4, 4), torch.rand(3, 4), torch.rand(2, 4)]
    batch = (
        torch.arange(12.0).view(4, 3),
        [{"boxes": each, "labels": torch.ones(len(each)), "name": f"image {len(each)}"} for each in boxes],
        {"masks": tuple(boxes), "crowd": [None, None, boxes[2], None]},
        torch.eye(5),
    )
    first, second = chunk(batch, 2)
    assert [len(each["boxes"]) for each in first[1]] == [1, 4]
    assert [each["name"] for each in second[1]] == ["image 3", "image 2"]
    assert [len(each) for each in second[2]["masks"]] == [3, 2]
    assert second[2]["crowd"][0] is boxes[2]
    assert len(first[3]) == len(second[3]) == 5
    again = concatenate([first, second])
    assert torch.equal(again[0], batch[0])
    assert [each["name"] for each in again[1]] == [each["name"] for each in batch[1]]
    assert all(torch.equal(one, other) for one, other in zip(again[2]["masks"], boxes, strict=True))


@pytest.mark.parametrize("kind", [list, tuple])
def test_columns_of_as_many_samples_as_there_are_columns_are_cut(kind: type) -> None:
    batch = (kind([torch.arange(2), torch.eye(5)]), kind([torch.arange(2), torch.arange(2) + 2]))
    first, second = chunk(batch, 2)
    assert [len(each) for each in first[0]] == [1, 5]
    assert [each.tolist() for each in second[1]] == [[1], [3]]
    assert torch.equal(concatenate([first, second])[1][1], batch[1][1])
