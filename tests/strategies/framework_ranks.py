"""Functions for ranks in the tests of frameworks over DDP: proofs, planted faults, and state left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddpbench.measure.recorder import NullRecorder
from ddpbench.spec import Case
from ddpbench.strategies import Job, load_strategy
from ddpbench.worker.training.precision import entered_autocasts, precision_of
from tests.strategies.training import LOCAL_BATCH, build, make_model, make_optimizer, shard


def proofs(
    rank: int,
    processes: int,
    strategy: str,
    options: dict[str, Any],
    workload: str,
    wrong: str,
    precision: Any,
) -> dict[str, tuple[bool, list[str]]]:
    """Return what a case's proof compares: whether it passed in every type, and the types."""
    from ddpbench.records import Proof
    from ddpbench.worker.place import JobPlace
    from ddpbench.worker.training.control import GroupControl
    from ddpbench.worker.training.training import Training
    from ddpbench.worker.verify.proof import Prover

    plant(wrong)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)}
    chosen = load_strategy(strategy).options.model_validate(options)
    case = Case(
        workload=workload,
        strategy=strategy,
        algorithm="all_reduce",
        schedule="overlapped",
        options_json=json.dumps(chosen.model_dump(mode="json")),
        world_size=processes,
        bucket_cap_mb="default",
        local_batch=4,
        global_batch=4 * processes,
        precision=precision,
        compute="replayed" if workload.startswith("replay:") else "real",
    )
    place = JobPlace(
        rank=rank, processes=processes, local_rank=rank, attempt=0, cores=(), loader_cores=(), host="here"
    )
    training = Training(case, place, torch.device("cpu"))
    control = GroupControl(torch.distributed.new_group(), rank)
    found: dict[str, tuple[bool, list[str]]] = {}
    for record in Prover(training, control, lambda: None).run():
        if isinstance(record, Proof):
            passed, types = found.get(record.compared, (True, []))
            found[record.compared] = (passed and record.passed, [*types, record.dtype])
    return found


def plant(wrong: str) -> None:
    """Make a framework do in this process what it must not."""
    from ddpbench.strategies.frameworks.accelerate.replica import AccelerateReplica
    from ddpbench.strategies.frameworks.lightning import trainer_replica
    from ddpbench.strategies.frameworks.lightning.trainer_replica import TrainerReplica

    if wrong == "clips":
        made = TrainerReplica._make_trainer

        def clips(self: Any, *arguments: Any) -> Any:
            trainer = made(self, *arguments)
            trainer.gradient_clip_val = 1e-3
            return trainer

        TrainerReplica._make_trainer = clips  # type: ignore[method-assign]
    elif wrong == "schedules":
        module_of = trainer_replica._module_of

        def schedules(lightning: Any, replica: TrainerReplica) -> Any:
            module = module_of(lightning, replica)
            schedule = torch.optim.lr_scheduler.ExponentialLR(replica.optimizer, 0.5)
            of_steps = {"scheduler": schedule, "interval": "step"}
            module.configure_optimizers = lambda: ([replica.optimizer], [of_steps])
            return module

        trainer_replica._module_of = schedules
    elif wrong == "drops a sample":
        batches = trainer_replica._Batches.__iter__

        def drops(self: Any) -> Any:
            return ((inputs[:-1], targets[:-1]) for inputs, targets in batches(self))

        trainer_replica._Batches.__iter__ = drops  # type: ignore[method-assign]
    elif wrong == "hooks stay":
        # A hook of the optimizer's step, which under the Trainer contains forward and backward.
        init = TrainerReplica.__init__

        def stays(self: Any, *arguments: Any) -> None:
            init(self, *arguments)
            self.optimizer._optimizer_step_pre_hooks.update(self._before_update)
            self._before_update = {}

        TrainerReplica.__init__ = stays  # type: ignore[method-assign]
    elif wrong == "shards again":
        right = AccelerateReplica.gradients_of

        def again(self: Any, inputs: Any, targets: Any) -> Any:
            rank, ranks = self._accelerator.process_index, self._accelerator.num_processes
            return right(self, inputs[rank::ranks], targets[rank::ranks])

        AccelerateReplica.gradients_of = again  # type: ignore[method-assign]
    elif wrong == "is a batch behind":
        newest = AccelerateReplica.gradients_of

        def behind(self: Any, *batch: Any) -> Any:
            before = vars(self).get("before", batch)
            self.before = batch  # type: ignore[attr-defined]
            return newest(self, *before)

        AccelerateReplica.gradients_of = behind  # type: ignore[method-assign]
    elif wrong == "does not wrap":
        from accelerate import Accelerator

        Accelerator.prepare_model = lambda self, model, **_: model
    elif wrong == "nothing is put back":
        from ddpbench.strategies.frameworks.process_state import ProcessState

        ProcessState.restore = lambda self: None  # type: ignore[method-assign]
    else:
        assert not wrong


