"""A training loop as Ray Train's documentation teaches it: no harness, a clock around the steps.

    python tests/benchmarks/framework_loops_ray.py --ranks 2 --workload gpt:nano --out FILE

The model is `prepare_model`'s. Batches are a DistributedSampler's, as in `bare_loop.py`: `prepare_data_loader` would
leave such a loader's sampler as it is. Writes a JSON object with rank 0's step time and the seconds it spent in warm-up
and measured steps.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

QUIET = {
    "OMP_NUM_THREADS": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the loopback address, and no other
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


def train(asked: dict[str, Any]) -> None:
    import ray.train
    import ray.train.torch
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    from ddpbench.workloads import load_workload

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    cores = sorted(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)

    workload = load_workload(asked["workload"])
    options = workload.options()
    model = workload.model(options)
    optimizer = workload.optimizer(model.parameters(), options)
    model = ray.train.torch.prepare_model(model)
    dataset = workload.dataset(options)
    sampler: Any = DistributedSampler(dataset, num_replicas=world, rank=rank, drop_last=True)
    loader: Any = DataLoader(dataset, batch_size=asked["local_batch"], sampler=sampler, drop_last=True)

    began = time.perf_counter()
    epoch, step, steps, start = 0, 0, None, 0.0
    while steps is None or step < asked["warmup"] + steps:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = workload.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step == asked["warmup"]:
                # As many steps as fill the time asked for, the same on all ranks.
                wanted = torch.tensor([asked["seconds"] * step / (time.perf_counter() - began)])
                dist.broadcast(wanted, 0)
                steps = max(10, int(wanted.item()))
                dist.barrier()
                start = time.perf_counter()
            if steps is not None and step == asked["warmup"] + steps:
                break
        epoch += 1
    end = time.perf_counter()
    if rank == 0:
        assert steps is not None
        result = {"step_s": (end - start) / steps, "steps": steps, "measured_s": end - began}
        Path(asked["out"]).write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()


def ray_train_steps(
    workload: str, ranks: int, out: Path, *, local_batch: int = 4, warmup: int = 40, seconds: float = 1.0
) -> dict[str, float]:
    """Return the step time of so many ranks, s, in a process that has not started Ray; `out` is written too."""
    os.environ |= {**QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    asked = {
        "workload": workload,
        "local_batch": local_batch,
        "warmup": warmup,
        "seconds": seconds,
        "out": str(out.absolute()),
    }
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=ranks,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            TorchTrainer(
                train,
                train_loop_config=asked,
                scaling_config=ScalingConfig(num_workers=ranks),
                run_config=RunConfig(storage_path=f"{folder}/results"),
            ).fit()
        finally:
            ray.shutdown()
    found: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--local-batch", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    ray_train_steps(
        given.workload,
        given.ranks,
        given.out,
        local_batch=given.local_batch,
        warmup=given.warmup,
        seconds=given.seconds,
    )


if __name__ == "__main__":
    main()
