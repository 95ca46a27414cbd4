"""Epochs of the worked example's own loop and blocks of the harness in turn, in one process.

    python tests/benchmarks/own_script.py --out FILE

The loop is `train_epoch` of experiments/own_script/train_before.py, unchanged, with its own DataLoader; the harness
trains the same class through `train_after.py:Measured`. Each trains its own model, of the same size and from the same
seed. Writes the pairs of times of equal numbers of steps as JSON; the side that goes first alternates.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import time
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.utils.data import DataLoader

from ddpbench.measure.blocks import AloneControl, Stepper, run_block
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.training import StepLoop, Training
from tests.benchmarks.pairing import add_arguments, in_turn, pin, write

EXAMPLE = Path(__file__).parents[2] / "experiments/own_script"
BATCH = 128


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=32, help="of one block and of one epoch")
    add_arguments(parser)
    arguments = parser.parse_args()
    steps = arguments.steps

    pin(0)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    torch.set_num_threads(1)

    script = imported(EXAMPLE / "train_before.py")
    torch.manual_seed(0)
    model = script.Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = script.Ratings(count=steps * BATCH)  # a pass is as long as a block, on either side
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)

    def own_epoch(_: int) -> float:
        start = time.perf_counter()
        script.train_epoch(model, loader, optimizer, nn.MSELoss())
        return time.perf_counter() - start

    case = Case(
        workload=f"{EXAMPLE / 'train_after.py'}:Measured",
        strategy="single",
        backend="",
        local_batch=BATCH,
        global_batch=BATCH,
    )
    place = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    training = Training(case, place, torch.device("cpu"))
    training.loader = training._made_loader(data, 0, 1)
    replica = training.replica(training.fresh_model(), NullRecorder(), distributed=False)
    loop = StepLoop(replica, training.batches(), NullRecorder(), Heartbeat(bytearray(PAGE_BYTES), 0))
    stepper = Stepper(loop.step, BATCH, HostClock(), AloneControl())

    def harness_block(steps: int) -> float:
        # A step leads in and is not counted, so blocks shift over the passes: each contains one start.
        block = run_block(stepper, steps, 0, "timed")
        return (block.end_ns - block.start_ns) / 1e9

    own_epoch(steps)
    harness_block(steps - 1)  # with the uncounted step it is a full pass
    gc.freeze()  # as in a rank of a sweep: a collection does not walk all of torch
    write(in_turn(harness_block, own_epoch, steps, AloneControl(), arguments), arguments.out, steps=steps)


if __name__ == "__main__":
    main()
