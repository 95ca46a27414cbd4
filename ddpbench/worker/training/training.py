"""The workload, data and model of a rank, and the training step that is timed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from ddpbench.measure.blocks import Control
from ddpbench.measure.pacer import Pacer
from ddpbench.measure.recorder import Recorder
from ddpbench.records.heartbeat import Heartbeat
from ddpbench.spec import Case
from ddpbench.strategies import TABLE as SHIPPED
from ddpbench.strategies import Job, Replica, Strategy, load_strategy, own_step_reason, stream_reason
from ddpbench.strategies.own_step import Optimizers
from ddpbench.strategies.trees import samples
from ddpbench.text_safety import with_article
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.batches import endless, make_loader, steps_a_pass
from ddpbench.worker.training.kept_settings import settings_kept
from ddpbench.worker.training.precision import FULL, PrecisionPolicy, precision_of
from ddpbench.worker.training.randomness import seed_all
from ddpbench.worker.training.storage import batch_bytes_of
from ddpbench.worker.training.types import cast_model, cast_words, name_of, type_of, types_in
from ddpbench.workloads import is_import_path, load_workload
from ddpbench.workloads.plain_updates import with_hooks


class DivergedError(Exception):
    """Training failed because the loss is NaN or infinite, or because ranks' parameters differ."""


