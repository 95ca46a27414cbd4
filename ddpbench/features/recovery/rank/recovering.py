"""Train with snapshots in a rank: fail once, as planned, then continue from the last snapshot.

A gang is the ranks that torchrun starts together. The first gang measures step times and plans the failure. Gangs share
a folder with the plan, the snapshots, and files that mark past events.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpbench.features.recovery.rank.snapshots import Snapshots
from ddpbench.measure.blocks import Control
from ddpbench.measure.clock import HostClock
from ddpbench.measure.recorder import NullRecorder
from ddpbench.records import Failure, Gang, LaunchDir, LaunchRequest, RecordWriter, Snapshot, Trained
from ddpbench.records.files import create_file, write_atomically
from ddpbench.records.heartbeat import Heartbeat
from ddpbench.removal import is_own_folder, remove_tree
from ddpbench.spec import Case
from ddpbench.spec.recoveries import KEPT_SNAPSHOTS, window_of
from ddpbench.worker.rank.checkpoints import CheckpointError, sentence
from ddpbench.worker.training.batches import worker_settings
from ddpbench.worker.training.positions import Order, Runs, Share, batches_from
from ddpbench.worker.training.precision import precision_of
from ddpbench.worker.training.randomness import random_bytes, set_random_bytes
from ddpbench.worker.training.training import DivergedError, StepLoop, Training, all_equal, checksum

AWAY_S = 120.0
"""Seconds for which the other ranks keep training after a node has been asked to return."""
NOTED_S = 0.25
"""The longest interval in seconds between notes of steps. What a killed rank did after its last note stays unknown."""
AGENT = "DDPBENCH_AGENT"
"""The variable with the process id of the agent that started this rank."""
NODE = "DDPBENCH_NODE"
"""The variable with the number of this rank's agent among the agents."""
PLANNED = "a failure that was planned"


