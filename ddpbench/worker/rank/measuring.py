"""A measuring launch on one rank: warm-up, timed steps and instrumented steps, then evaluation and checkpoints."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import (
    BLOCKS_A_LAUNCH,
    IN_TURN,
    MAX_STEPS_UNTIL_READY,
    REPLAYING,
    TRAINING,
    Control,
    Stepper,
    run_block,
    timed_blocks,
    warm_up,
)
from ddpbench.measure.clock import Clock, CudaClock, HostClock
from ddpbench.measure.recorder import NullRecorder, Recorder, StepRecorder
from ddpbench.records import Block, Buckets, Held, LaunchDir, LaunchRequest, RecordWriter
from ddpbench.records.heartbeat import WAITING, Heartbeat
from ddpbench.records.request import INTERLEAVED_BLOCKS
from ddpbench.runtime.turnstile import JOINS, MOST_GROUPS, TURN, Turn, turn_from
from ddpbench.spec import Case
from ddpbench.strategies import Replica
from ddpbench.strategies.traits import hides_transfers
from ddpbench.worker.rank.checkpoints import Saver
from ddpbench.worker.rank.edges import Edges
from ddpbench.worker.rank.evaluation import evaluate
from ddpbench.worker.rank.memory import peak_memory, reset_peak_memory
from ddpbench.worker.rank.time_to_loss import train_to
from ddpbench.worker.rank.traffic import link_of
from ddpbench.worker.training.batches import in_memory
from ddpbench.worker.training.storage import fetched
from ddpbench.worker.training.training import DivergedError, StepLoop, Training, all_equal, checksum
from ddpbench.worker.verify.written import late_sentence, writes_sentence, written_by

INSTRUMENTED_SHARE = 0.15
"""Approximate time of the instrumented steps, divided by the time of the timed steps."""


@dataclass(slots=True)
class Known:
    """Facts about a rank's training that are recorded even if it fails. They are filled in as they become known."""

    params_checksum: str = ""
    final_loss: float | None = None
    peak_memory_bytes: int | None = None


