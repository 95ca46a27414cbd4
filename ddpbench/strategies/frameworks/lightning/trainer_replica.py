"""A rank's replica that Lightning's Trainer trains, half a step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddpbench.measure.clock import Mark
from ddpbench.strategies.base import Job
from ddpbench.strategies.frameworks.ddp_replica import DdpInsideReplica
from ddpbench.strategies.frameworks.imports import imported
from ddpbench.strategies.frameworks.inverted import Inverted
from ddpbench.strategies.frameworks.lightning import LightningOptions
from ddpbench.strategies.frameworks.lightning.setup import arguments_of, environment_of
from ddpbench.strategies.frameworks.over_ddp import ddp_arguments
from ddpbench.strategies.frameworks.process_state import ProcessState, unchanged
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    import torch

NEVER_REACHED = 1 << 40
WORD_BYTES = 8
"""Size of the number by which rank 0 tells the other ranks whether to stop, in bytes."""


class TrainerReplica(DdpInsideReplica):
    """A model that `Trainer.fit` trains, in a loop that pauses for each batch and before each update."""

    notes_update = True

    def __init__(self, job: Job, options: LightningOptions) -> None:
        super().__init__(job)
        self._parts = options.accumulate
        self._rebuilds = options.static_graph or not options.find_unused_parameters
        self._loop = Inverted("Lightning's Trainer", self._fit)
        # The Trainer makes forward and backward within the optimizer's step, so the workload's hooks before an update,
        # such as clipping, would run too early. They run in Lightning's hook before an update instead.
        hooks = self.optimizer._optimizer_step_pre_hooks
        self._before_update = dict(hooks)
        hooks.clear()
        lightning = imported("lightning", "lightning.pytorch")
        strategies = imported("lightning", "lightning.pytorch.strategies")
        with unchanged():
            strategy = strategies.DDPStrategy(
                parallel_devices=[job.device],
                cluster_environment=environment_of(job),
                **ddp_arguments(job.case, options),
            )
            self._trainer = self._make_trainer(lightning, strategy, options)
            self._module: Any = _module_of(lightning, self)
        self._process = ProcessState()
        self._losses: list[torch.Tensor] = []
        self._updating: Mark = None
        self._broadcasts = 0
        """Number of broadcasts so far in the current step."""

    def _make_trainer(self, lightning: Any, strategy: Any, options: LightningOptions) -> Any:
        return lightning.Trainer(
            **arguments_of(self.job, strategy, autocast=self.autocast),
            max_epochs=1,
            accumulate_grad_batches=self._parts,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            barebones=options.barebones,
        )

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        self._broadcasts = 0
        return self._loop.gradients_of((inputs, targets))

    def apply(self) -> None:
        self._loop.update()

    def close(self) -> None:
        self._loop.close()
        self.optimizer._optimizer_step_pre_hooks.update(self._before_update)
        self.job.model.to(self.job.device)  # Lightning leaves a trained model on the CPU
        self._trainer = self._module = None
        super().close()

    def _fit(self, loop: Inverted) -> None:
        self._process = ProcessState()
        self._trainer.fit(self._module, _Batches(loop, self._parts))

    def began(self) -> None:
        """Begin to record the model that the Trainer has prepared. Called right before the first batch."""
        self._process.restore()  # the Trainer also replaces the handler of SIGTERM
        self.watch(self._trainer.strategy.model, rebuilds=self._rebuilds)
        if self.job.recorder.active:
            self._note_forward()
            self._note_broadcasts()

    def part_backward(self, loss: torch.Tensor) -> None:
        """Run the backward of a part of the batch. For the last part, this aggregates gradients."""
        self._losses.append(loss.detach())
        if len(self._losses) < self._parts:
            with self.job.recorder.span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.backward(loss.backward)

    def gradients_are_there(self) -> None:
        """Pause the Trainer's loop until `apply` is called. Then run the workload's hooks before the update."""
        loss = self._losses[0] if self._parts == 1 else sum(self._losses[1:], self._losses[0])
        self._losses = []
        self._loop.gradients_are_there(loss)
        self._updating = self.job.recorder.mark()
        for before in self._before_update.values():
            before(self.optimizer, (), {})

    def updated(self) -> None:
        """Record the optimizer's span, which began when `apply` was called."""
        self.job.recorder.add_span("optimizer", self._updating, self.job.recorder.mark())

    def _note_forward(self) -> None:
        """Record DDP's forward as a span, with `training_step` and all that DDP sends before it."""
        (ddp,) = self.reducers.ddps
        recorder = self.job.recorder
        start: Mark = None

        def begins(*_: Any) -> None:
            nonlocal start
            start = recorder.mark()

        ddp.register_forward_pre_hook(begins)
        ddp.register_forward_hook(lambda *_: recorder.add_span("forward", start, recorder.mark()))

    def _note_broadcasts(self) -> None:
        loop, recorder, reducers = self._trainer.fit_loop.epoch_loop, self.job.recorder, self.reducers
        tell = getattr(loop, "_broadcast_sigterm_tensor", None)
        if tell is None or reducers.hook is None:
            return
        buckets = reducers.hook

        def noted() -> None:
            start = recorder.mark()
            tell()
            end = recorder.mark()
            recorder.add_span("synchronize", start, end)
            number = len(buckets.sizes) + self._broadcasts  # after the buckets' numbers
            self._broadcasts += 1
            recorder.add_transfer(
                bucket=number, op="broadcast", size=WORD_BYTES, start=start, end=end, root=0
            )

        loop._broadcast_sigterm_tensor = noted


class _Batches:
    """ddpbench's batches as a DataLoader. Without a length, the Trainer would fetch one batch ahead."""

    def __init__(self, loop: Inverted, parts: int) -> None:
        self._loop, self._parts = loop, parts

    def __len__(self) -> int:
        return NEVER_REACHED

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loop.batches():
            if self._parts == 1:
                yield batch
            else:
                yield from chunk(batch, self._parts)


def _module_of(lightning: Any, replica: TrainerReplica) -> Any:
    loss_of, recorder = replica.job.loss, replica.job.recorder

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = replica.bare

        def configure_optimizers(self) -> Any:
            return replica.optimizer

        def on_train_start(self) -> None:
            replica.began()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            return loss_of(self.network(inputs), targets)

        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            with recorder.span("optimizer"):
                super().optimizer_zero_grad(epoch, batch_idx, optimizer)

        def backward(self, loss: Any) -> None:
            replica.part_backward(loss)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            replica.gradients_are_there()

        def optimizer_step(self, *arguments: Any, **named: Any) -> None:
            super().optimizer_step(*arguments, **named)
            replica.updated()

    return Module()
