"""The ranks of `framework_loops.py` as workers of Ray Train: both sides train in the same workers, in turn."""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
from typing import Any

QUIET = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # only the loopback address
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


def train(config: dict[str, Any]) -> None:
    """Run a worker."""
    import ray.train

    from tests.benchmarks.framework_loops import measure

    context = ray.train.get_context()
    measure(config["asked"], context.get_world_rank(), context.get_world_size())


def start(asked: argparse.Namespace) -> None:
    """Start Ray, and workers that measure."""
    os.environ |= {**QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    asked.out = asked.out.absolute()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=asked.world_size,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            TorchTrainer(
                train,
                train_loop_config={"asked": asked},
                scaling_config=ScalingConfig(num_workers=asked.world_size),
                run_config=RunConfig(storage_path=f"{folder}/results"),
            ).fit()
        finally:
            ray.shutdown()
