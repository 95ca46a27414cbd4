"""The replicas of a process under `tf.distribute`, which make the step of TensorFlow's guides in full or in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.frameworks.tensorflow.devices import quiet_tensorflow
from ddpbench.strategies.frameworks.tensorflow.models import copy_to_keras, to_torch, twin_of
from ddpbench.strategies.trees import chunk

_SUMS = "_all_reduce_sum_gradients"
"""Name of the method by which Keras' optimizer sums gradients (keras/src/backend/tensorflow/optimizer.py)."""


class TfReplica(Replica):
    """The replicas of a Keras model in this process.

    A timed step is one tf.function: `gradients_of` takes the batch, and `apply` makes the full step. Instrumented steps
    run in parts, so that each can be timed.

    For a proof, the gradients come from the parts, and `apply` makes the full step. Its update must equal what torch's
    optimizer computes from these gradients.

    Copying a batch from torch's memory to TensorFlow's devices is recorded as `data`.
    """

    notes_update = True

    def __init__(self, job: Job, strategy: Any, *, jit_compile: bool = False) -> None:
        super().__init__(job)
        self._tf = quiet_tensorflow()
        import keras

        self._strategy = strategy
        self._local: int = len(strategy.extended.worker_devices)
        with strategy.scope():
            self._twin = twin_of(job.case.workload, job.model)
            self._sgd = keras_sgd(self.optimizer)
            self._variables = [shared.variable for shared in self._twin.parameters]
            self._sgd.build(self._variables)
            self._losses = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none", dtype=self._variables[0].dtype
            )
        copy_to_keras(job.model, self._twin)
        self._copies = [
            copy
            for variable in self._variables
            for copy in strategy.experimental_local_results(variable.value)
        ]
        """The copies of all variables on this process's devices, with the copies of one variable next to each other."""
        self._jit_compile = jit_compile
        self._make_functions()
        self._batch: Any = None
        self._loss = torch.zeros(())
        self._reduced: Any = None
        """The aggregated gradients of the batch, or None before they are computed."""
        self._noted = False
        """True if the aggregated gradients were copied to the torch model's `.grad`."""

    def _make_functions(self) -> None:
        """Make the tf.functions of a step and its parts, which are traced when first called."""
        tf, strategy, optimizer, variables = self._tf, self._strategy, self._sgd, self._variables
        total = tf.distribute.ReduceOp.SUM
        local = _compiled(tf, self._replica_gradients, by_xla=self._jit_compile)

        def replica_step(inputs: Any, targets: Any) -> Any:
            loss, gradients = local(inputs, targets)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        def step(inputs: Any, targets: Any) -> Any:
            losses = strategy.run(replica_step, args=(inputs, targets))
            return strategy.reduce(total, losses, axis=None)

        def forward(inputs: Any, targets: Any) -> Any:
            return strategy.run(
                _compiled(tf, self._replica_loss, by_xla=self._jit_compile), args=(inputs, targets)
            )

        def replica_sums(*own: Any) -> Any:
            # `identity` puts each argument on a device: a sum is computed where its terms are.
            return tf.distribute.get_replica_context().all_reduce(total, [tf.identity(one) for one in own])

        def aggregate(gradients: Any, losses: Any) -> Any:
            sums = strategy.run(replica_sums, args=gradients)
            return sums, strategy.reduce(total, losses, axis=None)

        def replica_update(*own: Any) -> None:
            optimizer.apply_gradients(zip(own, variables, strict=True))

        def update(gradients: Any) -> None:
            with replaced(optimizer, _SUMS, list):  # gradients are summed already
                strategy.run(replica_update, args=gradients)

        # No control flow depends on values, so there is nothing for AutoGraph to rewrite.
        self._step = tf.function(step, autograph=False)
        self._forward = tf.function(forward, autograph=False)
        self._aggregate = tf.function(aggregate, autograph=False)
        self._update = tf.function(update, autograph=False)

    def _replica_loss(self, inputs: Any, targets: Any) -> Any:
        """Return one replica's contribution to the global mean loss. Called in a tf.function."""
        losses = self._losses(targets, self._twin.model(inputs, training=True))
        return self._tf.nn.compute_average_loss(losses, global_batch_size=self.job.case.global_batch)

    def _replica_gradients(self, inputs: Any, targets: Any) -> Any:
        """Return one replica's loss and gradients. Called in a tf.function."""
        with self._tf.GradientTape() as tape:
            loss = self._replica_loss(inputs, targets)
        return loss, tape.gradient(loss, self._variables)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Store the batch, and return a tensor for its loss. Instrumented steps also aggregate gradients here.

        Otherwise it is NaN until `apply` writes the loss into it.
        """
        self._reduced = None
        with self.job.recorder.span("data"):
            self._batch = self._handed_over(inputs, targets)
        self._loss = torch.full((), math.nan, dtype=torch.float64)
        if self.job.recorder.active:
            self._aggregated()
        return self._loss

    def apply(self) -> None:
        if self.job.recorder.active:
            with self.job.recorder.span("optimizer"):
                self._update(self._reduced)
        else:
            self._loss.fill_(float(self._step(*self._batch)))
        self._batch = self._reduced = None
        if self._noted:  # never in timed steps, whose gradients nobody reads
            self.job.model.zero_grad(set_to_none=True)
            self._noted = False

    def _handed_over(self, inputs: Any, targets: Any) -> Any:
        """Return inputs and targets as TensorFlow tensors, divided equally among the devices in order."""
        convert = self._tf.convert_to_tensor
        arrays = [
            [convert(part.contiguous().numpy()) for part in chunk(whole, self._local)]
            for whole in (self._twin.inputs(inputs), targets)
        ]
        parts = list(zip(*arrays, strict=True))
        if self._local == 1:
            # tf.distribute's iterators yield this form too. A tf.function called with values by device takes longer.
            return parts[0]
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group % self._local]
        )

    def _aggregated(self) -> list[Any]:
        """Return the gradients by variable, summed over replicas; a step's first call computes them.

        Raises:
            RuntimeError: `gradients_of` was not called, or `apply` has already made the step.
        """
        if self._batch is None:
            raise RuntimeError("gradients exist only between gradients_of() and apply()")
        if self._reduced is None:
            tf, recorder, local = self._tf, self.job.recorder, self._strategy.experimental_local_results
            with recorder.span("forward"), tf.GradientTape() as tape:
                losses = self._forward(*self._batch)
                parts = local(losses)
            with recorder.span("backward"):
                flat = tape.gradient(parts, self._copies)
            with recorder.span("synchronize"):
                self._reduced, loss = self._aggregate(self._regrouped(flat), losses)
                self._loss.fill_(float(loss))
        return list(self._reduced)

    def _regrouped(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        size = self._local
        groups = [flat[start : start + size] for start in range(0, len(flat), size)]
        return tuple(
            self._strategy.experimental_distribute_values_from_function(
                lambda context, own=group: own[context.replica_id_in_sync_group % size]
            )
            for group in groups
        )

    def gradients(self) -> list[torch.Tensor]:
        self._note_gradients()
        return super().gradients()

    def own_gradients(self) -> dict[str, torch.Tensor]:
        self._note_gradients()
        return super().own_gradients()

    def _note_gradients(self) -> None:
        """Copy the gradients from this process's first device to the torch model's `.grad`."""
        parameters = dict(self.job.model.named_parameters())
        for shared, reduced in zip(self._twin.parameters, self._aggregated(), strict=True):
            (first, *_) = self._strategy.experimental_local_results(reduced)
            parameters[shared.name].grad = to_torch(first.numpy(), shared.layout)
        self._noted = True

    def own_parameters(self) -> dict[str, torch.Tensor]:
        self.refresh_model()
        return super().own_parameters()

    def refresh_model(self) -> None:
        """Copy the Keras model's parameters into the torch model.

        Raises:
            RuntimeError: a parameter is not the same on all devices of this process.
        """
        parameters = dict(self.job.model.named_parameters())
        for shared in self._twin.parameters:
            (first, *others) = self._strategy.experimental_local_results(shared.variable.value)
            array = first.numpy()
            if any(array.tobytes() != other.numpy().tobytes() for other in others):
                raise RuntimeError(f"{shared.name} is not the same on all {self._local} devices")
            with torch.no_grad():
                parameters[shared.name].copy_(to_torch(array, shared.layout))

    def held_bytes(self) -> tuple[int, int, int]:
        local = self._strategy.experimental_local_results
        gradients = [part for one in self._aggregated() for part in local(one)]
        momenta = [copy for momentum in self._sgd.momentums for copy in local(momentum.value)]
        parameters, reduced, state = (_bytes(values) for values in (self._copies, gradients, momenta))
        return parameters, reduced, state

    def close(self) -> None:
        self.refresh_model()
        self._batch = self._reduced = None


def keras_sgd(optimizer: torch.optim.Optimizer) -> Any:
    """Return Keras' SGD with the settings of torch's SGD.

    With momentum m, torch computes v = m v + g and w -= lr v, Keras v = m v - lr g and w += v, which are the same while
    lr is constant. Weight decay differs: torch adds it to the gradient, Keras subtracts it from the weights.

    Raises:
        ValueError: the optimizer is not SGD, or has settings that Keras' SGD lacks or interprets differently.
    """
    import keras

    groups = optimizer.param_groups
    if type(optimizer) is not torch.optim.SGD or len(groups) != 1:
        raise ValueError(
            "TensorFlow's replica supports only SGD with one group of parameters, not "
            f"{type(optimizer).__name__} with {len(groups)}: use ddp for it"
        )
    (group,) = groups
    wrong = [name for name in ("dampening", "weight_decay", "nesterov", "maximize") if group[name]]
    if wrong:
        raise ValueError(
            f"SGD with {' and '.join(wrong)} works differently in Keras than in torch: use ddp for it"
        )
    return keras.optimizers.SGD(learning_rate=float(group["lr"]), momentum=float(group["momentum"]))


def _bytes(tensors: Sequence[Any]) -> int:
    return sum(int(tensor.shape.num_elements()) * int(tensor.dtype.size) for tensor in tensors)


@contextmanager
def replaced(thing: Any, name: str, by: Any) -> Iterator[None]:
    """Replace a method of an object while the enclosed code runs, for example while it traces a tf.function."""
    setattr(thing, name, by)
    try:
        yield
    finally:
        delattr(thing, name)


def _compiled(tf: Any, function: Callable[..., Any], *, by_xla: bool) -> Callable[..., Any]:
    if not by_xla:
        return function
    return tf.function(function, autograph=False, jit_compile=True)  # type: ignore[no-any-return]
