"""A rank of one launch from start to end, with its records and the handling of its failures."""

from __future__ import annotations

import os
import resource
import traceback
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist

from ddpbench import user_files
from ddpbench.causes import environments_part, text_of
from ddpbench.errors import OutputError
from ddpbench.installed import loaded
from ddpbench.measure.blocks import AloneControl, Control
from ddpbench.measure.clock import HostClock
from ddpbench.records import (
    LaunchDir,
    LaunchRequest,
    Met,
    Proof,
    RankOutcome,
    RankStart,
    RecordWriteError,
    RecordWriter,
    Status,
)
from ddpbench.records.heartbeat import Heartbeat
from ddpbench.records.writer import leave_forked
from ddpbench.side_code import shared_module
from ddpbench.spec import OF_FRAMEWORKS, Case
from ddpbench.spec.case import BASE
from ddpbench.worker.device import device_of
from ddpbench.worker.place import JobPlace
from ddpbench.worker.rank.checkpoints import CheckpointError
from ddpbench.worker.rank.measuring import Known, Measurement
from ddpbench.worker.training.asked_group import formed_when_asked
from ddpbench.worker.training.control import leave, meet
from ddpbench.worker.training.training import DivergedError, Training
from ddpbench.worker.training.types import names_of, types_in
from ddpbench.worker.variables import complete
from ddpbench.worker.verify.proof import Prover
from ddpbench.worker.verify.refusals import failure, refusal
from ddpbench.workloads import is_import_path

EXIT_OK = 0
EXIT_NOT_OK = 1
EXIT_NO_RECORD = os.EX_IOERR
"""Exit code of a rank that could not write its records, so that its outcome is only in its log."""

_OF_FEATURES = loaded("rank")
"""Optional features that train after the measurement. They are imported here so that no launch waits for the import."""


class SharedCodeError(Exception):
    """A module was imported from outside the code of this side of a comparison. The message names the module."""


