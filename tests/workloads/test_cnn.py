"""The `cnn` workload: what it reads, what it computes, and that it learns."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from ddpbench.spec import Case
from ddpbench.workloads import load_workload
from ddpbench.workloads.cnn import CHANNELS, HIDDEN_UNITS, CnnOptions
from ddpbench.workloads.digits import read_digits


def test_the_digits_are_the_published_ones() -> None:
    """The data have 1,797 images of 8 x 8 pixels of 0 to 16; the digits' counts are UCI's (optdigits, test set)."""
    digits = read_digits()
    images, labels = digits.images, digits.labels
    assert images.shape == (1797, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert torch.equal(images * 16, (images * 16).round())
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert labels[:180].bincount(minlength=10).min() >= 8  # they stand mixed


def test_without_scikit_learn_it_is_a_skip_that_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(workload="cnn:small", strategy="ddp")
    assert load_workload("cnn").check(case) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "pip install 'ddpbench[digits]'" in str(load_workload("cnn").check(case))


@pytest.mark.parametrize("size", CHANNELS)
def test_it_has_as_many_parameters_as_its_formula_says(size: str) -> None:
    (first, second), hidden = CHANNELS[size], HIDDEN_UNITS[size]
    expected = (9 + 1) * first + (9 * first + 1) * second + (4 * second + 1) * hidden + (hidden + 1) * 10
    model = load_workload(f"cnn:{size}").model(CnnOptions())
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_its_stages_in_a_row_are_the_model() -> None:
    model = load_workload("cnn").model(CnnOptions())
    images = torch.rand(3, 1, 8, 8)
    x = images
    for stage in model.stages():
        x = stage(x)
    assert torch.equal(x, model(images))


def test_a_loader_takes_a_batch_at_once_and_gets_the_same_samples() -> None:
    digits = read_digits()
    seen = Subset(digits, [7, 1796, 3, 900])
    (batch,) = DataLoader(seen, batch_size=4)
    one_by_one = default_collate([digits[index] for index in (7, 1796, 3, 900)])
    assert all(torch.equal(one, other) for one, other in zip(batch, one_by_one, strict=True))
    with pytest.raises(IndexError):
        digits.__getitems__([0, 1797])


def test_it_learns_to_read_digits_that_it_has_not_seen() -> None:
    workload = load_workload("cnn:small")
    torch.manual_seed(0)
    model = workload.model(CnnOptions())
    optimizer = workload.optimizer(model.parameters(), CnnOptions())
    digits = read_digits()
    seen = Subset(digits, range(1500))
    for _ in range(8):
        for images, labels in DataLoader(seen, batch_size=32):
            optimizer.zero_grad()
            workload.loss(model(images), labels).backward()
            optimizer.step()
    right = (model(digits.images[1500:]).argmax(1) == digits.labels[1500:]).float().mean()
    assert right > 0.93
