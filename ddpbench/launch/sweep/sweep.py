"""Carries out a sweep that is prepared: proofs first, then round after round, until it is to stop."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from ddpbench.causes import environments_part
from ddpbench.errors import FabricError, MachineError, OutputError, WorkloadError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.fabrics import Fabrics
from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import LaunchPlan, Plan, plan_launch
from ddpbench.launch.sweep.identification import check_resumable, identify
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.launch.sweep.servers import Servers, launches_of_one_server
from ddpbench.launch.sweep.stopping import StoppingRule
from ddpbench.launch.sweep.throughput import ThroughputSoFar, launch_throughput
from ddpbench.launch.watch import LaunchRunner
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.machine.done import Done, left_out_words, to_prove
from ddpbench.machine.expected import Expected
from ddpbench.machine.room import Room
from ddpbench.machine.serving import ranks_for
from ddpbench.machine.sessions import Session, note_session
from ddpbench.machine.turnstile import Turn
from ddpbench.records import RunDir
from ddpbench.records.rundir import Made, Purpose, explain_os_error
from ddpbench.spec import Case, PlannedCase
from ddpbench.texts import command


@dataclass(slots=True)
class SweepResult:
    """How a sweep ended."""

    run: RunDir
    stop_reason: str = ""
    wall_s: float = 0.0
    measured_s: float = 0.0
    launches: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def measured_share(self) -> float | None:
        """Share of this session's wall time spent in warm-up and measured steps."""
        return self.measured_s / self.wall_s if self.wall_s else None


