"""One rank of one launch, from its start to its end: what it runs, what it records, how it fails."""

from __future__ import annotations

import itertools
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.measure.blocks import (
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
from ddpbench.measure.recorder import NullRecorder, StepRecorder
from ddpbench.records import (
    Block,
    Buckets,
    Held,
    LaunchDir,
    LaunchRequest,
    RankOutcome,
    RankStart,
    RecordWriteError,
    RecordWriter,
    Status,
)
from ddpbench.records.heartbeat import Heartbeat
from ddpbench.strategies import Replica
from ddpbench.worker.place import Place
from ddpbench.worker.rank.descent import train_to
from ddpbench.worker.rank.edges import Edges
from ddpbench.worker.rank.evaluation import evaluate
from ddpbench.worker.rank.snapshots import Saver, SnapshotError
from ddpbench.worker.rank.traffic import link_of
from ddpbench.worker.training.batches import in_memory
from ddpbench.worker.training.control import leave, meet
from ddpbench.worker.training.storage import fetched
from ddpbench.worker.training.training import DivergedError, StepLoop, Training, all_equal, checksum
from ddpbench.worker.verify.proof import Prover

EXIT_OK = 0
EXIT_NOT_OK = 1
EXIT_NO_RECORD = os.EX_IOERR
"""The rank could not write its records: its outcome stands nowhere but in its log."""

INSTRUMENTED_SHARE = 0.15
"""Instrumented steps take about this share of the timed steps' time."""


class Rank:
    """One rank's life."""

    def __init__(
        self, directory: LaunchDir, place: Place, heartbeat: Heartbeat, request: LaunchRequest | None = None
    ) -> None:
        """Without a `request` the one in the directory is read."""
        self.directory, self.place, self.heartbeat = directory, place, heartbeat
        self.request = request or LaunchRequest.read(directory.request)
        self.case = self.request.case
        self.host_clock = HostClock()
        self._params_checksum = ""
        self._final_loss: float | None = None
        self._peak_memory_bytes: int | None = None

    def run(self) -> int:
        """Runs to the end and returns the exit code. Never raises: what goes wrong is recorded."""
        started_ns = self.host_clock.now()
        try:
            writer = RecordWriter(self.directory.records(self.place.rank, self.place.attempt))
        except OSError:
            traceback.print_exc()
            return EXIT_NO_RECORD
        status: Status = "ok"
        error = error_type = ""
        try:
            with writer:
                try:
                    self._work(writer, started_ns)
                except RecordWriteError:
                    raise
                except BaseException as problem:
                    traceback.print_exc()
                    status, error = _classify(problem)
                    error_type = type(problem).__name__
                pulse = self.heartbeat.pulse
                writer.write(
                    RankOutcome(
                        status=status,
                        error=error,
                        error_type=error_type,
                        phase=pulse.phase if status != "ok" else "",
                        step=pulse.steps if status != "ok" else None,
                        params_checksum=self._params_checksum,
                        peak_memory_bytes=self._peak_memory_bytes,
                        final_loss=self._final_loss,
                        finished_ns=self.host_clock.now(),
                    )
                )
        except (RecordWriteError, OSError):
            traceback.print_exc()
            return EXIT_NO_RECORD
        return EXIT_OK if status == "ok" else EXIT_NOT_OK

    def _work(self, writer: RecordWriter, started_ns: int) -> None:
        self._pin()
        self.heartbeat.enter("building the model")
        device = self._device()
        training = Training(self.case, self.place, device, self.request.round)
        model = training.fresh_model()
        # Numbers only: whoever kept the parameters themselves would keep a model whole that is sharded next.
        sizes = [(each.numel(), each.element_size()) for each in model.parameters() if each.requires_grad]
        writer.write(
            RankStart(
                rank=self.place.rank,
                world_size=self.case.world_size,
                attempt=self.place.attempt,
                pid=os.getpid(),
                host=self.place.host,
                started_ns=started_ns,
                cores=tuple(sorted(os.sched_getaffinity(0))),
                loader_cores=self.place.loader_cores,
                threads=torch.get_num_threads(),
                device=str(device),
                torch_version=torch.__version__,
                parameters=sum(count for count, _ in sizes),
                gradient_bytes=sum(count * size for count, size in sizes),
            )
        )
        self.heartbeat.enter("meeting the other ranks")
        control = meet(self.case, self.place, uses_backend=training.strategy.uses_backend, device=device)
        if self.request.purpose == "proof":
            self._prove(writer, training, control)
        else:
            self._measure(writer, training, model, control)
        self.heartbeat.enter("finishing")
        leave(control)

    def _pin(self) -> None:
        if self.place.cores:
            os.sched_setaffinity(0, self.place.cores)
        torch.set_num_threads(self.case.threads_per_rank)

    def _device(self) -> torch.device:
        if self.case.device != "cuda":
            return torch.device("cpu")
        torch.cuda.set_device(self.place.local_rank)
        return torch.device("cuda", self.place.local_rank)

    def _prove(self, writer: RecordWriter, training: Training, control: Control) -> None:
        self.heartbeat.enter("proof")
        failed: list[str] = []
        for record in Prover(training, control, self.heartbeat.beat).run():
            writer.write(record)
            if record.kind == "proof" and not record.passed:
                error = f"error {record.error:.2g}, allowed {record.tolerance:.2g}"
                failed.append(f"{record.compared} ({record.dtype}): {error}")
        if failed:
            raise DivergedError(f"the strategy does not train as one process does: {'; '.join(failed)}")

    def _measure(
        self, writer: RecordWriter, training: Training, model: torch.nn.Module, control: Control
    ) -> None:
        distributed = dist.is_initialized() and training.strategy.uses_backend
        batches = self._batches(training)
        samples = training.share
        pacer = training.workload.pacer
        edges = Edges(pacer, link_of(self.case, self.place))
        null = NullRecorder()
        replica = training.replica(model, null, distributed=distributed)
        loop = StepLoop(replica, batches, null, self.heartbeat, training.precision, pacer=pacer)
        clock: Clock = CudaClock() if self.case.device == "cuda" else self.host_clock
        period = training.strategy.period(training.options)
        stepper = Stepper(loop.step, samples, clock, control, period, edges.at_edge)
        self.heartbeat.enter("warm-up")
        least = TRAINING if self.case.compute == "real" else REPLAYING
        warmup = warm_up(stepper, replica.ready, self.request.measured_s, least)
        loop.check_loss()
        replica.notes()  # the warm-up's
        writer.write(warmup)
        _reset_peak_memory(self.case.device)
        self.heartbeat.enter("timed steps")
        timed_ns = 0
        for block in timed_blocks(stepper, self.request.measured_s, warmup.step_ns, least):
            loss = loop.check_loss()
            self._final_loss = loss if training.workload.has_loss and replica.knows_loss else None
            writer.write(block, *edges.records(block), *replica.notes())
            timed_ns += block.end_ns - block.start_ns
            step_ns = (block.end_ns - block.start_ns) / block.steps
        if training.shards_itself:
            training.check_even(control)
        if training.strategy.replicas_equal and self.place.processes > 1:
            self._params_checksum = checksum(model)
            if not all_equal(self._params_checksum, control, self.place.processes):
                raise DivergedError("the ranks' parameters differ after the timed steps")
        self._peak_memory_bytes = _peak_memory(self.case.device)  # the timed steps'; a second replica follows
        self.heartbeat.enter("instrumented steps")
        replica.close()
        recorder = StepRecorder(clock)
        replica = training.replica(model, recorder, distributed=distributed)
        loop = StepLoop(replica, batches, recorder, self.heartbeat, training.precision, pacer=pacer)
        again = self._warm_instrumented(loop, recorder, stepper)
        numbers = itertools.count()

        def instrumented_step() -> None:
            recorder.begin_step(next(numbers))
            loop.step()
            recorder.end_step()

        wanted = round(timed_ns * INSTRUMENTED_SHARE / step_ns)
        stepper = Stepper(instrumented_step, samples, clock, control, period)
        block = run_block(stepper, max(least.instrumented, wanted), 0, "instrumented")
        records = [record for record in recorder.records() if record.step > 0]  # step 0 follows the barrier
        buckets = replica.bucket_bytes()
        made = [Buckets(bytes=tuple(buckets))] if buckets is not None else []
        writer.write(again, block, *made, *records, self._held(replica, batches, training))
        loop.check_loss()
        if training.strategy.whole_state:
            if self.case.evaluation:
                self.heartbeat.enter("evaluation")
                beat = self.heartbeat.beat
                writer.write(*evaluate(replica, batches, stepper, self.request.measured_s, beat))
            if self.case.checkpoint and (training.strategy.replicas_equal or self.case.world_size == 1):
                self._save(writer, replica, clock, control)
        replica.close()
        goal = self.request.goal
        if goal is not None and training.strategy.promise(training.options) != "nothing":
            self.heartbeat.enter("training to a loss")
            del replica, loop  # there is another model's state to be held now
            batches, beats = self._batches(training), self.heartbeat
            for part in train_to(goal, training, batches, clock=clock, control=control, heartbeat=beats):
                writer.write(part)

    def _batches(self, training: Training) -> Iterator[tuple[Any, Any]]:
        """Return the rank's batches from their first on, as the case wants them."""
        batches = training.batches()
        if self.case.data == "memory":
            batches = in_memory(batches, self.heartbeat.beat)
        if store := os.environ.get("DDPBENCH_STORAGE"):
            batches = fetched(batches, store, training.batch_bytes())
        return batches

    def _held(self, replica: Replica, batches: Any, training: Training) -> Held:
        """Return what the rank holds of the model's state between a step's backward and its update: one more step."""
        replica.gradients_of(*(next(batches) if replica.draws else (None, None)))
        parameters, gradients, optimizer = replica.held_bytes()
        training.precision.update(replica)
        return Held(parameter_bytes=parameters, gradient_bytes=gradients, optimizer_bytes=optimizer)

    def _save(self, writer: RecordWriter, replica: Replica, clock: Clock, control: Control) -> None:
        """Snapshots; of ranks that train models of their own there is no common state to save."""
        self.heartbeat.enter("snapshots")
        saver = Saver(
            model=replica.job.model,
            optimizer=replica.optimizer,
            folder=self.directory.snapshots(self.case.checkpoint_dir),
            rank=self.place.rank,
            processes=self.place.processes,
            clock=clock,
            control=control,
            on_snapshot=self.heartbeat.beat,
        )
        writer.write(*saver.run())

    def _warm_instrumented(self, loop: StepLoop, recorder: StepRecorder, stepper: Stepper) -> Block:
        """Return a new replica's warm-up: its one-time work, again, and two steps more. Nothing of it is recorded."""
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
        recorder.records()
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


def _classify(problem: BaseException) -> tuple[Status, str]:
    """Return a failure's status, and a sentence on it that says what to do."""
    text = str(problem).strip().splitlines()
    first = text[0] if text else type(problem).__name__
    if isinstance(problem, DivergedError):
        return "diverged", str(problem)
    if isinstance(problem, SnapshotError):
        return "failed", str(problem)
    lowered = str(problem).lower()
    no_memory = ("can't allocate memory", "cannot allocate memory", "out of memory")
    if isinstance(problem, MemoryError | torch.OutOfMemoryError) or any(
        words in lowered for words in no_memory
    ):
        return "oom", f"out of memory: use a smaller batch or model, or fewer ranks a machine ({first})"
    return "failed", f"{type(problem).__name__}: {first}"


def _reset_peak_memory(device: str) -> None:
    """What was needed only to begin, such as a whole model that is then sharded, does not count."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # then the peak includes what was shared at the start


def _peak_memory(device: str) -> int | None:
    """Return the highest memory use so far, bytes: allocated on the GPU, or resident on the CPU."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def exit_now(code: int) -> None:
    """Flushes and ends the process at once: gloo's threads may abort an orderly interpreter exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
