"""Measure a workload's profile in a separate process: a step's spans, and when gradients become ready.

Noting when a gradient is ready costs time, so spans come from steps without notes, and the cost of earlier notes is
subtracted from each time.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from scipy.special import stdtrit

from ddpbench.machine.hardware import read_hardware
from ddpbench.measure.blocks import AloneControl, Stepper, warm_up
from ddpbench.measure.clock import Clock, CudaClock, HostClock, Mark
from ddpbench.measure.recorder import StepRecorder
from ddpbench.records import StepRecord
from ddpbench.records.heartbeat import PAGE_BYTES, Heartbeat
from ddpbench.spec import Case
from ddpbench.strategies.trees import copied, tensors
from ddpbench.worker.device import device_of
from ddpbench.worker.place import JobPlace
from ddpbench.worker.training.batches import in_memory
from ddpbench.worker.training.training import StepLoop, Training
from ddpbench.worker.verify.inspection import error_in_words
from ddpbench.workloads.profile import Parameter, Profile, Provenance, Seconds

WARMUP_S = 10.0
"""Measured time in seconds that is passed to `warm_up`.

The length of the warm-up depends on this time, as described at `ddpbench.measure.blocks.warm_up`.
"""
LEAST_STEPS = 30
ENOUGH_S = 5.0
"""Time to measure in seconds if no number of steps is given; from `LEAST_STEPS` to `MOST_STEPS` steps are made."""
MOST_STEPS = 1000
BLOCK_S = 0.4
"""Approximate time in seconds after which the clock's marks are resolved."""


class UnprofiledError(Exception):
    """The workload cannot be profiled. The message says why."""


@dataclass(slots=True)
class Spans:
    """Durations of steps without notes, and times at which gradients were ready in steps with notes (seconds)."""

    step_s: list[float]
    forward_s: list[float]
    backward_s: list[float]
    optimizer_s: list[float]
    noted_backward_s: list[float]
    ready: list[list[tuple[int, float]]]
    """Pairs (parameter's number, time since backward's start) in the order of arrival, for each step with notes."""


class Profiler:
    """A model in training. Steps with and without notes alternate, and both are measured."""

    def __init__(self, training: Training, clock: Clock) -> None:
        if training.workload.owns_step:
            raise UnprofiledError(
                "it has its own step(), but a step of a replay is one forward, one backward and one update: "
                "profile a class with loss() and without step()"
            )
        self._training, self._clock = training, clock
        self._model = training.fresh_model()
        trained = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.parameters = [parameter for _, parameter in trained]
        self._recorder = StepRecorder(clock)
        replica = training.replica(self._model, self._recorder, distributed=False)
        batches = map(copied, in_memory(training.batches(), lambda: None))
        first = next(batches)
        self.sample_bytes = sum(t.numel() * t.element_size() for t in tensors(first)) // training.samples
        heartbeat = Heartbeat(bytearray(PAGE_BYTES), 0)
        self._loop = StepLoop(replica, batches, self._recorder, heartbeat, training.precision)
        self.spans = Spans([], [], [], [], [], [])

    def warm_up(self) -> float:
        """Train until step times are steady. Return the time of a step (seconds)."""
        stepper = Stepper(lambda: self._step(-1), self._training.samples, self._clock, AloneControl())
        warm = warm_up(stepper, self._loop.replica.ready, WARMUP_S)
        self._recorder.forget()
        self._loop.check_loss()
        return warm.step_ns / 1e9

    def block(self, pairs: int) -> None:
        """Measure `pairs` pairs of steps, with notes and without, after one step that is not measured."""
        self._clock.anchor()
        notes: list[list[tuple[int, Mark]] | None] = []
        self._step(-1)
        for number in range(pairs):
            for noted in (False, True) if number % 2 == 0 else (True, False):
                if noted:
                    notes.append(self._noted_step(len(notes)))
                else:
                    self._step(len(notes))
                    notes.append(None)
        resolved = [
            None if note is None else self._clock.resolve([mark for _, mark in note]) for note in notes
        ]
        steps = [r for r in self._recorder.records() if isinstance(r, StepRecord) and r.step >= 0]
        for step, note, moments in zip(steps, notes, resolved, strict=True):
            self._keep(step, note, moments)
        self._loop.check_loss()

    def forget(self) -> None:
        """Discard all measurements so far."""
        self.spans = Spans([], [], [], [], [], [])

    def profile(self) -> Profile:
        """Return the profile computed from all steps measured so far.

        Raises:
            UnprofiledError: a parameter got no gradient in some step.
        """
        case, spans = self._training.case, self.spans
        moments = ready_moments(spans, len(self.names))
        pairs = zip(self.names, moments, strict=True)
        if never := [name for name, seen in pairs if len(seen) < len(spans.ready)]:
            more = f" and {len(never) - 1} more" if len(never) > 1 else ""
            raise UnprofiledError(
                f"parameter {never[0]}{more} got no gradient in some step, but in a replay every parameter gets "
                "one in every step: freeze parameters that the loss does not use (requires_grad = False)"
            )
        end = statistics.fmean(spans.backward_s)
        return Profile(
            source="measured",
            workload=case.workload,
            local_batch=case.local_batch,
            device=torch.cuda.get_device_name() if case.device == "cuda" else "cpu",
            precision=case.precision,
            provenance=Provenance(
                machine=read_hardware().cpu_model,
                torch=torch.__version__,
                threads=torch.get_num_threads(),
                date=datetime.now(UTC).date().isoformat(),
            ),
            sample_bytes=self.sample_bytes,
            steps=len(spans.backward_s),
            forward_s=interval(spans.forward_s),
            backward_s=interval(spans.backward_s),
            optimizer_s=interval(spans.optimizer_s),
            parameters=tuple(
                Parameter(
                    name=name,
                    shape=tuple(parameter.shape),
                    dtype=str(parameter.dtype).removeprefix("torch."),
                    ready_s=interval(seen, end),
                )
                for name, parameter, seen in zip(self.names, self.parameters, moments, strict=True)
            ),
        )

    def _step(self, number: int) -> None:
        self._recorder.begin_step(number)
        self._loop.step()
        self._recorder.end_step()

    def _noted_step(self, number: int) -> list[tuple[int, Mark]]:
        noted: list[tuple[int, Mark]] = []
        mark = self._clock.mark

        def note_of(place: int) -> Any:
            return lambda _parameter: noted.append((place, mark()))

        handles = [
            parameter.register_post_accumulate_grad_hook(note_of(place))  # type: ignore[no-untyped-call]
            for place, parameter in enumerate(self.parameters)
        ]
        self._step(number)
        for handle in handles:
            handle.remove()
        return noted

    def _keep(self, step: StepRecord, note: list[tuple[int, Mark]] | None, moments: list[int] | None) -> None:
        spans = {name: (start, end) for name, start, end in step.spans}
        start, end = spans["backward"]
        seen = self.spans
        if note is None or moments is None:
            seen.step_s.append((step.end_ns - step.start_ns) / 1e9)
            seen.backward_s.append((end - start) / 1e9)
            seen.forward_s.append((spans["forward"][1] - spans["forward"][0]) / 1e9)
            seen.optimizer_s.append((spans["optimizer"][1] - spans["optimizer"][0]) / 1e9)
            return
        seen.noted_backward_s.append((end - start) / 1e9)
        pairs = zip(note, moments, strict=True)
        seen.ready.append([(place, (moment - start) / 1e9) for (place, _), moment in pairs])