class Measurement:
    """Measures and records a launch on one rank, from warm-up to checkpoints."""

    def __init__(
        self,
        training: Training,
        model: torch.nn.Module,
        control: Control,
        *,
        directory: LaunchDir,
        request: LaunchRequest,
        heartbeat: Heartbeat,
        writer: RecordWriter,
        known: Known,
    ) -> None:
        self._training, self._model, self._control = training, model, control
        self._heartbeat, self._writer = heartbeat, writer
        self._checkpoints = directory.checkpoints(request.case.checkpoint_dir, request.run_id)
        self._measured_s, self._target_loss = request.measured_s, request.target_loss
        self._timed_s = request.groups * request.measured_s
        self._case, self._known = training.case, known
        # A workload's own loader may have workers that never stop fetching, so its launch takes no turns.
        in_turn = TURN in os.environ and not getattr(training.loader, "num_workers", 0)
        self._groups = min(request.groups, MOST_GROUPS) if in_turn else 1
        joins = os.environ.pop(JOINS, "") != ""
        self._joined = turn_from(TURN) if in_turn and (joins or training.place.rank == 0) else None
        if self._joined is not None and joins:
            self._joined.join()
        turn = self._joined if training.place.rank == 0 else None
        short = in_turn or request.short_blocks
        least = IN_TURN if short and training.strategy.waits_in_step else TRAINING
        self._least = least if self._case.compute == "real" else REPLAYING
        self._blocks = request.groups * (INTERLEAVED_BLOCKS if short else BLOCKS_A_LAUNCH)
        self._distributed = dist.is_initialized() and training.strategy.uses_backend
        self._batches = self._batches_from_the_first()
        samples = training.share
        self._edges = Edges(training.workload.pacer, link_of(self._case, training.place))
        self._replica, self._loop = self._replica_and_loop(NullRecorder())
        clock: Clock = CudaClock() if self._case.device == "cuda" else HostClock()
        period = training.strategy.period(training.options)
        self._stepper = Stepper(self._loop.step, samples, clock, control, period, self._edges.at_edge)
        if in_turn:
            self._stepper = replace(
                self._stepper,
                turn=partial(_offered, turn, control, heartbeat),
                group=lambda: turn.group if turn is not None else 0,
            )

    def run(self) -> float:
        """Make all measurements of the launch, from the warm-up on. Return the time of a timed step (seconds).

        Raises:
            DivergedError: the loss is not finite, or ranks' parameters differ and should be equal.
        """
        warm_step_ns = self._warm_up()
        timed_ns, step_ns = self._time_steps(warm_step_ns)
        self._check_ranks_agree()
        self._known.peak_memory_bytes = peak_memory(self._case.device)  # before a second replica is made
        self._instrument_steps(wanted=round(timed_ns * INSTRUMENTED_SHARE / step_ns))
        if self._training.strategy.whole_state:
            self._evaluate()
            self._save()
        self._replica.close()
        self._train_to_the_loss()
        return step_ns / 1e9

    def _batches_from_the_first(self) -> Iterator[tuple[Any, Any]]:
        batches = self._training.batches()
        if self._case.data == "memory":
            batches = in_memory(batches, self._heartbeat.beat)
        if store := os.environ.get("DDPBENCH_STORAGE"):
            batches = fetched(batches, store, self._training.batch_bytes())
        return batches

    def _replica_and_loop(self, recorder: Recorder) -> tuple[Replica, StepLoop]:
        training = self._training
        replica = training.replica(self._model, recorder, distributed=self._distributed)
        pacer = training.workload.pacer
        loop = StepLoop(replica, self._batches, recorder, self._heartbeat, training.precision, pacer=pacer)
        return replica, loop

    def _warm_up(self) -> float:
        self._heartbeat.enter("warm-up")
        warmup = warm_up(self._stepper, self._replica.ready, self._measured_s, self._least)
        self._loop.check_loss()
        self._replica.notes()  # discards the notes of the warm-up
        self._writer.write(warmup)
        reset_peak_memory(self._case.device)
        return warmup.step_ns

    def _time_steps(self, warm_step_ns: float) -> tuple[int, float]:
        """Time the blocks; return their total time and the time per step in the last one (ns)."""
        loop, replica, edges = self._loop, self._replica, self._edges
        has_loss = self._training.workload.has_loss
        self._heartbeat.enter("timed steps")
        timed_ns, step_ns = 0, warm_step_ns
        blocks = timed_blocks(
            self._stepper, self._timed_s, warm_step_ns, self._least, self._blocks, self._groups
        )
        for block in blocks:
            loss = loop.check_loss()
            self._known.final_loss = loss if has_loss and replica.knows_loss else None
            self._writer.write(block, *edges.records(block), *replica.notes())
            timed_ns += block.end_ns - block.start_ns
            step_ns = (block.end_ns - block.start_ns) / block.steps
        return timed_ns, step_ns

    def _check_ranks_agree(self) -> None:
        """Check that all ranks have equally long data and, if the strategy promises it, equal parameters.

        Raises:
            DivergedError: parameters differ.
            ValueError: passes over the data differ in length.
        """
        training, processes = self._training, self._training.place.processes
        if training.shards_itself:
            training.check_even(self._control)
        if training.strategy.replicas_equal and processes > 1:
            self._replica.refresh_model()
            self._known.params_checksum = checksum(self._model)
            if not all_equal(self._known.params_checksum, self._control, processes):
                written = _written_by_forward(training, self._model, self._batches)
                said = (
                    writes_sentence(written)
                    if written
                    else late_sentence(trained_late(training, self._model))
                )
                why = f": {said}" if said else ""
                raise DivergedError(f"the ranks' parameters differ after the timed steps{why}")

    def _instrument_steps(self, *, wanted: int) -> None:
        """Record spans and transfers of at least `wanted` steps of a new replica.

        If transfers cannot be timed, nothing is recorded. Spans alone would look as if the ranks had sent nothing.
        """
        self._heartbeat.enter("instrumented steps")
        if self._distributed and not _times_transfers(self._case):
            buckets = self._replica.bucket_bytes()
            self._writer.write(
                *([Buckets(bytes=tuple(buckets))] if buckets is not None else []), self._held()
            )
            return
        self._replica.close()
        clock, samples, period = self._stepper.clock, self._stepper.samples_per_step, self._stepper.period
        recorder = StepRecorder(clock)
        self._replica, self._loop = self._replica_and_loop(recorder)
        again = _warm_again(self._loop, recorder, self._stepper)
        loop, numbers = self._loop, itertools.count()

        def instrumented_step() -> None:
            recorder.begin_step(next(numbers))
            loop.step()
            recorder.end_step()

        turn = self._stepper.turn
        self._stepper = Stepper(instrumented_step, samples, clock, self._control, period, turn=turn)
        block = run_block(self._stepper, max(self._least.instrumented, wanted), 0, "instrumented")
        # Step 0 follows the barrier and doesn't count. Its transfers are kept, because they may last into step 1.
        records = [record for record in recorder.records() if record.step > 0 or record.kind == "comm"]
        buckets = self._replica.bucket_bytes()
        made = [Buckets(bytes=tuple(buckets))] if buckets is not None else []
        self._writer.write(again, block, *made, *records, self._held())
        self._loop.check_loss()

    def _held(self) -> Held:
        """Train one more step; return the bytes of model state held between backward and update."""
        replica = self._replica
        if replica.job.step is not None:
            return self._held_in_own_step()
        replica.gradients_of(*(next(self._batches) if replica.draws else (None, None)))
        parameters, gradients, optimizer = replica.held_bytes()
        self._training.precision.update(replica)
        return Held(parameter_bytes=parameters, gradient_bytes=gradients, optimizer_bytes=optimizer)

    def _held_in_own_step(self) -> Held:
        """Like `_held`, but return each number's maximum, since the workload's `step` makes its own updates."""
        replica = self._replica
        seen = [replica.held_bytes()]
        optimizers: Any = replica.optimizer
        hooks = [
            one.register_step_pre_hook(lambda *_: seen.append(replica.held_bytes())) for one in optimizers.all
        ]
        replica.own_step(next(self._batches)[0])
        for hook in hooks:
            hook.remove()
        seen.append(replica.held_bytes())
        parameters, gradients, optimizer = (max(values) for values in zip(*seen, strict=True))
        return Held(parameter_bytes=parameters, gradient_bytes=gradients, optimizer_bytes=optimizer)

    def _evaluate(self) -> None:
        if self._case.evaluation and self._training.workload.evaluates:
            self._heartbeat.enter("evaluation")
            beat = self._heartbeat.beat
            self._writer.write(*evaluate(self._replica, self._batches, self._stepper, self._measured_s, beat))

    def _save(self) -> None:
        strategy, case, place = self._training.strategy, self._case, self._training.place
        if not case.checkpoint or not (strategy.replicas_equal or case.world_size == 1):
            return
        self._heartbeat.enter("checkpoints")
        saver = Saver(
            model=self._replica.job.model,
            optimizer=self._replica.optimizer,
            folder=self._checkpoints,
            rank=place.rank,
            processes=place.processes,
            clock=self._stepper.clock,
            control=self._control,
            on_checkpoint=self._heartbeat.beat,
        )
        self._writer.write(*saver.run())

    def _train_to_the_loss(self) -> None:
        training, clock = self._training, self._stepper.clock
        if self._target_loss is None or training.strategy.promise(training.options) == "nothing":
            return
        self._heartbeat.enter("training to a loss")
        del self._replica, self._loop, self._stepper  # the fresh model's state has to fit into memory
        self._batches = self._batches_from_the_first()
        for part in train_to(
            self._target_loss,
            training,
            self._batches,
            clock=clock,
            control=self._control,
            heartbeat=self._heartbeat,
        ):
            self._writer.write(part)


