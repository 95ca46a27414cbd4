"""Strategies that cut a model: a case without a piece for a rank, or with too many, is skipped in the plan."""

from __future__ import annotations

import json

import pytest

from ddpbench.cli import run
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Devices, PlannedCase, expand, parse_experiment

DEVICES = Devices(kind="cpu", gpus=0, cores=8)


def planned(text: str) -> list[PlannedCase]:
    catalog = TableCatalog()
    cases = expand(parse_experiment(text, catalog, name="pieces"), catalog, DEVICES)
    return [entry for entry in cases if not entry.added_as_baseline]


def reason(base: str, options: str = "") -> str | None:
    (entry,) = planned(f"[base]\n{base}\n{options}")
    return entry.skip_reason


@pytest.mark.parametrize(
    ("workload", "world_size", "expected"),
    [
        ("mlp:small", 4, None),
        (
            "mlp:small",
            8,
            "mlp:small has 4 layers to cut at, too few for 8 stages: use a world size of 4 or less",
        ),
        ("gpt:nano", 5, None),
        (
            "gpt:nano",
            6,
            "gpt:nano has 5 layers to cut at, too few for 6 stages: use a world size of 5 or less",
        ),
        ("hf:bert-tiny", 2, "hf:bert-tiny cannot be cut into stages: use mlp or gpt or cnn or resnet"),
        ("replay:resnet50-v100", 2, "a replay has no layers to cut"),
        ("train.py:Mine", 2, "train.py:Mine cannot be cut into stages"),
    ],
)
def test_a_pipeline_needs_a_layer_for_each_stage(
    workload: str, world_size: int, expected: str | None
) -> None:
    found = reason(f'strategy = "pipeline"\nworkload = "{workload}"\nworld_size = {world_size}')
    assert found is None if expected is None else (found or "").startswith(expected), found


@pytest.mark.parametrize(
    ("workload", "world_size", "expected"),
    [
        ("two_branch:small", 2, None),
        (
            "two_branch:small",
            1,
            "two_branch:small has 2 branches, and each needs one rank: set world_size = 2",
        ),
        (
            "two_branch:small",
            4,
            "two_branch:small has 2 branches, and each needs one rank: set world_size = 2",
        ),
        ("mlp:small", 2, "mlp:small cannot be cut into branches: use two_branch"),
    ],
)
def test_branches_need_a_rank_each(workload: str, world_size: int, expected: str | None) -> None:
    assert reason(f'strategy = "branches"\nworkload = "{workload}"\nworld_size = {world_size}') == expected


@pytest.mark.parametrize(
    ("base", "options", "expected"),
    [
        ("world_size = 2\nlocal_batch = 8", "microbatches = 16", None),
        (
            "world_size = 2\nlocal_batch = 8",
            "microbatches = 3",
            "microbatches = 3 does not divide a global batch",
        ),
        (
            "world_size = 4\nlocal_batch = 8",
            'microbatches = 2\norder = "1f1b"',
            "set microbatches = 4 or more",
        ),
        ("world_size = 4\nlocal_batch = 8", "microbatches = 2", None),
        ("world_size = 1\nlocal_batch = 8", 'microbatches = 1\norder = "1f1b"', None),
        ('world_size = 2\nprecision = "bf16"', "", 'set precision = "full"'),
        ("world_size = 4\nlocal_batch = 8", "microbatches = 4\nreplicas = 2", None),
        (
            "world_size = 4\nlocal_batch = 8",
            "microbatches = 32\nreplicas = 2",
            "microbatches = 32 does not divide a pipeline's share of 16",
        ),
        (
            "world_size = 4\nlocal_batch = 8",
            'microbatches = 2\norder = "1f1b"\nreplicas = 2',
            None,
        ),
        (
            "world_size = 4",
            "replicas = 3",
            "replicas = 3 does not divide 4 ranks evenly: set a number that does",
        ),
        (
            "world_size = 1",
            "replicas = 2",
            "replicas = 2 does not divide 1 rank evenly: set a number that does",
        ),
        (
            "world_size = 4",
            "replicas = 4",
            "4 replicas of one rank each are plain data parallelism, with nothing to divide within them: use ddp",
        ),
        (
            "world_size = 12",
            "replicas = 2",
            "gpt:nano has 5 layers to cut at, too few for 6 stages: use a world size of 10 or less",
        ),
        ("world_size = 10", "replicas = 2", None),
        ('world_size = 4\nscaling = "strong"\nglobal_batch = 16', "replicas = 2", None),
    ],
)
def test_a_pipeline_says_why_its_options_do_not_fit(base: str, options: str, expected: str | None) -> None:
    found = reason(f'strategy = "pipeline"\nworkload = "gpt:nano"\n{base}', f"[options.pipeline]\n{options}")
    assert found is None if expected is None else expected in (found or ""), found


def test_a_dry_run_says_what_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["base.workload=mlp:small", 'axes.strategy=["pipeline"]', "axes.world_size=[2,8]"]
    arguments = [part for text in sets for part in ("--set", text)]
    assert run(["sweep", "quick", "--dry-run", "--json", *arguments]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert "mlp:small has 4 layers to cut at, too few for 8 stages" in json.dumps(plan)


def test_a_batch_that_a_servers_workers_cannot_share_skips_that_case_alone() -> None:
    served = 'scaling = "strong"\nglobal_batch = 8\nworld_size = 4\nworkload = "mlp:small"'
    found = reason(f'strategy = "async_server"\n{served}')
    assert found is not None
    assert "set global_batch to a multiple of 3" in found
    assert reason(f'strategy = "ddp"\n{served}') is None