class PlannedError(RuntimeError):
    """The error that `recovery = "exception"` raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailurePlan:
    """The numbers of the steps after which training fails, a node returns, and training ends."""

    fails: int
    joins: int | None
    """The step after which a node that left is asked to return; None if none leaves."""
    ends: int

    @classmethod
    def of(cls, case: Case, step_s: float, number: int) -> FailurePlan:
        """Return the plan of a launch: a few snapshots, and then a failure at a step drawn from the seed and `number`.

        At least two snapshots before the failure each replace an older one. A launch without a failure trains longer,
        through every step of the others in its round.
        """
        window, every = window_of(step_s), case.snapshot_every
        drawn = random.Random(f"{case.seed} {number}").randint(1, every)
        before = max(KEPT_SNAPSHOTS + 2, -(-window // every)) * every
        fails = before + (every if case.recovery == "snapshot" else drawn)
        joins = fails + 2 * window if case.recovery == "leave" else None
        ends = (joins or fails) + 2 * window
        return cls(
            fails=fails, joins=joins, ends=ends + (ends // 4 if case.recovery == "uninterrupted" else 0)
        )


class Marks:
    """The folder that all gangs of a launch share, with the plan and files that mark past events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan = folder / "plan.json"

    @property
    def planned(self) -> bool:
        """True once the first gang has planned a failure."""
        return is_own_folder(self.folder) and self._plan.is_file()

    def write(self, plan: FailurePlan) -> None:
        """Create the folder and write the plan into it.

        Raises:
            OSError: the plan cannot be written, or the folder exists already.
        """
        self.folder.mkdir(mode=0o700)
        write_atomically(self._plan, json.dumps(asdict(plan)))

    def read(self) -> FailurePlan:
        """Return the first gang's plan.

        Raises:
            CheckpointError: the folder belongs to another user.
        """
        if not is_own_folder(self.folder):
            raise CheckpointError(
                sentence(self.folder, FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
            )
        return FailurePlan(**json.loads(self._plan.read_bytes()))

    def first(self, name: str) -> bool:
        """Make the mark `name`, and return whether it did not exist before."""
        try:
            create_file(self.folder / name).close()
        except FileExistsError:
            return False
        return True

    def next_gang(self) -> int:
        """Return a number for a gang that is starting. Each number is returned only once."""
        number = 0
        while not self.first(f"gang-{number}"):
            number += 1
        return number


def train(
    training: Training,
    control: Control,
    *,
    directory: LaunchDir,
    request: LaunchRequest,
    step_s: float | None,
    times: tuple[int, int, int],
    heartbeat: Heartbeat,
    writer: RecordWriter,
) -> str:
    """Train to the end of the plan, which the first gang makes, and return the parameters' checksum.

    `step_s` is the measured time of a step in seconds; None in later gangs. `times` is explained in `Recovering`.

    Raises:
        DivergedError: the ranks' parameters differ at the end, or the loss is not finite.
        CheckpointError: the plan or a snapshot cannot be written. Raised on all ranks.
        PlannedError: the planned failure, if it is an exception.
    """
    marks = Marks(directory.checkpoints(training.case.checkpoint_dir, request.run_id))
    if step_s is not None:
        _plan_the_failure(training, control, marks, FailurePlan.of(training.case, step_s, request.round))
    return Recovering(
        training,
        control,
        marks,
        ranks=request.case.world_size,
        times=times,
        heartbeat=heartbeat,
        writer=writer,
    ).run()


def _plan_the_failure(training: Training, control: Control, marks: Marks, plan: FailurePlan) -> None:
    """Let rank 0 write the plan of the failure.

    Raises:
        CheckpointError: the plan cannot be written. Raised on all ranks.
    """
    problem: OSError | None = None
    if training.place.rank == 0:
        try:
            remove_tree(marks.folder, private=True)
            marks.write(plan)
        except OSError as error:
            problem = error
    if control.agree(int(problem is not None)):
        raise CheckpointError(sentence(marks.folder, problem or OSError("see rank 0's log"))) from problem


class Recovering:
    """The training of one rank from the last snapshot, or from the beginning, to the end of the plan."""

    def __init__(
        self,
        training: Training,
        control: Control,
        marks: Marks,
        *,
        ranks: int,
        times: tuple[int, int, int],
        heartbeat: Heartbeat,
        writer: RecordWriter,
    ) -> None:
        """`ranks` is the full number of ranks, counted while no node is away.

        `times` has the times at which this rank started, entered the rendezvous, and completed it (ns, the host's
        clock).
        """
        self._ranks = ranks
        self._training, self._control, self._marks = training, control, marks
        self._started_ns, self._meeting_ns, self._met_ns = times
        self._heartbeat, self._writer = heartbeat, writer
        self._case, self._place = training.case, training.place
        self._clock = HostClock()
        self._snapshots = Snapshots(marks.folder)
        self._runs: list[Runs] = []
        self._ends_ns: list[int] = []
        self._losses: list[float] = []
        self._start_ns = self._gang = self._called_ns = 0
        self._first = self._samples_before = 0
        """This gang's first step, and the number of samples trained on before it."""
        self._written = 0
        """Bytes of the last snapshot."""

    def run(self) -> str:
        """Train to the end of the plan; return the checksum of the parameters.

        Raises:
            DivergedError: the ranks' parameters differ at the end, or the loss is not finite.
            CheckpointError: a snapshot cannot be written.
            PlannedError: the planned failure, if it is an exception.
        """
        self._heartbeat.enter("training with snapshots")
        check(self._training)
        plan = self._marks.read()
        loop, made = self._resumed()
        victim = self._is_victim()
        self._start_ns = self._clock.now()
        try:
            for step in itertools.takewhile(self._goes_on(plan, made), itertools.count(made)):
                loop.step()
                self._losses.append(float(f"{loop.check_loss():.9g}"))
                self._ends_ns.append(self._clock.now())
                made = step + 1
                if made % self._case.snapshot_every == 0:
                    self._note(made)
                    self._save(made, loop, plan)
                    self._start_ns = self._clock.now()
                elif self._ends_ns[-1] - self._start_ns > NOTED_S * 1e9:
                    self._note(made)
                if victim and made == plan.fails and self._marks.first("failed"):
                    self._note(made)
                    self._fail(made)
                if made == plan.joins:
                    self._called_ns = self._clock.now()
                    if self._place.rank == 0:
                        self._marks.first("join")
        except BaseException:
            self._note(made)
            raise
        self._note(made)
        return _same_on_all_ranks(loop, self._control, self._place.processes)

    def _goes_on(self, plan: FailurePlan, first: int) -> Callable[[int], bool]:
        """Return a function that says whether a gang makes its next step.

        While a node is away, training continues until torchrun stops the ranks; the next gang trains some more steps.
        """
        away = self._place.processes < self._ranks
        ends = max(plan.ends, first + plan.ends - (plan.joins or plan.ends))

        def goes_on(step: int) -> bool:
            if away and self._called_ns and self._clock.now() - self._called_ns > AWAY_S * 1e9:
                raise RuntimeError(f"the node that left did not come back within {AWAY_S:g} s")
            return away or step < ends

        return goes_on

    def _resumed(self) -> tuple[StepLoop, int]:
        """Return the step loop, resumed from the newest snapshot if any, and the steps made before."""
        training, case, place = self._training, self._case, self._place
        found, unreadable = self._snapshots.newest() if place.rank == 0 else (None, ())
        found = self._control.agree(-1 if found is None else found)
        state = self._snapshots.read(found) if found >= 0 else None
        self._gang = self._control.agree(self._marks.next_gang() if place.rank == 0 else 0)
        precision = precision_of(case.precision, training.device)
        building_ns = self._clock.now()
        model = training.fresh_model(precision=precision)
        model_ns = self._clock.now() - building_ns
        if state is not None:
            model.load_state_dict(state["model"])
        distributed = dist.is_initialized() and training.strategy.uses_backend
        building_ns = self._clock.now()
        replica = training.replica(model, NullRecorder(), distributed=distributed, precision=precision)
        built_ns = model_ns + self._clock.now() - building_ns
        step = samples = 0
        if state is not None:
            replica.optimizer.load_state_dict(state["optimizer"])
            step, samples = state["step"], state["samples"]
        self._first, self._samples_before = step, samples
        loop = StepLoop(replica, self._batches(samples), NullRecorder(), self._heartbeat, precision)
        if state is not None and place.rank < len(state["generators"]):
            set_random_bytes(
                state["generators"][place.rank]
            )  # last, as building the loop may have drawn random numbers
        self._control.agree(0)
        self._writer.write(
            Gang(
                number=self._gang,
                world_size=place.processes,
                noticed_ns=_moment("NOTICED"),
                stopped_ns=_moment("STOPPED"),
                placed_ns=_moment("PLACED"),
                entered_ns=_variable_ns(os.environ, "DDPBENCH_ENTERED_NS"),
                started_ns=self._started_ns,
                meeting_ns=self._meeting_ns,
                met_ns=self._met_ns,
                ready_ns=self._clock.now(),
                built_ns=built_ns,
                step=step,
                samples=samples,
                unreadable=unreadable,
            )
        )
        return loop, step

    def _batches(self, first: int) -> Iterator[tuple[Any, Any]]:
        training, case = self._training, self._case
        dataset: Any = getattr(training.loader, "dataset")  # noqa: B009 - `check` has made sure of it
        batches = batches_from(
            dataset,
            Order(len(dataset), case.seed),
            Share(
                first=first,
                rank=self._place.rank,
                world_size=self._place.processes,
                local_batch=case.local_batch,
            ),
            device=training.device,
            dtype=training.dtype,
            collate=training.workload.collate,
            loader=worker_settings(case, self._place.loader_cores),
        )
        for runs, batch in batches:
            self._runs.append(runs)
            yield (batch, None) if training.workload.whole_batches else batch

    def _note(self, made: int) -> None:
        if not self._ends_ns:
            return
        count = len(self._ends_ns)
        runs = [run for step in self._runs[:count] for run in step]
        self._writer.write(
            Trained(
                gang=self._gang,
                first=made - count,
                start_ns=self._start_ns,
                ends_ns=tuple(self._ends_ns),
                losses=tuple(self._losses),
                samples=tuple(runs),
            )
        )
        del self._runs[:count]
        self._start_ns = self._ends_ns[-1]
        self._ends_ns.clear()
        self._losses.clear()

    def _save(self, made: int, loop: StepLoop, plan: FailurePlan) -> None:
        """Save a snapshot: rank 0 writes it, and the others wait.

        Raises:
            CheckpointError: the snapshot cannot be written. Raised on all ranks.
        """
        start_ns = self._clock.now()
        generators = _generators(self._control, self._place.processes)
        number, written, failure = 0, 0, None
        if self._place.rank == 0:
            torn = self._case.recovery == "snapshot" and made == plan.fails and self._marks.first("failed")
            if torn:
                self._writer.write(self._failure(made))
            state = {
                "model": loop.replica.job.model.state_dict(),
                "optimizer": loop.replica.optimizer.state_dict(),
                "step": made,
                "samples": self._samples(made),
                "generators": generators,
            }
            try:
                written = self._snapshots.write(made, state, self._kill_half_way if torn else _nothing)
            except (OSError, RuntimeError) as error:
                failure, number = error, 1
        if self._control.agree(number):
            raise CheckpointError(
                sentence(self._marks.folder, failure or OSError("see rank 0's log"))
            ) from failure
        self._written = written
        self._writer.write(
            Snapshot(gang=self._gang, step=made, bytes=written, start_ns=start_ns, end_ns=self._clock.now())
        )
        self._heartbeat.beat()

    def _samples(self, made: int) -> int:
        return self._samples_before + (made - self._first) * self._place.processes * self._case.local_batch

    def _is_victim(self) -> bool:
        """Return whether this rank fails: the last one, or the first rank of the last agent."""
        kind = self._case.recovery
        if kind in ("agent", "leave"):
            return os.environ.get(NODE) == str(self._case.agents - 1) and self._place.local_rank == 0
        return kind in ("SIGKILL", "SIGSTOP", "exception") and self._place.rank == self._place.processes - 1

    def _failure(self, made: int) -> Failure:
        return Failure(gang=self._gang, what=self._case.recovery, step=made, at_ns=self._clock.now())

    def _fail(self, made: int) -> None:
        """Fail as planned.

        Raises:
            PlannedError: the planned failure is an exception.
        """
        self._writer.write(self._failure(made))
        kind = self._case.recovery
        if kind == "exception":
            raise PlannedError(PLANNED)
        if kind in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), signal.Signals[kind])
            return
        os.kill(int(os.environ[AGENT]), signal.SIGKILL if kind == "agent" else signal.SIGTERM)
        time.sleep(self._case.collective_timeout)  # until the agent ends this rank

    def _kill_half_way(self, written: int) -> None:
        if written * 2 > self._written:
            os.kill(os.getpid(), signal.SIGKILL)