class Rank:
    """A rank of one launch, from its start to its end."""

    def __init__(
        self,
        directory: LaunchDir,
        place: JobPlace,
        heartbeat: Heartbeat,
        request: LaunchRequest | None = None,
    ) -> None:
        """Prepare the rank. If `request` is None, read the launch's request from `directory`."""
        self.directory, self.place, self.heartbeat = directory, place, heartbeat
        self.request = request or LaunchRequest.read(directory.request)
        case = self.request.case
        self._planned = case
        self.case = case if case.recovery == "off" else _of_as_many(case, place.processes)
        self.host_clock = HostClock()
        self._known = Known()
        self._training: Training | None = None

    def run(self) -> int:
        """Run the rank to its end and return its exit code. Failures are recorded instead of raised."""
        started_ns = self.host_clock.now()
        self.heartbeat.end_forks(leave_forked)
        try:
            writer = RecordWriter(self.directory.records(self.place.rank, self.place.attempt))
        except (OSError, OutputError):
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
                    status, error = self._classify(problem)
                    error_type = type(problem).__name__
                pulse = self.heartbeat.pulse
                writer.write(
                    RankOutcome(
                        status=status,
                        error=error,
                        error_type=error_type,
                        phase=pulse.phase if status != "ok" else "",
                        step=pulse.steps if status != "ok" else None,
                        params_checksum=self._known.params_checksum,
                        peak_memory_bytes=self._known.peak_memory_bytes,
                        final_loss=self._known.final_loss,
                        cpu_s=_cpu_s(),
                        finished_ns=self.host_clock.now(),
                        threads=torch.get_num_threads(),
                        changes=self._training.changes if self._training is not None else (),
                    )
                )
        except (RecordWriteError, OSError):
            traceback.print_exc()
            return EXIT_NO_RECORD
        return EXIT_OK if status == "ok" else EXIT_NOT_OK

    def _work(self, writer: RecordWriter, started_ns: int) -> None:
        self._pin()
        self.heartbeat.enter("building the model")
        complete(os.environ, self.place, self.case)
        device = device_of(self.case, self.place.local_rank)
        training = self._training = Training(self.case, self.place, device, self.request.round)
        model = training.fresh_model()
        # Keep sizes only, because references to the parameters would keep the unsharded model in memory.
        sizes = [(each.numel(), each.element_size()) for each in model.parameters() if each.requires_grad]
        types = names_of(types_in(model.parameters()))
        used, faster = _interfaces(self.case, training.strategy.engine)
        writer.write(
            RankStart(
                rank=self.place.rank,
                world_size=self._planned.world_size,
                attempt=self.place.attempt,
                pid=os.getpid(),
                host=self.place.host,
                started_ns=started_ns,
                asked_ns=_told_ns("DDPBENCH_ASKED_NS"),
                entered_ns=_told_ns("DDPBENCH_ENTERED_NS"),
                cores=tuple(sorted(os.sched_getaffinity(0))),
                loader_cores=self.place.loader_cores,
                threads=torch.get_num_threads(),
                device=str(device),
                torch_version=torch.__version__,
                parameters=sum(count for count, _ in sizes),
                gradient_bytes=sum(count * size for count, size in sizes),
                largest_gradient_bytes=max((count * size for count, size in sizes), default=0),
                types=types,
                loader_workers=getattr(training.loader, "num_workers", None),
                own_step=training.workload.owns_step,
                case_id=self._planned.case_id,
                round=self.request.round,
                ranks=self.place.processes,
                run_id=self.request.run_id,
                gloo_interface=used,
                faster_interface=faster,
            )
        )
        self.heartbeat.enter("meeting the other ranks")
        meeting_ns = self.host_clock.now()
        control = meet(self.case, self.place, uses_backend=training.strategy.uses_backend, device=device)
        met_ns = self.host_clock.now()
        backend = dist.get_backend() if dist.is_initialized() and training.strategy.uses_backend else ""
        backend = "mpi" if backend == "mpi4py" else backend  # torch's name for ddpbench's MPI process group
        writer.write(Met(start_ns=meeting_ns, end_ns=met_ns, backend=backend))
        with self._group_when_asked(control, device):
            self._train(writer, training, model, control, (started_ns, meeting_ns, met_ns))
        is_last = (
            self.place.rank == self.place.processes - 1
        )  # the first may be a server, which trains nothing
        if said := shared_module(self.case.workload if is_last else ""):
            raise SharedCodeError(said)
        self.heartbeat.enter("finishing")
        leave(control, borrowed=self.case.launcher in OF_FRAMEWORKS)

    def _group_when_asked(self, control: Control, device: torch.device) -> AbstractContextManager[object]:
        alone = isinstance(control, AloneControl) and is_import_path(self.case.workload)
        return formed_when_asked(device) if alone else nullcontext()

    def _train(
        self,
        writer: RecordWriter,
        training: Training,
        model: torch.nn.Module,
        control: Control,
        times: tuple[int, int, int],
    ) -> None:
        """Run the proof, or measurement and recovery.

        `times` are when this rank started, began to meet the other ranks, and had met them (ns).
        """
        step_s: float | None = None
        if self.request.purpose == "proof":
            self._prove(writer, training, control)
        elif not self.place.attempt:
            step_s = Measurement(
                training,
                model,
                control,
                directory=self.directory,
                request=self.request,
                heartbeat=self.heartbeat,
                writer=writer,
                known=self._known,
            ).run()
        if self.request.purpose == "measure" and self.case.recovery != "off":
            if "recovery" not in _OF_FEATURES:
                raise RuntimeError('this installation lacks the feature recovery: set recovery = "off"')
            self._known.params_checksum = _OF_FEATURES["recovery"](
                training,
                control,
                directory=self.directory,
                request=self.request,
                step_s=step_s,
                times=times,
                heartbeat=self.heartbeat,
                writer=writer,
            )

    def _pin(self) -> None:
        if self.place.cores:
            os.sched_setaffinity(0, self.place.cores)
        torch.set_num_threads(self.case.threads_per_rank)

    def _prove(self, writer: RecordWriter, training: Training, control: Control) -> None:
        self.heartbeat.enter("proof")
        failed: list[str] = []
        prover = Prover(training, control, self.heartbeat.beat)
        for record in prover.run():
            writer.write(record)
            if record.kind == "proof" and not record.passed:
                more = f", {record.note}" if record.note else ""
                error = f"{_error_words(record)}{more}"
                failed.append(f"{record.compared} ({record.dtype}): {error}")
        if failed:
            who = (
                "the model cannot be trained alike on several ranks"
                if prover.fault_of_model
                else _wrong(training.case)
            )
            raise DivergedError(f"{who}: {'; '.join(failed)}")

    def _classify(self, problem: BaseException) -> tuple[Status, str]:
        if (
            said := shared_module()
        ):  # first, because a mixture of two versions of the code can fail in any way
            return "failed", said
        if isinstance(problem, DivergedError):
            return "diverged", str(problem)
        if isinstance(problem, CheckpointError):
            return "failed", str(problem)
        if sentence := out_of_memory(problem):
            return "oom", sentence
        proves = self.request.purpose == "proof" and self.case.strategy != BASE
        if proves and self._training is not None and (reason := refusal(problem, self._training)):
            return "skipped", reason
        return "failed", failure(problem, self._training)


def _error_words(proof: Proof) -> str:
    for digits in range(2, 18):
        error, allowed = (f"{value:.{digits}g}" for value in (proof.error, proof.tolerance))
        if error != allowed:
            break
    return f"error {error}, allowed {allowed}"


def _wrong(case: Case) -> str:
    if not user_files.is_import_path(case.algorithm):
        return "the strategy does not train as one process does"
    return (
        f"{user_files.short_name(case.strategy)} with the algorithm {user_files.short_name(case.algorithm)} does not "
        "train as one process does (every rank's tensor must hold the sum over all ranks, with the same bits)"
    )


def out_of_memory(problem: BaseException) -> str:
    """Return a message that memory ran out, and what to do; empty for other failures."""
    text = text_of(problem)
    no_memory = (
        "can't allocate memory",
        "cannot allocate memory",
        "out of memory",
        "oom when allocating",
    )
    lacks = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    if not lacks and not any(words in text.lower() for words in no_memory):
        return ""
    first = text.partition("\n")[0] or type(problem).__name__
    advice = f"use a smaller batch or model, or fewer ranks per machine ({first})"
    return f"out of memory: {advice}{environments_part(problem)}"


def _of_as_many(case: Case, ranks: int) -> Case:
    return replace(case, world_size=ranks, global_batch=case.local_batch * ranks)


def _told_ns(name: str) -> int | None:
    """Return the time (ns) that the parent process passed in the variable `name`; None if unset."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _interfaces(case: Case, engine: str) -> tuple[str, str]:
    if case.backend != "gloo" or engine != "torch" or case.nodes < 2 or case.fabric:
        return "", ""
    from ddpbench.machine.interfaces import gloo_interfaces  # no other rank needs it

    return gloo_interfaces()


def _cpu_s() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