def left_behind(
    rank: int, processes: int, strategy: str, options: dict[str, Any], folder: str, wrong: str
) -> dict[str, tuple[Any, Any]]:
    """Return state of the process that differs during and after training, and the files that were made.

    The framework is made to draw a random number in its setup.
    """
    plant(wrong)
    _draw_when_set_up()
    os.chdir(folder)
    os.environ.pop("OMP_NUM_THREADS", None)  # without it frameworks choose a number
    before = _process()
    model = make_model()
    forward = vars(model).get("forward")
    found = {}
    torch.manual_seed(5)
    drawn = torch.rand(1).item()
    torch.manual_seed(5)
    replica = build(strategy, model, rank=rank, world_size=processes, options=options)
    found["random numbers, made"] = (drawn, torch.rand(1).item())
    for step in range(3):
        torch.manual_seed(5)
        replica.gradients_of(*shard(rank, step))
        found[f"random numbers, step {step}"] = (drawn, torch.rand(1).item())
        replica.apply()
    found |= {f"{name}, training": (value, _process()[name]) for name, value in before.items()}
    replica.close()
    found |= {f"{name}, closed": (value, _process()[name]) for name, value in before.items()}
    found["forward"] = (forward, vars(model).get("forward"))
    found["files"] = ([], [str(path) for path in Path(folder).rglob("*")])
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _draw_when_set_up() -> None:
    """Draw a random number when a model is wrapped in DDP, as a framework might."""
    init = nn.parallel.DistributedDataParallel.__init__

    def draws(self: Any, *arguments: Any, **named: Any) -> None:
        torch.rand(1)
        init(self, *arguments, **named)

    nn.parallel.DistributedDataParallel.__init__ = draws  # type: ignore[method-assign]


def _process() -> dict[str, Any]:
    handlers = {number: str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)}
    return {
        "environment": dict(os.environ),
        "threads": torch.get_num_threads(),
        "handlers": handlers,
        "group": torch.distributed.is_initialized(),
    }


def autocasts(rank: int, processes: int, strategy: str, options: dict[str, Any]) -> dict[str, list[str]]:
    """Return the autocasts entered in a step of a model under the harness's bf16, and in one in full precision."""
    found = {}
    for name in ("bf16", "full"):
        precision = precision_of(name, torch.device("cpu"))
        chosen = load_strategy(strategy)
        job = Job(
            case=Case(
                workload="tests",
                strategy=strategy,
                algorithm="all_reduce",
                world_size=processes,
                local_batch=LOCAL_BATCH,
                bucket_cap_mb="default",
                precision=precision.name,  # type: ignore[arg-type]
            ),
            model=precision.wrap(make_model(torch.float32)),
            loss=lambda outputs, targets: nn.functional.cross_entropy(outputs.float(), targets),
            make_optimizer=make_optimizer,
            device=torch.device("cpu"),
            rank=rank,
            local_rank=rank,
            world_size=processes,
            distributed=True,
            recorder=NullRecorder(),
        )
        replica = chosen.build(job, chosen.options(**options))
        with entered_autocasts() as seen:
            replica.gradients_of(*shard(rank, 0, torch.float32))
            replica.apply()
        found[name] = [str(dtype) for dtype in seen]
        replica.close()
    return found
