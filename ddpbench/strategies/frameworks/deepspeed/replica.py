"""A rank's replica in DeepSpeed's engine, whose collectives can be recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ddpbench.measure.recorder import Recorder
from ddpbench.strategies.base import Job, Replica, local_bytes, state_bytes
from ddpbench.strategies.frameworks.deepspeed import DeepSpeedOptions
from ddpbench.strategies.frameworks.process_state import unchanged
from ddpbench.strategies.trees import chunk

COMPILED_OPS = {"deepspeed_shm_comm": False}
"""Replacement for DeepSpeed's table of operations that this machine can compile. It says that none can be compiled."""


def settings_of(job: Job, options: DeepSpeedOptions) -> dict[str, Any]:
    """Return DeepSpeed's configuration for the options and the case. All other features are turned off."""
    zero: dict[str, Any] = {"stage": options.zero_stage}
    if options.zero_stage:
        zero |= {
            "reduce_bucket_size": options.reduce_bucket_size,
            "overlap_comm": options.overlap_comm,
            "contiguous_gradients": options.contiguous_gradients,
        }
    return {
        "train_micro_batch_size_per_gpu": max(1, job.case.local_batch // options.accumulate),
        "gradient_accumulation_steps": options.accumulate,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # the workload's optimizer may be of any class
        "gradient_clipping": 0.0,
        "steps_per_print": sys.maxsize,
        "timers": {"throughput": {"enabled": False}},
    }


class DeepSpeedReplica(Replica):
    """A model in DeepSpeed's engine.

    Under stages 1 and 2, the model's parameters become slices of a flat tensor. They stay slices after `close`.
    """

    def __init__(self, job: Job, options: DeepSpeedOptions) -> None:
        super().__init__(job)
        self._parts, self._shares = options.accumulate, options.zero_stage > 0
        self._left = {parameter: set(vars(parameter)) for parameter in job.model.parameters()}
        """Names of the attributes that each parameter had before DeepSpeed added its own."""
        with unchanged():
            self._engine = _initialized(job, self.optimizer, settings_of(job, options))
        self._noted: NotedCollectives | None = None
        if job.recorder.active and job.device.type == "cpu":
            from deepspeed.comm import comm

            self._noted = NotedCollectives(job.recorder, comm.cdb)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        if self._noted is not None:
            self._noted.start_step()
        parts = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        total: torch.Tensor | None = None
        for number, part in enumerate(parts, start=1):
            loss = self._backward(*part)
            total = loss if total is None else total + loss
            if number < self._parts:
                self._engine.step()  # counts the parts, and updates only after the last one
        assert total is not None
        return total / self._parts if self._parts > 1 else total

    def apply(self) -> None:
        self._engine.step()

    def own_gradients(self) -> dict[str, torch.Tensor]:
        """Return the complete aggregated gradients by name. Under stages 1 and 2, all ranks call this together."""
        if not self._shares:
            return super().own_gradients()
        return {name: each.get_full_hp_grad() for name, each in self._trained()}

    def gradients(self) -> list[torch.Tensor]:
        return list(self.own_gradients().values())

    def unused(self) -> set[str]:
        """Return an empty set, because DeepSpeed treats a missing gradient as zeros."""
        return set()

    def held_bytes(self) -> tuple[int, int, int]:
        """Return the sizes of parameters, gradients and optimizer state on this rank (bytes).

        Under stages 1 and 2, the optimizer state includes a copy of the part of the weights that this rank updates.
        """
        parameters = local_bytes(self.job.model.parameters())
        state = state_bytes(self.optimizer)
        gradients = [each.grad for _, each in self._trained() if each.grad is not None]
        if self._shares:
            state += local_bytes(each for group in self.optimizer.param_groups for each in group["params"])
            known = {each.untyped_storage().data_ptr() for each in gradients}
            shares = [part for parts in self._engine.optimizer.averaged_gradients.values() for part in parts]
            gradients += [part for part in shares if part.untyped_storage().data_ptr() not in known]
        return parameters, local_bytes(gradients), state

    def close(self) -> None:
        if self._noted is not None:
            self._noted.close()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.destroy()
        for hook in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
            hook.remove()
        for parameter, had in self._left.items():
            parameter.grad = None
            for name in set(vars(parameter)) - had:
                delattr(parameter, name)

    def _backward(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        with recorder.span("forward"):
            loss = self.job.loss(self._engine(inputs), targets)
        with recorder.span("backward"):
            self._engine.backward(loss)
        return loss.detach()

    def _trained(self) -> Iterator[tuple[str, Any]]:
        return ((name, each) for name, each in self.job.model.named_parameters() if each.requires_grad)


def _initialized(job: Job, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> Any:
    os.environ["DS_ACCELERATOR"] = (
        job.device.type
    )  # otherwise DeepSpeed looks for a device, and prints a message
    import logging

    import deepspeed
    from deepspeed.accelerator import get_accelerator, set_accelerator

    if (
        get_accelerator().device_name() != job.device.type == "cpu"
    ):  # DeepSpeed was imported before this case was known
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        set_accelerator(CPU_Accelerator())
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__ = COMPILED_OPS
    engine, *_ = deepspeed.initialize(model=job.model, optimizer=optimizer, config=settings)
    return engine


class NotedCollectives:
    """Records each of DeepSpeed's collectives, until `close`, as a transfer for which the rank waits."""

    def __init__(self, recorder: Recorder, backend: Any) -> None:
        """Make the collectives of `backend`, this process's DeepSpeed backend, record their transfers."""
        self._recorder, self._backend = recorder, backend
        self._number = 0
        for name, (op, whole) in _COLLECTIVES.items():
            setattr(backend, name, self._noting(op, whole, getattr(backend, name)))

    def start_step(self) -> None:
        """Begin a step, whose transfers are numbered from 0."""
        self._number = 0

    def close(self) -> None:
        """Restore DeepSpeed's own collectives."""
        for name in _COLLECTIVES:
            vars(self._backend).pop(name, None)

    def _noting(self, op: str, whole: str, call: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def noting(*arguments: Any, **settings: Any) -> Any:
            tensor: torch.Tensor = settings[whole] if whole in settings else arguments[0]
            start = recorder.mark()
            work = call(*arguments, **settings)
            end = recorder.mark()
            number, self._number = self._number, self._number + 1
            size = tensor.numel() * tensor.element_size()
            root = settings.get("dst", settings.get("src"))
            recorder.add_transfer(bucket=number, op=op, size=size, start=start, end=end, root=root)
            recorder.add_span("synchronize", start, end)
            return work

        return noting


_COLLECTIVES = {
    "all_reduce": ("all_reduce", "tensor"),
    "reduce": ("reduce", "tensor"),
    "broadcast": ("broadcast", "tensor"),
    "all_gather_into_tensor": ("all_gather", "output_tensor"),
}
"""The collectives that stages 0 to 2 call, by DeepSpeed's name. Values are the operation's name in records, and the
argument with the full tensor."""