class Sweep:
    """Carries out a prepared request."""

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
        """`gate` is asked before each round whether it is to be made, in place of the stopping rule.

        Whoever asks has claimed the cores, and may let somebody else measure before it answers, and where launches
        offer their `turn`. `servers` are those of several sweeps; without them it starts its own. `lenders` are runs of
        the same id, whose proofs of the same cases count here too.
        """
        self._gate = gate
        self._turn = turn
        self._servers = servers
        self._lenders = lenders
        self._prepared = prepared
        self._clock = clock
        self._run = prepared.run
        self._listener = listener
        self._catalog = TableCatalog()
        self._budget = prepared.experiment.budget
        self._shared = own_environment_allows_sharing()
        self._session = Session.begin()
        self._runner = LaunchRunner(
            self._run,
            hang_timeout_s=self._budget.hang_timeout,
            hang_setting="budget.hang_timeout",
            shared=self._shared,
            session=self._session.id,
            run_id=prepared.plan.run_id,
            turn=turn,
        )
        self._gpu_addresses: list[str | None] = []
        self._take(prepared.plan)
        self._room = Room(self._budget, self._warn, listener.note)
        self._identified = False
        self._fabrics = Fabrics(self._run, listener.preparing)
        self.result = SweepResult(self._run)

    def _take(self, plan: Plan) -> None:
        """Goes by this plan from now on; nothing of it is done."""
        self._plan = plan
        self._done = Done(self._run, plan)
        self._expected = Expected(plan, self._done, shared=self._shared, tried=plan.tried)
        self._rule = StoppingRule(
            self._run, self._done, self._expected, self._budget, self._listener, clock=self._clock
        )

    @property
    def planned(self) -> tuple[PlannedCase, ...]:
        """All cases; more may be skipped once the first processes have described the machine."""
        return self._plan.cases

    def run(self) -> SweepResult:
        """Runs to the stopping rule; on an interruption what was finished stays, and the rest can be resumed.

        Raises:
            RequestError: the output cannot be used, or belongs to another machine or experiment.
            LaunchError: ranks cannot be started or their records not be written.
        """
        started = self._clock()
        claim = nullcontext() if self._claims_nothing() else claimed(self._prepared.hardware.cores)
        if self._prepared.resumes:
            # A damaged or newer one is refused before anything starts; packed records are unpacked before new ones.
            with self._locked():
                check_resumable(self._prepared)
        with claim:
            made = self._run.create()
            with self._writing(made), self._locked(), self._fabrics:
                if not self._prepared.resumes:
                    self._begin(made)
                try:
                    self._work(started)
                except KeyboardInterrupt:
                    self.result.stop_reason = "interrupted"
                    raise
                except FabricError:
                    if (
                        not self._prepared.resumes and not self._done.endings
                    ):  # so that another try is not a resume
                        made.remove_files(self._run.plan, self._run.experiment, self._run.machine)
                        self._identified = False
                    raise
                except (WorkloadError, MachineError):
                    if not self._prepared.resumes and not self._identified:
                        made.remove()
                    raise
                finally:
                    self.result.wall_s = self._clock() - started
                    if self._identified:
                        self._note_session()
        return self.result

    def _locked(self) -> AbstractContextManager[None]:
        return self._run.locked(otherwise="give another --out")

    def _begin(self, made: Made) -> None:
        """Notes, once the directory is locked, what is not of this sweep.

        Raises:
            OutputError: it has become another sweep's.
        """
        if self._run.plan.exists():
            raise OutputError(
                f"another sweep has just planned {self._run.path}: choose another --out, or resume that one with: "
                f"{command('ddpbench', 'sweep', self._run.path)}"
            )
        made.begin()

    @contextmanager
    def _writing(self, made: Made) -> Iterator[None]:
        """Makes a directory that cannot be written before its plan stands a wrong request, of which nothing is left."""
        try:
            yield
        except OSError as error:
            if self._prepared.resumes or self._run.plan.exists():
                raise
            made.remove()
            if error.errno == errno.EAGAIN:  # mostly a process that could not be started
                why = f"{error.strerror}{environments_part(error)}"
                raise OutputError(f"{self._run.path} cannot be measured: {why}") from None
            told = f"{self._run.path} cannot be written: {explain_os_error(error)}"
            raise OutputError(told) from None

    def _work(self, started: float) -> None:
        self._read_outcomes()
        self._tell_plan()
        self._listener.preparing("starting torch")
        lasting = nullcontext(self._servers) if self._servers is not None else None
        with lasting or Servers(self._run.path / "server.log") as servers, ExitStack() as claims:
            first = self.launch_plan(self._plan.runnable[0].case, "proof", 0)
            found = identify(
                self._prepared,
                servers.of(first.server_env),
                self._listener,
                lambda gpus: self._claims_nothing() or claims.enter_context(claimed(gpus=gpus)),
            )
            self._gpu_addresses = found.gpu_addresses
            self._identified = True
            fewer = found.plan is not self._plan
            if found.tried or fewer:
                self._take(replace(found.plan, tried=found.tried))
                self._read_outcomes()
            if fewer:
                self._tell_plan()
            if found.tried:
                self._tell_room("once your model was tried", self._rule.left_s(started), 0)
            if self._prepared.retry_failed:
                self._done.set_failed_aside()
            self._fabrics.make(
                entry.case
                for entry in self._done.worthwhile
                if self._done.unfinished(entry, self._budget.rounds_min)
            )
            self.result.stop_reason = self._measure(servers, started)
        self._tell_left_out()

    def _claims_nothing(self) -> bool:
        """Return whether the cores may be shared, or are claimed by what lets it measure, the gate."""
        return self._shared or self._gate is not None

    def _measure(self, servers: Servers, started: float) -> str:
        """Makes the proofs and the rounds; returns why there are no more."""
        for entry in self._done.unproved:
            if self._done.take_proof(entry) or self._done.borrow_proof(entry, self._lenders):
                continue
            if self._expected.proof_s(entry.case) > self._rule.left_s(started):
                return "budget"
            self._launch(entry, "proof", 0, servers)
        for number in range(self._budget.rounds_max):
            if self._gate is not None:
                if self._done.left_of_round(number) and not self._gate(number):
                    return "told to stop"
            elif reason := self._rule.reason(number, started):
                return reason
            launched = self.result.launches
            if not self._round(number, servers, started):
                return "budget"
            if self.result.launches > launched:
                self._tell_room(f"after round {number + 1}", self._rule.left_s(started), number + 1)
        return "rounds_max"

    def _read_outcomes(self) -> None:
        """Takes over what earlier sessions finished, and how long it took."""
        if not self._prepared.resumes:
            return
        self._expected.note_finished(self._done.read())

    def _tell_plan(self) -> None:
        """Tells how much is left of the promised rounds, and warns where the budget has no room for that."""
        budget, done = self._budget, self._done
        estimate = self._plan.left_s(done, shared=self._shared)
        self._listener.planned(self._plan, self._run, len(done.endings), estimate)
        self._tell_room("as estimated", budget.total, 0)

    def _tell_room(self, when: str, left_s: float, number: int) -> None:
        self._room.tell(when, left_s, number, self._done, self._expected)

    def _tell_left_out(self) -> None:
        """Tells what was left out of the promised rounds where the budget is spent."""
        if self.result.stop_reason != "budget":
            return
        left = left_out_words(self._plan.labels(), self._done, self._budget)
        if left:
            self._warn(f"{left}; to run them: {command('ddpbench', 'sweep', self._run.path)}")

    def _round(self, number: int, servers: Servers, started: float) -> bool:
        """Launches what is not done of a round, from servers that then end: the next round gets its own.

        Where sweeps share the cores no number counts, and the servers serve on: starting one takes seconds. Returns
        whether all of it was launched: no launch is that would end after the budget.
        """
        todo = self._done.left_of_round(number)
        if not todo:
            return True
        self._listener.preparing(f"starting round {number + 1}")
        if self._turn is not None and todo[0].case.launcher == "local":
            # While the other side starts its own: none measures yet.
            servers.of(self.launch_plan(todo[0].case, "measure", number).server_env)
        for entry in todo:
            if self._done.given_up(entry):
                continue
            if self._expected.launch_s(entry) > self._rule.left_s(started):
                return False
            self._launch(entry, "measure", number, servers, sharing=todo)
        servers.end_round(serve_on=self._shared)
        return True

    def _launch(
        self,
        entry: PlannedCase,
        purpose: Purpose,
        number: int,
        servers: Servers,
        *,
        sharing: Sequence[PlannedCase] = (),
    ) -> None:
        """`sharing` are those whose launches bear a part each of their server's start; no proof does."""
        case = entry.case
        self._tell_launch(entry, purpose, number)
        with ExitStack() as stack:
            if self._turn is not None and purpose == "measure":
                place = self._done.of_round(number).index(entry)
                waiting = partial(self._listener.preparing, "waiting for its turn")
                stack.enter_context(self._turn.held(waiting, place=place))
            plan = self._fabrics.placed(self.launch_plan(case, purpose, number))
            log, forked = self._run.path / "server.log", partial(servers.of, plan.server_env)
            server = stack.enter_context(ranks_for(case, log, forked))
            share = launches_of_one_server(entry, sharing)
            share_s = servers.charged_s(server, number) / share if share else 0.0
            began = self._clock()
            outcome = self._runner.run_launch(
                server,
                plan,
                measured_s=self._budget.measured_s,
                target_loss=self._budget.target_loss,
                server_share_s=share_s,
                on_pulse=ThroughputSoFar(entry, self._listener).pulse,
                lost=partial(self._fabrics.lost, case),
            )
            took_s = self._clock() - began
        if purpose == "measure":
            self._expected.note(case, outcome, took_s)
        self._done.endings[case.case_id, purpose, number] = outcome.status
        self.result.launches += 1
        self.result.measured_s += outcome.measured_s
        rate = launch_throughput(self._run, case, number) if purpose == "measure" else None
        self._listener.launch_ended(entry, outcome, rate if outcome.status == "ok" else None)

    def _tell_launch(self, entry: PlannedCase, purpose: Purpose, number: int) -> None:
        """Tells that a launch begins, how many there are, and how long the rest will take."""
        what = "proof" if purpose == "proof" else f"round {number + 1}"
        done = len(self._done.endings)
        todo = self._done.rounds_todo(max(self._budget.rounds_min, number + 1))
        total = done + len(to_prove(self._done.unproved)) + todo
        self._listener.launch_started(entry, what, done, total, self._expected.left_s(number))

    def launch_plan(self, case: Case, purpose: Purpose, number: int) -> LaunchPlan:
        """Return the launch of a case, placed on this machine."""
        return plan_launch(
            case,
            purpose,
            number,
            directory=self._run.launch(case.case_id, purpose, number),
            hardware=self._prepared.hardware,
            catalog=self._catalog,
            gpu_addresses=self._gpu_addresses,
        )

    def _note_session(self) -> None:
        problem = note_session(
            self._run,
            self._session,
            wall_s=self.result.wall_s,
            measured_s=self.result.measured_s,
            launches=self.result.launches,
            stop_reason=self.result.stop_reason or "failed",
        )
        if problem:
            self._warn(problem)

    def _warn(self, text: str) -> None:
        self.result.warnings.append(text)
        self._listener.warn(text)
