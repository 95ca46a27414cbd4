"""A rank's replica that transformers' Trainer trains, half a step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ddpbench.strategies.base import Job
from ddpbench.strategies.frameworks.ddp_replica import DdpInsideReplica
from ddpbench.strategies.frameworks.hf_trainer import HfTrainerOptions
from ddpbench.strategies.frameworks.inverted import Inverted
from ddpbench.strategies.frameworks.process_state import unchanged
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    from ddpbench.measure.clock import Mark

STEPS = 10**9
"""The Trainer's maximum number of steps, more than any launch makes, so that its loop ends only with the batches."""


class UnchangedRates(LRScheduler):
    """A schedule that leaves learning rates unchanged, because the Trainer needs a schedule to step."""

    def get_lr(self) -> list[float | torch.Tensor]:
        return [group["lr"] for group in self.optimizer.param_groups]


def arguments_of(job: Job, options: HfTrainerOptions, *, autocast: bool = False) -> dict[str, Any]:
    """Return the arguments of `TrainingArguments` for the options and the case. All other features are turned off.

    `autocast` is true if the Trainer has to run the model's forward under autocast to bf16.
    """
    cap = job.case.bucket_cap_mb
    return {
        "output_dir": "unused",  # nothing is saved, see `Arguments` below
        "use_cpu": job.device.type == "cpu",
        "max_steps": STEPS,
        "per_device_train_batch_size": max(1, job.case.local_batch // options.accumulate),
        "gradient_accumulation_steps": options.accumulate,
        "bf16": autocast,
        "ddp_find_unused_parameters": options.find_unused_parameters,
        "ddp_broadcast_buffers": options.broadcast_buffers,
        "ddp_bucket_cap_mb": cap if isinstance(cap, int | float) else None,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "seed": job.case.seed,
        "remove_unused_columns": False,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "log_level": "error",
        "log_level_replica": "error",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "push_to_hub": False,
        "average_tokens_across_devices": False,
    }


def scheduler_of(optimizer: torch.optim.Optimizer) -> Any:
    """Return a schedule that leaves learning rates unchanged. Without one, the Trainer would make a schedule itself."""
    return UnchangedRates(optimizer)


class _ClosedError(Exception):
    """Leaves the Trainer's loop when the replica is closed and no batch follows."""


class HfTrainerReplica(DdpInsideReplica):
    """A model that the Trainer trains. The Trainer wraps the model when it gets the first batch."""

    notes_update = True

    def __init__(self, job: Job, options: HfTrainerOptions) -> None:
        super().__init__(job)
        self._options = options
        self._losses: list[torch.Tensor] = []
        self._updating: Mark = None
        with unchanged():
            self._trainer = self._made_trainer()
        self._loop = Inverted("the Trainer", self._train)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        return self._loop.gradients_of((inputs, targets))

    def apply(self) -> None:
        """Let the Trainer make the update, and run it until it asks for the next batch."""
        self._updating = self.job.recorder.mark()
        self._loop.update()

    def close(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)  # so that an update that is still due changes nothing
        self._loop.close()
        super().close()
        self._trainer = None
        _forget(self.bare)

    def _made_trainer(self) -> Any:
        from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
        from transformers.utils import logging

        replica, job = self, self.job
        logging.set_verbosity_error()

        class Arguments(TrainingArguments):  # type: ignore[misc]
            # Otherwise the Trainer makes a folder for saved files.
            should_save = property(lambda _: False)

        class Mine(Trainer):  # type: ignore[misc]
            loss_is_scaled_for_ga = False

            def get_train_dataloader(self) -> Any:
                return replica._batches()

            def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
                with job.recorder.span("forward"):
                    loss = job.loss(model(inputs["inputs"]), inputs["targets"])
                replica._losses.append(loss.detach())
                return loss

        class Halfway(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                replica._watch()

            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                replica._loop.gradients_are_there(replica._mean_loss())

            def on_optimizer_step(self, *_: Any, **__: Any) -> None:
                job.recorder.add_span("optimizer", replica._updating, job.recorder.mark())

        trainer = Mine(
            model=self.bare,
            args=Arguments(**arguments_of(job, self._options, autocast=self.autocast)),
            callbacks=[Halfway()],
            optimizers=(self.optimizer, scheduler_of(self.optimizer)),
        )
        trainer.model_accepts_loss_kwargs = False  # the model does not compute its loss
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _train(self, _: Inverted) -> None:
        with suppress(_ClosedError):
            self._trainer.train()

    def _batches(self) -> Iterator[Any]:
        for batch in self._loop.batches():
            parts = self._options.accumulate
            for inputs, targets in chunk(batch, parts) if parts > 1 else [batch]:
                yield {"inputs": inputs, "targets": targets}
        raise _ClosedError  # otherwise the Trainer would iterate again, up to `STEPS`

    def _watch(self) -> None:
        job, accelerator = self.job, self._trainer.accelerator
        self.watch(self._trainer.model_wrapped, rebuilds=not self._options.find_unused_parameters)
        backward = accelerator.backward

        def watched(loss: torch.Tensor, **settings: Any) -> None:
            if len(self._losses) < self._options.accumulate:
                with job.recorder.span("backward"):
                    backward(loss, **settings)
            else:
                self.backward(lambda: backward(loss, **settings))

        accelerator.backward = watched

    def _mean_loss(self) -> torch.Tensor:
        losses, self._losses = self._losses, []
        return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0]) / len(losses)


def _forget(model: torch.nn.Module) -> None:
    """Remove Accelerate's traces, so that the model can be prepared again."""
    from accelerate.state import AcceleratorState, GradientState

    if "_original_forward" in model.__dict__:  # accelerate had wrapped it in autocast
        del model.__dict__["_original_forward"], model.__dict__["forward"]
    model.__dict__.pop("_is_accelerate_prepared", None)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