def _offered(turn: Turn | None, control: Control, heartbeat: Heartbeat, *, meet: bool) -> int:
    """Let the interleaved launch run once all ranks are done; return the wait (ns), 0 on ranks other than 0."""
    control.agree(0)
    if turn is None:
        return 0
    phase = heartbeat.pulse.phase
    phases = itertools.cycle((WAITING, phase))
    waited_ns = (turn.meet if meet else turn.offer)(lambda: heartbeat.enter(next(phases)))
    heartbeat.enter(phase)
    return waited_ns


def _warm_again(loop: StepLoop, recorder: StepRecorder, stepper: Stepper) -> Block:
    clock, more = stepper.clock, 2
    clock.anchor()
    marks = [clock.mark()]
    is_ready = False
    while more and len(marks) <= MAX_STEPS_UNTIL_READY:
        more -= is_ready
        recorder.begin_step(-1)
        loop.step()
        recorder.end_step()
        is_ready = is_ready or bool(stepper.control.agree(int(loop.replica.ready())))
        marks.append(clock.mark())
    recorder.forget()
    times = clock.resolve(marks)
    steps = len(marks) - 1
    return Block(
        phase="warmup",
        index=0,
        steps=steps,
        samples=steps * stepper.samples_per_step,
        start_ns=times[0],
        end_ns=times[-1],
        step_ns=tuple(after - before for before, after in itertools.pairwise(times)),
    )


def trained_late(training: Training, model: torch.nn.Module) -> list[str]:
    """Return the names of parameters that are trained now, but were not in the new model."""
    names = [name.removeprefix("network.") for name, each in model.named_parameters() if each.requires_grad]
    return [name for name in names if name not in training.trained_names]


def _written_by_forward(training: Training, model: torch.nn.Module, batches: Iterator[Any]) -> list[str]:
    if training.workload.owns_step:
        return []
    inputs, targets = next(batches)
    return written_by(model, lambda: training.precision.value(training.workload.loss)(model(inputs), targets))


def _times_transfers(case: Case) -> bool:
    return case.times_transfers and not hides_transfers(case)
