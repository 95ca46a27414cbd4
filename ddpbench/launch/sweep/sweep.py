"""Run a prepared sweep: proofs first, then round after round until it stops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from ddpbench.errors import FabricError, MachineError, WorkloadError
from ddpbench.launch.listener import Listener
from ddpbench.launch.memory import free_bytes
from ddpbench.launch.sweep.directory import own_directory
from ddpbench.launch.sweep.identification import identify
from ddpbench.launch.sweep.interleaved import Rotation, alone_sentence, rotations
from ddpbench.launch.sweep.launching import Launching
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.launch.sweep.progress import Progress, SweepResult
from ddpbench.launch.sweep.servers import Servers
from ddpbench.launch.sweep.waiting_memory import waiting_memory
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.records import RunDir
from ddpbench.records.rundir import Made
from ddpbench.runtime.sessions import Session, note_session
from ddpbench.runtime.turnstile import Turn
from ddpbench.spec import PlannedCase


class Sweep:
    """Runs a prepared request, and decides which launch is next and when to stop."""

    def __init__(
        self,
        prepared: Prepared,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
        *,
        gate: Callable[[int], bool] | None = None,
        turn: Turn | None = None,
        servers: Servers | None = None,
        lenders: Sequence[RunDir] = (),
    ) -> None:
        """Prepare to run a sweep, perhaps as a side of a comparison.

        Args:
            prepared: the validated request.
            listener: receives the sweep's events.
            clock: returns seconds from any zero point.
            gate: decides before each round whether to run it, in place of the stopping rule. It may wait while the
                other side measures. A sweep with a gate claims no cores.
            turn: the connection to the turnstile, a server at which launches wait for the other side; None without one.
            servers: fork servers shared with other sweeps; None starts separate ones.
            lenders: runs with the same id. Their proofs of the same cases also count for this run.
        """
        self._gate, self._servers, self._lenders = gate, servers, lenders
        self._prepared, self._listener, self._clock = prepared, listener, clock
        self._budget = prepared.experiment.budget
        self._turns = self._budget.turns if gate is None else "launches"
        self._shared = own_environment_allows_sharing()
        self._session = Session.begin()
        self._identified = False
        self._progress = Progress(prepared, listener, clock, shared=self._shared)
        self._launching = Launching(
            prepared,
            self._progress,
            listener,
            clock,
            shared=self._shared,
            session=self._session.id,
            turn=turn,
        )
        self.result = self._progress.result

    @property
    def planned(self) -> tuple[PlannedCase, ...]:
        """All planned cases. Once the first process has described the machine, more of them may be skipped."""
        return self._progress.plan.cases

    def run(self) -> SweepResult:
        """Run the sweep to its end and return the result. After an interruption, the run can be resumed.

        Raises:
            RequestError: the output cannot be used, or belongs to a different machine or experiment.
            LaunchError: ranks cannot be started, or their records cannot be written.
        """
        self._progress.started = self._clock()
        claim = nullcontext() if self._claims_nothing() else claimed(self._prepared.hardware.cores)
        with own_directory(self._prepared, claim) as made, self._launching.fabrics:
            try:
                self._work()
            except BaseException as error:
                self._take_back(made, error)
                raise
            finally:
                self.result.wall_s = self._clock() - self._progress.started
                if self._identified:
                    self._note_session()
        return self.result

    def _take_back(self, made: Made, error: BaseException) -> None:
        """Remove a new run's files after an error before any measurement, so that no later try resumes it."""
        if isinstance(error, KeyboardInterrupt):
            self.result.stop_reason = "interrupted"
        elif self._prepared.resumes:
            return
        elif isinstance(error, FabricError):
            if not self._progress.done.endings:
                run = self._prepared.run
                made.remove_files(run.plan, run.experiment, run.machine)
                self._identified = False
        elif isinstance(error, WorkloadError | MachineError) and not self._identified:
            made.remove()

    def _note_session(self) -> None:
        problem = note_session(
            self._prepared.run,
            self._session,
            wall_s=self.result.wall_s,
            measured_s=self.result.measured_s,
            launches=self.result.launches,
            stop_reason=self.result.stop_reason or "failed",
        )
        if problem:
            self._progress.warn(problem)

    def _claims_nothing(self) -> bool:
        return self._shared or self._gate is not None

    def _work(self) -> None:
        progress = self._progress
        progress.read_outcomes()
        progress.tell_plan()
        self._listener.preparing("starting torch")
        lasting = nullcontext(self._servers) if self._servers is not None else None
        with lasting or Servers(self._prepared.run.path / "server.log") as servers, ExitStack() as claims:
            self._identify(servers, claims)
            self._tell_memory()
            self._set_parts_aside()
            if self._prepared.retry_failed:
                progress.done.set_failed_aside()
            if self._turns == "blocks" and (
                warning := alone_sentence(progress.plan.runnable, progress.plan.names)
            ):
                progress.warn(warning)
            self._launching.make_fabrics()
            self.result.stop_reason = self._measure(servers)
        progress.tell_left_out()

    def _tell_memory(self) -> None:
        """Say how much memory the launches that wait for their turn need, and let fewer alternate if it is short."""
        plan, rotating = self._progress.plan, self._launching.rotating
        found = waiting_memory(
            plan.runnable, self._turns, plan.step_bytes, free_bytes(), most=rotating.most_at_once
        )
        rotating.memory_estimated = found is not None
        if found is not None:
            rotating.most_at_once = found.most
            self._listener.note(str(found))

    def _identify(self, servers: Servers, claims: ExitStack) -> None:
        """Have a rank describe the machine and try users' workloads, and use the resulting plan."""
        progress = self._progress
        first = self._launching.plan(progress.plan.runnable[0].case, "proof", 0)
        found = identify(
            self._prepared,
            servers.of(first.server_env),
            self._listener,
            lambda gpus: self._claims_nothing() or claims.enter_context(claimed(gpus=gpus)),
        )
        self._launching.gpu_addresses = found.gpu_addresses
        self._identified = True
        fewer = found.plan is not progress.plan
        if found.tried or fewer:
            progress.go_by(replace(found.plan, tried=found.tried))
            progress.read_outcomes()
        if fewer:
            progress.tell_plan()
        if found.tried:
            progress.tell_room("once your model was tried", 0)

    def _set_parts_aside(self) -> None:
        """On resume, have each partly finished rotation repeated, so that all its launches alternate.

        Launches that run alone, and rounds with a failed launch of the rotation, are kept.
        """
        progress = self._progress
        plan, done = progress.plan, progress.done
        if self._turns == "launches" or not self._prepared.resumes:
            return
        for number in range(self._budget.rounds_max):
            left, every = done.left_of_round(number), done.of_round(number)
            if len(left) in (0, len(every)):
                continue
            most = self._launching.rotating.most_at_once
            for rotation in rotations(every, plan.runnable, self._turns, most=most):
                if any(entry in left for entry in rotation.entries):
                    done.set_aside([entry for entry in rotation.entries if entry not in left], number)

    def _measure(self, servers: Servers) -> str:
        progress = self._progress
        for entry in progress.done.unproved:
            if progress.done.take_proof(entry) or progress.done.borrow_proof(entry, self._lenders):
                continue
            if progress.expected.proof_s(entry.case) > progress.left_s:
                return "budget"
            self._launching.launch(entry, "proof", 0, servers)
        for number in range(self._budget.rounds_max):
            if self._gate is not None:
                if progress.done.left_of_round(number) and not self._gate(number):
                    return "told to stop"
            elif reason := progress.rule.reason(number, progress.started):
                return reason
            launched = self.result.launches
            if not self._round(number, servers):
                return "budget"
            if self.result.launches > launched:
                progress.tell_room(f"after round {number + 1}", number + 1)
        return "rounds_max"

    def _round(self, number: int, servers: Servers) -> bool:
        """Run a round's unfinished launches; return False if one was left out to stay within the budget.

        The next round gets new fork servers, unless other sweeps share the cores: starting takes seconds, and their
        results are flagged anyway.
        """
        progress = self._progress
        todo = progress.done.left_of_round(number)
        if not todo:
            return True
        self._listener.preparing(f"starting round {number + 1}")
        self._launching.start_server(todo[0], number, servers)
        left: Sequence[PlannedCase] = todo
        self._launching.rotating.alone.clear()
        while left := [entry for entry in left if not progress.done.given_up(entry)]:
            rotation = self._rotations(left)[0]
            fits = self._fitting(rotation.entries)
            if not fits:
                return False
            rest = self._launching.launch_rotation(rotation.only(fits), number, servers, sharing=todo)
            launched = set(fits) - set(rest)
            left = [entry for entry in left if entry not in launched]
        servers.end_round(serve_on=self._shared)
        return True

    def _fitting(self, launches: Sequence[PlannedCase]) -> Sequence[PlannedCase]:
        """Return the launches that are expected to end within the budget, from the first on."""
        ends = itertools.accumulate(map(self._progress.expected.launch_s, launches))
        left_s = self._progress.left_s
        return launches[: sum(end <= left_s for end in ends)]

    def _rotations(self, todo: Sequence[PlannedCase]) -> Sequence[Rotation]:
        rotating = self._launching.rotating
        return rotations(
            todo,
            self._progress.plan.runnable,
            self._turns,
            most=rotating.most_at_once,
            alone=rotating.alone,
        )