def ready_moments(spans: Spans, parameters: int) -> list[list[float]]:
    """Return the times at which each parameter's gradient was ready, one per step (seconds since backward's start).

    The cost of earlier notes is subtracted: each costs its share of the additional time of a backward with notes.
    """
    longer = statistics.fmean(spans.noted_backward_s) - statistics.fmean(spans.backward_s)
    cost = longer / parameters
    moments: list[list[float]] = [[] for _ in range(parameters)]
    for step in spans.ready:
        for place, (number, moment) in enumerate(step, start=1):
            moments[number].append(moment - place * cost)
    return moments


def interval(values: Sequence[float], end: float = math.inf) -> Seconds:
    """Return the mean of `values`, clipped to the range from 0 to `end`, and the mean's 95 % t-interval."""
    mean = min(max(statistics.fmean(values), 0.0), end)
    if len(values) < 2:
        return Seconds(mean=mean)
    half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
    return Seconds(mean=mean, low=max(mean - half, 0.0), high=mean + half)


def measure(training: Training, steps: int | None) -> Profile:
    """Measure the profile of a case's workload in `steps` steps without notes; if None, for about `ENOUGH_S`.

    Raises:
        UnprofiledError: the workload makes its own steps, or a parameter got no gradient in some step.
    """
    case = training.case
    clock: Clock = CudaClock() if case.device == "cuda" else HostClock()
    profiler = Profiler(training, clock)
    step_s = profiler.warm_up()
    began = time.monotonic()
    spans = profiler.spans
    while len(spans.backward_s) < (steps or LEAST_STEPS) or (steps is None and not _enough(spans, began)):
        left = (steps or MOST_STEPS) - len(spans.backward_s)
        profiler.block(min(left, max(1, round(BLOCK_S / 2 / step_s))))
    return profiler.profile()


def _enough(spans: Spans, began: float) -> bool:
    return time.monotonic() - began >= ENOUGH_S or len(spans.backward_s) >= MOST_STEPS


def profile_workload(case: Case, *, steps: int | None, cores: Sequence[int]) -> dict[str, Any]:
    """Profile a case's workload on these cores. Return `{"profile": text}`, or `{"problem": sentence}` if it failed."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(case.threads_per_rank)
    alone = JobPlace(rank=0, processes=1, local_rank=0, attempt=0, cores=(), loader_cores=())
    device = device_of(case)
    try:
        return {"profile": measure(Training(case, alone, device), steps).dumps()}
    except UnprofiledError as problem:
        return {"problem": f"{case.workload}: {problem}"}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"problem": f"{case.workload}: profiling it failed: {error_in_words(error)}"}
