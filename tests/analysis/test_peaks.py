"""Peaks by GPU and precision, and MFU worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from ddpbench.analysis import load
from ddpbench.analysis.table.peaks import PEAKS, computes_in, mfu, peak_of
from ddpbench.records import RunDir
from ddpbench.spec import Budget
from ddpbench.spec.settings import Base
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan, write_proof


def machine(*names: str) -> dict[str, Any]:
    return {"identity": {"gpus": list(names)}}


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "full", 66.9),
        ("NVIDIA H100 PCIe", "fp16", 756.0),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312.0),
        ("NVIDIA A100 80GB PCIe", "full", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA L40S", "bf16", 362.0),
        ("NVIDIA L40", "bf16", 181.0),
        ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA GeForce RTX 4090", "full", 82.6),
    ],
)
def test_a_known_gpu_has_its_data_sheets_peak(name: str, precision: str, tera: float) -> None:
    case = case_of(device="cuda", precision=precision)
    assert peak_of(case, machine(name, name)) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("NVIDIA A10G",),
        ("Tesla T4", "NVIDIA L4"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb",),
        ("NVIDIA H1000",),
    ],
)
def test_what_is_not_known_or_not_alike_has_none(names: tuple[str, ...]) -> None:
    assert peak_of(case_of(device="cuda", precision="fp16"), machine(*names)) is None


def test_a_model_in_bfloat16_computes_as_autocast_does() -> None:
    own = case_of(device="cuda", dtype="bfloat16")
    assert peak_of(own, machine("NVIDIA H100 80GB HBM3")) == pytest.approx(989.4e12)
    types = set(get_args(Base.model_fields["dtype"].annotation)) - {"default"}
    every = [case_of(dtype=dtype) for dtype in types]
    assert {computes_in(case) for case in every} == {"bf16", "float32", "float64"}


def test_gpus_of_several_nodes_are_taken_together() -> None:
    case = case_of(device="cuda", precision="fp16")
    same = {"identity": {"gpus": {"a": ["Tesla T4"], "b": ["Tesla T4"]}}}
    assert peak_of(case, same) == 65e12
    assert peak_of(case, {"identity": {"gpus": {"a": ["Tesla T4"], "b": ["NVIDIA L4"]}}}) is None


def test_a_format_the_gpu_lacks_and_a_cpu_have_none() -> None:
    assert peak_of(case_of(device="cuda", precision="bf16"), machine("Tesla T4")) is None
    assert peak_of(case_of(precision="bf16"), machine("Tesla T4")) is None  # the case is on the CPU


def test_every_peak_says_where_it_is_from_and_matches_no_other() -> None:
    import re

    assert all(peak.source for peak in PEAKS)
    plain = ["NVIDIA H200", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "Tesla V100S-PCIE-32GB", "NVIDIA A30"]
    for name in plain:
        assert sum(bool(re.fullmatch(peak.name, name)) for peak in PEAKS) == 1, name


def test_mfu_is_the_rate_of_operations_over_the_peak_of_all_gpus() -> None:
    # 6 GFLOP per sample x 20,800 samples/s = 124.8 TFLOP/s on 2 GPUs of 312: a fifth
    case = case_of("ddp", 2, device="cuda", precision="bf16")
    assert mfu(case, 6e9, 20_800, 312e12) == pytest.approx(0.2)
    assert mfu(case, None, 20_800, 312e12) is None
    assert mfu(case, 6e9, 20_800, None) is None


def test_the_table_has_parameters_and_mfu(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    case = case_of("ddp", 2, device="cuda", backend="nccl", precision="fp16", local_batch=8)
    write_plan(run, [case], Budget(rounds_min=1, rounds_max=1))
    write_proof(run, case, flops_per_sample=1.3e10)
    write_launch(run, case, 0, [RankLaunch(blocks=((10 * MS,) * 10,))] * 2)
    found = json.loads(run.machine.read_text(encoding="utf-8"))
    found["identity"]["gpus"] = ["Tesla T4", "Tesla T4"]
    run.machine.write_text(json.dumps(found), encoding="utf-8")
    row = load(run).iloc[0]
    assert row["parameters"] == 3_500_000 // 4
    assert row["samples_per_s"] == pytest.approx(1600)  # 16 samples in 10 ms
    assert row["mfu"] == pytest.approx(1.3e10 * 1600 / (2 * 65e12))  # 0.16
