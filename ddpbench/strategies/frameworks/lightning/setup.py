"""Arguments that make Lightning's Trainer and Fabric use the existing ranks and process group."""

from __future__ import annotations

import logging
from typing import Any

from ddpbench.strategies.base import Job
from ddpbench.strategies.frameworks.imports import imported


def environment_of(job: Job) -> Any:
    """Return a Lightning ClusterEnvironment for ranks that ddpbench has started.

    It describes each rank as a node with one device, so that Lightning does not reorder ranks or assign devices.
    """
    environments: Any = imported("lightning", "lightning.fabric.plugins.environments")

    class RanksThatAreThere(environments.ClusterEnvironment):  # type: ignore[misc]
        creates_processes_externally = True
        main_address = ""
        main_port = 0

        @staticmethod
        def detect() -> bool:
            return False

        def world_size(self) -> int:
            return job.world_size

        def set_world_size(self, size: int) -> None:
            assert size == job.world_size

        def global_rank(self) -> int:
            return job.rank

        def set_global_rank(self, rank: int) -> None:
            assert rank == job.rank

        def local_rank(self) -> int:
            return 0

        def node_rank(self) -> int:
            return job.rank

    return RanksThatAreThere()


def arguments_of(job: Job, strategy: Any, *, autocast: bool) -> dict[str, Any]:
    """Return the arguments that are common to Trainer and Fabric. `strategy` is the DDPStrategy of either.

    Also turn off Lightning's messages that are less severe than warnings, for example about devices, modes and tips.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return {
        "accelerator": job.device.type,
        "devices": 1,
        "num_nodes": job.world_size,
        "strategy": strategy,
        "precision": "bf16-mixed" if autocast else "32-true",
    }
