"""Workloads whose models can be cut: their pieces are the model, under the model's own names."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import default_collate

from ddpbench.workloads import TABLE, load_workload, workload_names

STAGED = ["mlp:small", "gpt:nano", "gpt:micro", "resnet:18"]


def one_batch(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    workload = load_workload(name)
    options = workload.options(image_size=32, classes=10) if name.startswith("resnet") else workload.options()
    torch.manual_seed(1)
    model = workload.model(options).double()
    dataset = workload.dataset(options)
    inputs, _ = default_collate([dataset[i] for i in range(4)])
    return model, inputs.double() if inputs.is_floating_point() else inputs


@pytest.mark.parametrize("name", STAGED)
def test_stages_called_in_turn_are_the_model(name: str) -> None:
    model, inputs = one_batch(name)
    stages = model.stages()
    assert len(stages) == load_workload(name).pieces("stages") > 1
    x = inputs
    for stage in stages:
        x = stage(x)
    whole = model(inputs)
    assert torch.equal(x, whole)
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    assert {id(each) for each in parameters} == {id(each) for each in model.parameters()}
    assert len(parameters) == len(set(parameters))  # none is in two


def test_branches_and_their_head_are_the_model() -> None:
    model, inputs = one_batch("two_branch:small")
    branches, head = model.branches()
    assert len(branches) == load_workload("two_branch").pieces("branches") == 2
    outputs = [branch(inputs) for branch in branches]
    assert torch.equal(head(outputs), model(inputs))
    assert not torch.equal(*outputs)
    parameters = [each for piece in (*branches, head) for each in piece.parameters()]
    assert sorted(map(id, parameters)) == sorted(map(id, model.parameters()))


@pytest.mark.parametrize(("size", "units"), [("small", 256), ("large", 2048)])
def test_two_branches_have_as_many_parameters_as_their_formula_says(size: str, units: int) -> None:
    workload = load_workload(f"two_branch:{size}")
    with torch.device("meta"):
        model = workload.model(workload.options())
    count = sum(each.numel() for each in model.parameters())
    assert count == 2 * ((64 + 1) * units + 2 * (units + 1) * units) + (2 * units + 1) * 256


def test_only_what_can_be_cut_says_so() -> None:
    assert {"mlp", "gpt", "resnet", "two_branch"} <= set(TABLE)
    for name in workload_names():
        head = name.partition(":")[0]
        workload = load_workload(name)
        assert bool(workload.pieces("stages")) == (head in ("mlp", "gpt", "cnn", "resnet"))
        assert bool(workload.pieces("branches")) == (head == "two_branch")
        assert workload.pieces("") == 0


@pytest.mark.parametrize("name", [name for name in workload_names() if load_workload(name).pieces("stages")])
def test_every_size_has_as_many_stages_as_it_says(name: str) -> None:
    workload = load_workload(name)
    with torch.device("meta"):
        assert len(workload.model(workload.options()).stages()) == workload.pieces("stages")