def _generators(control: Control, processes: int) -> list[torch.Tensor]:
    own = random_bytes()
    if processes == 1:
        return [own]
    gathered = [torch.empty_like(own) for _ in range(processes)]
    dist.all_gather(gathered, own, group=getattr(control, "group", None))
    return gathered


def _same_on_all_ranks(loop: StepLoop, control: Control, processes: int) -> str:
    """Return the checksum of all parameters.

    Raises:
        DivergedError: ranks have different checksums.
    """
    digest = checksum(loop.replica.job.model)
    if not all_equal(digest, control, processes):
        raise DivergedError("the ranks' parameters differ after the training with snapshots")
    return digest


def check(training: Training) -> None:
    """Check that the training's entire state can be saved and resumed.

    Raises:
        ValueError: it cannot; the message says why.
    """
    case, strategy = training.case, training.strategy
    whole = strategy.whole_state and (strategy.replicas_equal or case.world_size == 1)
    if not whole or training.place.processes != case.world_size or training.samples != case.local_batch:
        raise ValueError(
            f"recovery needs the complete model on every rank, which this case of {case.strategy} does not have: "
            'set recovery = "off"'
        )
    if training.shards_itself or training.workload.owns_step:
        raise ValueError(
            f"training of {case.workload} cannot resume in the middle of its data: use a map-style dataset "
            'without loader() and step(), or set recovery = "off"'
        )


def _nothing(_written: int) -> None:
    pass


def _variable_ns(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else None


def _moment(name: str) -> int | None:
    """Return when the agent recorded the event (ns, the host's clock); None if unknown."""
    return _variable_ns(os.environ, f"DDPBENCH_AGENT_{name}_NS")
