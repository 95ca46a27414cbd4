"""A backend that does not report when a transfer ends, such as gloo on GPUs: step times, and empty columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ddpbench
from ddpbench.errors import MachineError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import check_devices
from ddpbench.spec import Devices, expand, parse_experiment
from tests.failures.conftest import run_cli, workload

pytestmark = pytest.mark.multiprocess

EMPTY = (
    "comm_time_s",
    "exposed_comm_s",
    "wait_time_s",
    "overlap_fraction",
    "forward_time_s",
    "backward_time_s",
)


def test_what_cannot_be_timed_is_empty_and_steps_are_timed(
    write_experiment: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = run_cli("sweep", write_experiment([workload("UntimedTransfers")], rounds=1), "--out", run)
    assert result.returncode == 0, result
    frame = ddpbench.load(run).set_index("strategy")
    ddp, single = frame.loc["ddp"], frame.loc["single"]
    assert ddp["status"] == "ok"
    assert ddp["step_time_s"] > 0
    assert ddp["actual_bucket_bytes"]
    assert all(ddp.isna()[name] for name in EMPTY), ddp[list(EMPTY)]
    assert single["forward_time_s"] > 0  # it sends nothing


def cases_of(text: str) -> dict[tuple[str, str], str | None]:
    catalog = TableCatalog()
    experiment = parse_experiment(text, catalog, name="gpus", source="gpus")
    return {
        (entry.case.strategy, entry.case.backend): entry.skip_reason
        for entry in expand(experiment, catalog, Devices(kind="cuda", gpus=4, cores=8))
    }


def test_gloo_runs_beside_nccl_on_gpus() -> None:
    found = cases_of(
        """
        [base]
        workload = "mlp:small"
        device = "cuda"
        world_size = 2
        [axes]
        strategy = ["ddp", "master", "pipeline"]
        backend = ["gloo", "nccl"]
        """
    )
    assert found["ddp", "gloo"] is None
    assert found["ddp", "nccl"] is None
    assert found["master", "gloo"] is None
    assert found["pipeline", "nccl"] is None
    assert "gloo sends no GPU memory from one rank to another" in str(found["pipeline", "gloo"])


def test_a_build_without_ucc_is_said() -> None:
    text = '[base]\nworkload = "mlp:small"\nstrategy = "ddp"\nworld_size = 2\nbackend = "ucc"\n'
    experiment = parse_experiment(text, TableCatalog(), name="ucc", source="ucc")
    with pytest.raises(MachineError, match='backend = "ucc": this build of torch has no UCC'):
        check_devices(experiment, Devices(kind="cpu", gpus=0, cores=2))
