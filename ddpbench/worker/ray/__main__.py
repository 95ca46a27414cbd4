"""Run a launch's N ranks by Ray Train's TorchTrainer: `python -m ddpbench.worker.ray N RUN_DIR CASE_ID ROUND`.

Each launch starts its own Ray on this machine. The guard, its parent, ends Ray's servers and their children with it.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from ddpbench.guard import Traces, guarded
from ddpbench.records import LaunchDir, RunDir
from ddpbench.records.files import open_to_append
from ddpbench.removal import TemporaryFolder
from ddpbench.runtime.launched import RANKS_VARIABLE
from ddpbench.spec import Case
from ddpbench.worker.starting import asked, table_of

_OBJECTS_BYTES = 80 << 20
"""Memory for objects that Ray's processes share, in bytes. Ray requires 75 MiB, and ranks share no objects."""
_NEVER_S = 24 * 3600
"""Timeout of the process group in seconds, long because ddpbench's watchdog ends launches that hang."""
_SETTINGS = {
    # The default on systems other than Linux, with which Ray listens on the loopback address only.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # A rank's output goes into its own log, as under any launcher, and its working directory is the sweep's.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # A busy machine may need longer than Ray's default of a minute; the watchdog ends a launch that hangs.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
}
"""Environment variables for Ray. Variables that are already set keep their values."""


def main() -> None:
    """Start Ray and the ranks, and end when the ranks have ended."""
    count, *words = sys.argv[1:]
    guarded(None, os.getppid(), Path(words[0]), partial(_launch, int(count), words))


def _launch(count: int, words: list[str], _: Traces) -> int:
    directory, request = asked(RunDir(Path(words[0])), words[1], words[2])
    table = table_of(os.environ.get(RANKS_VARIABLE, ""))
    made = None if table else TemporaryFolder("ddpb-ray-", "/tmp")
    folder = made.path if made else Path(table["folder"] if table else "")
    own = folder / "t"  # the ranks' temporary files are removed with the folder
    own.mkdir()
    os.environ["DDPBENCH_SOCKETS"] = str(own)
    os.environ.setdefault("TMPDIR", str(own))
    try:
        _fit(count, words, request.case, folder)
    except Exception:
        _explain(directory, traceback.format_exc())
        return 1
    finally:
        if made is not None:
            made.remove()
    return 0


def _fit(count: int, words: list[str], case: Case, folder: Path) -> None:
    """Start Ray, and run the ranks as the workers of a TorchTrainer.

    Raises:
        Exception: Ray cannot be started, or a rank has failed.
    """
    for name, value in {**_SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        os.environ.setdefault(name, value)  # before the import of ray, which reads some of them
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from ddpbench.worker.ray.loop import train

    gpus = case.world_size if case.device == "cuda" else 0
    ray.init(
        address="local",  # a new Ray, even if another one runs on this machine
        num_cpus=count,
        num_gpus=gpus,
        include_dashboard=False,
        object_store_memory=_OBJECTS_BYTES,
        log_to_driver=False,
        logging_level=logging.WARNING,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(
            folder / "r"
        ),  # in the private `folder`, since Ray makes it readable to all; short for sockets
    )
    behind = shlex.join([sys.executable, "-P", "-m", "ddpbench.worker.ray.behind"])
    # A dictionary, because the RunConfig that Ray declares is not the one that it uses.
    of_run: dict[str, Any] = {
        "storage_path": str(folder / "results"),
        "worker_runtime_env": {"py_executable": behind},
    }
    TorchTrainer(
        train,
        train_loop_config={"words": words},
        scaling_config=ScalingConfig(
            num_workers=count,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": 1, **({"GPU": gpus // count} if gpus else {})},
        ),
        torch_config=TorchConfig(backend=case.backend or "gloo", timeout_s=_NEVER_S),
        run_config=RunConfig(**of_run),
    ).fit()
    # No ray.shutdown(): the guard ends Ray's processes at once, and their folder is removed.


def _explain(directory: LaunchDir, text: str) -> None:
    sys.stderr.write(text)
    if not directory.log(0).exists():
        with open_to_append(directory.log(0)) as log:
            log.write(text.encode(errors="backslashreplace"))


if __name__ == "__main__":
    main()
