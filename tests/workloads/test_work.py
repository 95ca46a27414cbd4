"""Sizes and operations by which shipped workloads are estimated, counted again with torch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddpbench.workloads import TABLE, load_workload
from ddpbench.workloads.shipped import PREFIX
from ddpbench.workloads.work import WORK, state_bytes, work_of
from tests.synthetic import case_of

COUNTED = ("mlp:small", "mlp:large", "gpt:nano", "gpt:small", "gpt:xl", "resnet:18", "two_branch:large")


def test_every_shipped_workload_is_known() -> None:
    names = {
        f"{head}:{size}" for head, entry in TABLE.items() for size in entry.sizes if f"{head}:" != PREFIX
    }
    assert set(WORK) == names


@pytest.mark.parametrize("name", sorted(WORK))
def test_parameters_are_those_of_the_model(name: str) -> None:
    import torch

    if name.startswith("hf:"):
        pytest.importorskip("transformers", reason="needs transformers: pip install 'ddpbench[hf]'")
    workload = load_workload(name)
    with torch.device("meta"):
        model = workload.model(workload.options())
    assert WORK[name].parameters == sum(one.numel() for one in model.parameters())
    adam = "Adam" in type(workload.optimizer(model.parameters(), workload.options())).__name__
    assert WORK[name].states == (2 if adam else 1)


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in COUNTED), ("resnet:18", {"image_size": 112})]
)
def test_operations_are_those_that_torch_counts(name: str, options: dict[str, Any]) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    workload = load_workload(name)
    given = workload.options(**options)
    dataset: Any = workload.dataset(given)
    with torch.device("meta"):
        model = workload.model(given)
    inputs, targets = (one.to("meta") for one in workload.collate([dataset[0], dataset[1]]))
    with FlopCounterMode(display=False) as counter:
        workload.loss(model(inputs), targets).backward()
    known = work_of(case_of("ddp", 2, workload=name, workload_options_json=json.dumps(options)))
    assert known is not None
    assert known.flops == pytest.approx(counter.get_total_flops() / 2, rel=0.1 if options else 0.001)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in sorted(WORK) if not name.startswith("hf:")),
        ("resnet:18", {"image_size": 112}),
    ],
)
def test_the_middle_layer_hands_on_as_many_activations_as_the_models_stages(
    name: str, options: dict[str, Any]
) -> None:
    import torch

    workload = load_workload(name)
    known = work_of(case_of("ddp", 2, workload=name, workload_options_json=json.dumps(options)))
    assert known is not None
    if not workload.pieces("stages"):
        assert known.handed_on == 0
        return
    given = workload.options(**options)
    dataset: Any = workload.dataset(given)
    with torch.device("meta"):
        model: Any = workload.model(given)
    passed, _ = workload.collate([dataset[0], dataset[1]])
    passed, sizes = passed.to("meta"), []
    for stage in model.stages()[:-1]:
        passed = stage(passed)
        sizes.append(passed.numel() // 2)
    assert known.handed_on == sizes[len(sizes) // 2]


def test_the_state_of_a_model_is_counted_in_bytes_by_hand() -> None:
    # 112,560 parameters: a number each for parameter and gradient, two for AdamW, of 4 bytes
    assert state_bytes(case_of("ddp", 2, workload="gpt:nano")) == 112_560 * 4 * 4
    assert state_bytes(case_of("ddp", 2, workload="gpt:nano", dtype="float64")) == 112_560 * 4 * 8
    assert state_bytes(case_of("ddp", 2, workload="train.py:Mine")) is None
