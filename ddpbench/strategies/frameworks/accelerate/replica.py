"""A rank's replica whose model and optimizer Hugging Face's `Accelerator` prepares."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from ddpbench.strategies.base import Job
from ddpbench.strategies.frameworks.ddp_replica import DdpInsideReplica
from ddpbench.strategies.frameworks.imports import imported
from ddpbench.strategies.frameworks.over_ddp import OverDdpOptions, ddp_arguments
from ddpbench.strategies.frameworks.process_state import unchanged
from ddpbench.strategies.trees import chunk

_LEFT_ON_A_MODEL = ("forward", "_original_forward", "_is_accelerate_prepared")
"""Attributes that Accelerate leaves on a model, namely a forward with autocast and a mark for prepared models.

Accelerate's `unwrap_model` would remove them, but imports all of DeepSpeed if it is installed.
"""


class AccelerateReplica(DdpInsideReplica):
    """The training loop in Accelerate's documentation, divided into `gradients_of` and `apply`."""

    def __init__(self, job: Job, options: OverDdpOptions) -> None:
        super().__init__(job)
        self._parts = options.accumulate
        self._before = {name: own for name, own in vars(self.bare).items() if name in _LEFT_ON_A_MODEL}
        with unchanged():
            self._accelerator = self._make_accelerator(options)
            self._prepared, self._prepared_optimizer = self._accelerator.prepare(self.bare, self.optimizer)
        self.watch(self._prepared, rebuilds=options.static_graph or not options.find_unused_parameters)

    def _make_accelerator(self, options: OverDdpOptions) -> Any:
        """Return an Accelerator on the existing process group.

        Its state is global to the process and is reset, because an earlier one may have had another precision.
        """
        job = self.job
        accelerate, state = imported("accelerate", "accelerate"), imported("accelerate", "accelerate.state")
        os.environ |= {
            "RANK": str(job.rank),
            "WORLD_SIZE": str(job.world_size),
            "LOCAL_RANK": str(job.local_rank),
        }
        os.environ.setdefault(
            "MASTER_ADDR", "localhost"
        )  # with several nodes Accelerate requires an address, but does not use it
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
        handler = accelerate.DistributedDataParallelKwargs(**ddp_arguments(job.case, options))
        return accelerate.Accelerator(
            cpu=job.device.type == "cpu",
            mixed_precision="bf16" if self.autocast else "no",
            gradient_accumulation_steps=self._parts,
            kwargs_handlers=[handler],
        )

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        accelerator, recorder = self._accelerator, self.job.recorder
        *before, last = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        losses = []
        for part in before:
            with accelerator.accumulate(self._prepared):
                loss = self._loss(*part)
                with recorder.span("backward"):
                    accelerator.backward(loss)
                losses.append(loss.detach())
                self.apply()  # part of the loop; Accelerate skips the update until the last part
        if not before:
            return self._last(last)
        with accelerator.accumulate(self._prepared):
            return sum(losses, self._last(last)) / self._parts

    def _last(self, part: Any) -> torch.Tensor:
        loss = self._loss(*part)
        self.backward(partial(self._accelerator.backward, loss))
        return loss.detach()

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        with self.job.recorder.span("forward"):
            return self.job.loss(self._prepared(inputs), targets)

    def apply(self) -> None:
        self._prepared_optimizer.step()
        self._prepared_optimizer.zero_grad()

    def close(self) -> None:
        for name in _LEFT_ON_A_MODEL:
            vars(self.bare).pop(name, None)
        vars(self.bare).update(self._before)
        self._accelerator.free_memory()
        self._prepared = self._prepared_optimizer = None
        super().close()
