"""What cases are called: no two alike."""

from __future__ import annotations

import json
from dataclasses import replace

from ddpbench.spec import Case, labels

DDP = Case(workload="mlp", strategy="ddp", world_size=2, bucket_cap_mb="default", global_batch=16)


def with_options(**options: object) -> Case:
    return replace(DDP, options_json=json.dumps({"accumulate": 1, "compression": "none"} | options))


def called(*cases: Case) -> list[str]:
    return [labels(cases)[case.case_id] for case in cases]


def test_cases_that_differ_in_their_labels_keep_them() -> None:
    other = replace(DDP, world_size=4, dtype="float64")
    assert called(DDP, other) == [DDP.label, other.label]


def test_options_that_differ_are_named() -> None:
    plain, fp16, both = (
        with_options(),
        with_options(compression="fp16"),
        with_options(compression="fp16", accumulate=2),
    )
    assert called(plain, fp16, both) == [
        f"{DDP.label} · accumulate=1 · compression=none",
        f"{DDP.label} · accumulate=1 · compression=fp16",
        f"{DDP.label} · accumulate=2 · compression=fp16",
    ]
    assert called(plain, fp16) == [f"{DDP.label} · compression=none", f"{DDP.label} · compression=fp16"]


def test_one_batch_is_enough() -> None:
    small, strong = replace(DDP, local_batch=4, global_batch=8), replace(DDP, scaling="strong")
    assert called(DDP, small) == [f"{DDP.label} · local_batch=8", f"{DDP.label} · local_batch=4"]
    assert called(DDP, strong) == [f"{DDP.label} · scaling=weak", f"{DDP.label} · scaling=strong"]


def test_replayed_models_and_replicates() -> None:
    replay = replace(DDP, workload="replay:resnet50-v100", compute="synthetic")
    assert called(DDP, replay) == [f"{DDP.label} · mlp", f"{DDP.label} · resnet50-v100"]
    assert called(DDP, replace(DDP, replicate=1))[1] == f"{DDP.label} · replicate=1"


def test_a_workload_is_told_before_what_differs_within_it() -> None:
    other = replace(DDP, workload="gpt:nano", workload_options_json='{"block_size": 64}')
    fp16 = replace(with_options(compression="fp16"), workload="gpt:nano")
    assert called(with_options(), with_options(compression="fp16"), other) == [
        f"{DDP.label} · mlp · compression=none",
        f"{DDP.label} · mlp · compression=fp16",
        f"{DDP.label} · gpt:nano",
    ]
    assert called(with_options(), fp16) == [f"{DDP.label} · mlp", f"{DDP.label} · gpt:nano"]


def test_an_option_called_as_a_setting_is_an_option() -> None:
    first, second = (replace(DDP, workload_options_json=json.dumps({"seed": seed})) for seed in (0, 1))
    assert called(first, second) == [f"{DDP.label} · seed=0", f"{DDP.label} · seed=1"]