class Training:
    """A rank's workload, data and model for a case, before the strategy is applied to the model."""

    def __init__(self, case: Case, place: JobPlace, device: torch.device, launch: int = 0) -> None:
        """Load the case's strategy, workload and data.

        `launch` is the launch's number within the case, so that randomly drawn times differ between launches.

        Raises:
            ValueError: the case does not suit a workload with its own step, or one whose dataset is a stream.
        """
        self.case, self.place, self.device = case, place, device
        self._undone: dict[str, None] = {}
        """Sentences on settings that the user's code changed and that were restored."""
        with self._settings_kept():
            self.strategy: Strategy[Any] = load_strategy(case.strategy)
            self.workload = load_workload(case.workload).for_case(case, place.rank, launch)
        self.workload_options = self.workload.options.model_validate(case.workload_options)
        self.options = self.strategy.options.model_validate(case.options)
        self.dtype = type_of(case.dtype)
        """Data type that model and batches are cast to, or None if they keep their own types."""
        self._given_types: tuple[torch.dtype, ...] | None = None
        self._batch_types: set[torch.dtype] = set()
        """Original types of the batches' tensors that are cast."""
        self.precision = precision_of(case.precision, device)
        if self.workload.owns_step and (reason := own_step_reason(case)):
            raise ValueError(reason)
        dealt = (0, 1) if place.processes == 1 else self.strategy.dealt(case, place.rank)
        self.samples = case.global_batch // dealt[1]
        """Samples in each batch of this process."""
        self.share = case.global_batch if place.processes == 1 else case.local_batch
        """Samples of a step that this process trains on; 0 if it only serves. They sum up to the global batch."""
        if place.rank < case.world_size - self.strategy.trainers(case.world_size):
            self.share = 0  # the first ranks only serve
        seed_all(case.seed)  # so that a user's object draws the same numbers on all ranks when it is made
        with self._settings_kept():
            own = self.workload.loader(self.workload_options, *dealt, self.samples)
            dataset = self.workload.dataset(self.workload_options) if own is None else None
        self.is_stream = isinstance(dataset, IterableDataset)
        """True if the dataset is a stream, which has no length to compute each rank's number of samples from."""
        self.shards_itself = own is not None or self.is_stream
        """True if the workload, rather than ddpbench, chooses each rank's samples."""
        if self.is_stream and place.processes > 1 and (reason := stream_reason(case)):
            raise ValueError(reason)
        self.loader = own if own is not None else self._made_loader(dataset, *dealt)
        self._own_loader = own is not None
        self.dataset_samples = (
            _length(getattr(self.loader, "dataset", None)) if self.workload.has_loss else None
        )
        """Number of samples in the whole dataset, or None if it is endless, synthetic, or has no length."""
        self.trained_names: tuple[str, ...] = ()
        """Names of the trainable parameters of the model that `fresh_model` last returned, in the module's order."""
        self.sparse_buffers: tuple[str, ...] = ()
        self.undivided: tuple[int, ...] = ()
        """Lengths of tensors that `trees.chunk` leaves undivided in each part of a batch.

        A proof that divides batches sets them.
        """
        self.hooks_see_outputs = False
        """True if the model has forward hooks."""
        self._passes: list[int] = []
        self._begun = 0
        """Number of batches taken so far in the current pass."""

    def _made_loader(self, dataset: Any, rank: int, processes: int) -> DataLoader[Any]:
        return make_loader(
            dataset,
            self.case,
            rank=rank,
            processes=processes,
            loader_cores=self.place.loader_cores,
            collate=self.workload.collate,
        )

    def fresh_model(
        self, dtype: torch.dtype | None = None, precision: PrecisionPolicy | None = None
    ) -> torch.nn.Module:
        """Return a new model in its initial state, which the case's seed makes the same in every rank.

        Its parameters are cast to `dtype`, or to the case's type if None. Its forward runs in `precision`, or in the
        case's precision if None.

        Raises:
            ValueError: the model has parameters without memory, or none to train.
        """
        seed_all(self.case.seed)
        with self._settings_kept():
            model = self.workload.model(self.workload_options)
        unreal = [
            name for name, each in chain(model.named_parameters(), model.named_buffers()) if each.is_meta
        ]
        if unreal:
            raise ValueError(
                "the model has parameters or buffers on the device meta, such as "
                f'{unreal[0].removeprefix("network.")}: in model(), call to_empty(device="cpu"), then initialise '
                "the parameters"
            )
        self._given_types = types_in(model.parameters())
        model = cast_model(model, dtype or self.dtype).to(self.device)
        self.trained_names = tuple(
            name.removeprefix("network.") for name, each in model.named_parameters() if each.requires_grad
        )
        self.sparse_buffers = tuple(
            name.removeprefix("network.")
            for name, each in model.named_buffers()
            if each.layout != torch.strided
        )
        self.hooks_see_outputs = any(each._forward_hooks for each in model.modules())
        if not self.trained_names:
            raise ValueError(
                f"workload {self.case.workload} has no parameters to train: give it some that require gradients"
            )
        seed_all(self.case.seed + 1 + self.place.rank)
        return (precision or self.precision).wrap(model)

    def _settings_kept(self) -> AbstractContextManager[None]:
        return settings_kept(self.case, lambda sentence: self._undone.update({sentence: None}))

    @property
    def changes(self) -> tuple[str, ...]:
        """Sentences about casts of a user's model and batches, and about settings that the user's code changed."""
        if not is_import_path(self.case.workload):
            return ()
        asked = f'dtype = "{self.case.dtype}" casts'
        of_model = cast_words(self._given_types or (), self.dtype)
        of_batches = cast_words(sorted(self._batch_types, key=name_of), self.dtype)
        return (
            *([f"{asked} the model's parameters from {of_model}"] if of_model else []),
            *([f"{asked} its batches from {of_batches}"] if of_batches else []),
            *self._undone,
        )

    @property
    def given_types(self) -> tuple[torch.dtype, ...]:
        """Data types of the workload's parameters before any cast."""
        if self._given_types is None:
            self.fresh_model()
        return self._given_types or ()

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Return an endless iterator over the rank's batches as pairs (inputs, targets).

        If the model takes whole batches, the pairs are (batch, None).
        """
        size = self.samples if self._own_loader else None
        batches = endless(
            self.loader,
            self.device,
            self.dtype,
            size=size,
            count=self._samples_in,
            on_pass=self._passes.append,
            on_batch=self._count,
            on_cast=self._batch_types.add,
        )
        return ((batch, None) for batch in batches) if self.workload.whole_batches else batches

    def _samples_in(self, batch: Any) -> int:
        own = self.workload.samples_in(batch)
        return samples(batch) if own is None else own

    def is_packed(self, batch: Any) -> bool:
        """Return whether a user's workload counts samples differently from the length of a batch's first dimension."""
        return is_import_path(self.case.workload) and samples(batch) != self.samples

    def batch_bytes(self) -> int:
        """Return the number of bytes to fetch for a batch, divided by the case's `shrink` as gradients are."""
        size = self.workload.sample_bytes
        whole = batch_bytes_of(next(self.batches())) if size is None else size * self.samples
        return max(1, whole // self.case.shrink)

    def _count(self, begun: int) -> None:
        self._begun = begun

    def check_even(self, control: Control) -> None:
        """Check that passes over the data are equally long on all ranks, as far as known.

        Ranks repeat their data endlessly, and would not notice another rank's end. With `data = "memory"`, an unknown
        length is wrong only if it has exceeded the shortest known one.

        Raises:
            ValueError: the lengths differ; raised on all ranks.
        """
        if self.place.processes == 1:
            return
        steps = self._passes[0] if self._passes else steps_a_pass(self.loader)
        lengths = gather_number(-1 if steps is None else steps, control, self.place.processes)
        begun = gather_number(self._begun, control, self.place.processes)
        known = [rank for rank, length in enumerate(lengths) if length >= 0]
        if not known:
            return
        short = min(known, key=lambda rank: lengths[rank])
        for rank, length in enumerate(lengths):
            if (length if length >= 0 else begun[rank]) > lengths[short]:
                many = {short: str(lengths[short]), rank: str(length) if length >= 0 else "more"}
                (one, first), (other, second) = sorted(many.items())
                raise ValueError(
                    f"uneven data: a pass over the data has {first} batches on rank {one} and {second} on rank "
                    f"{other}, so a training loop would hang at its end. Give every rank the same number of "
                    "batches (DistributedSampler with drop_last=True)"
                )

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Return the workload's optimizer for `parameters`. If it has several, one object combines them."""
        if not self.workload.owns_step:
            optimizer = self.workload.optimizer(parameters, self.workload_options)
            with_hooks(optimizer)
            return optimizer
        together: Any = Optimizers(self.workload.optimizers(parameters, self.workload_options))
        for one in together.all:
            with_hooks(one)
        return together  # type: ignore[no-any-return]

    def replica(
        self,
        model: torch.nn.Module,
        recorder: Recorder,
        *,
        distributed: bool,
        precision: PrecisionPolicy | None = None,
    ) -> Replica:
        """Apply the strategy to `model`, and return the resulting replica.

        `model` comes from `fresh_model` with the same `precision`.

        Raises:
            TypeError: a user's own strategy returned something else.
        """
        job = Job(
            case=self.case,
            model=model,
            loss=(precision or self.precision).loss(self.workload.loss),
            make_optimizer=self.make_optimizer,
            device=self.device,
            rank=self.place.rank,
            local_rank=self.place.local_rank,
            world_size=self.case.world_size,
            distributed=distributed,
            recorder=recorder,
            step=partial(self.workload.step, model) if self.workload.owns_step else None,
        )
        if self.case.strategy in SHIPPED:  # a framework sets what it needs
            return self.strategy.build(job, self.options)
        with self._settings_kept():
            built: Any = self.strategy.build(job, self.options)
        if not isinstance(built, Replica):
            raise TypeError(
                f"{self.strategy.name}: its build() returned {_a(built)}; it must return a ddpbench.strategies.Replica"
            )
        return built


def _a(value: Any) -> str:
    return "None" if value is None else with_article(type(value).__name__)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


class StepLoop:
    """The training step of all strategies, which takes a batch, computes its gradients and updates the parameters."""

    def __init__(
        self,
        replica: Replica,
        batches: Iterator[tuple[Any, Any]],
        recorder: Recorder,
        heartbeat: Heartbeat,
        precision: PrecisionPolicy = FULL,
        *,
        pacer: Pacer | None = None,
    ) -> None:
        """Prepare steps of `replica`. `pacer`, if the workload has one, is called at the end of each step."""
        self.replica = replica
        self._end_step = pacer.end_step if pacer is not None else None
        self._precision = precision
        self._update = precision.update
        self._batches = batches
        self._recorder = recorder
        self._beat = heartbeat.beat
        self.loss: torch.Tensor | None = None

    def step(self) -> None:
        """Train one step. The loss stays on the device; `check_loss` reads it outside timed regions."""
        recorder, replica = self._recorder, self.replica
        inputs = targets = None
        if replica.draws:
            with recorder.span("data"):
                inputs, targets = next(self._batches)
        if replica.job.step is not None:
            self.loss = replica.own_step(inputs)
        else:
            self.loss = replica.gradients_of(inputs, targets)
            if replica.notes_update:
                self._update(replica)
            else:
                with recorder.span("optimizer"):
                    self._update(replica)
        if self._end_step is not None:
            self._end_step()
        self._beat()

    def unscaled_loss(self) -> torch.Tensor:
        """Return the last step's unscaled loss. It stays on its device: reading it would wait for the device."""
        assert self.loss is not None
        return self._precision.unscaled(self.loss)

    def check_loss(self) -> float:
        """Return the last step's loss as a number, or 0 if the replica doesn't know the loss.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        assert self.loss is not None
        if not self.replica.knows_loss:
            return 0.0
        value = self._precision.true_loss(self.loss)
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value}: lower the learning rate, or look for a bug in the model"
            )
        return value


def checksum(model: torch.nn.Module) -> str:
    """Return a hash of the bits of all parameters, as hexadecimal text. Buffers are left out."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    return digest.hexdigest()[:32]


def all_equal(text: str, control: Control, processes: int) -> bool:
    """Return whether all ranks pass the same `text`, such as a checksum, of at most 64 characters."""
    if processes == 1:
        return True
    group = getattr(control, "group", None)
    data = text.encode().ljust(64)[:64]
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(processes)]
    dist.all_gather(gathered, own, group=group)
    return all(torch.equal(other, gathered[0]) for other in gathered)


def gather_number(value: int, control: Control, processes: int) -> list[int]:
    """Return every rank's `value`, in the order of ranks."""
    if processes == 1:
        return [value]
    own = torch.tensor([value])
    gathered = [torch.empty_like(own) for _ in range(processes)]
    dist.all_gather(gathered, own, group=getattr(control, "group", None))
    return [int(other) for other in gathered]


def gather_numbers(values: Sequence[float], control: Control, processes: int) -> list[list[float]]:
    """Return every rank's `values`, in the order of ranks. All ranks must pass the same number of values."""
    if processes == 1:
        return [list(values)]
    own = torch.tensor(values, dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(processes)]
    dist.all_gather(gathered, own, group=getattr(control, "group", None))
    return [other.tolist() for other in gathered]
