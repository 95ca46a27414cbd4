"""Run a sweep's launches on their cores, GPUs and networks. In a comparison, launches of both sides alternate."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial

from ddpbench.errors import ServerGoneError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.fabrics import Fabrics
from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import LaunchPlan, plan_launch
from ddpbench.launch.sweep.interleaved import InterleavedLaunches
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.launch.sweep.progress import Progress
from ddpbench.launch.sweep.servers import Servers, launches_of_one_server
from ddpbench.launch.sweep.throughput import ThroughputSoFar, launch_throughput
from ddpbench.launch.watch import Interleaved, LaunchRunner
from ddpbench.records import LaunchOutcome
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.serving import Ranks, ranks_for
from ddpbench.runtime.turnstile import Turn, Turnstile
from ddpbench.spec import Case, PlannedCase


class Launching:
    """Runs a sweep's launches, of which one computes at a time, and records them in the sweep's progress."""

    def __init__(
        self,
        prepared: Prepared,
        progress: Progress,
        listener: Listener,
        clock: Callable[[], float],
        *,
        shared: bool,
        session: str,
        turn: Turn | None,
    ) -> None:
        self._run, self._hardware = prepared.run, prepared.hardware
        self._budget = prepared.experiment.budget
        self._progress, self._listener, self._clock, self._turn = progress, listener, clock, turn
        self._catalog = TableCatalog()
        self.fabrics = Fabrics(self._run, listener.preparing)
        self._no_turnstile = False
        self.gpu_addresses: list[str | None] = []
        """PCI addresses of the GPUs by GPU number, once a rank has reported them."""
        self.runner = LaunchRunner(
            self._run,
            hang_timeout_s=self._budget.hang_timeout,
            hang_setting="budget.hang_timeout",
            shared=shared,
            session=session,
            run_id=prepared.plan.run_id,
            turn=turn,
        )

    def plan(self, case: Case, purpose: Purpose, number: int) -> LaunchPlan:
        """Return a case's launch, placed on this machine's cores and GPUs."""
        return plan_launch(
            case,
            purpose,
            number,
            directory=self._run.launch(case.case_id, purpose, number),
            hardware=self._hardware,
            catalog=self._catalog,
            gpu_addresses=self.gpu_addresses,
        )

    def make_fabrics(self) -> None:
        """Make and check the networks of all cases that still have launches.

        Raises:
            FabricError: a network cannot be made, or does not carry the requested rate.
        """
        done = self._progress.done
        self.fabrics.make(
            entry.case for entry in done.worthwhile if done.unfinished(entry, self._budget.rounds_min)
        )

    def start_server(self, entry: PlannedCase, number: int, servers: Servers) -> None:
        """If the sweep is a side of a comparison, start the fork server for the first launch of a round now.

        No side is measuring yet, so both can start their servers at the same time.
        """
        if self._turn is not None and entry.case.launcher == "local":
            servers.of(self.plan(entry.case, "measure", number).server_env)

    def launch(
        self,
        entry: PlannedCase,
        purpose: Purpose,
        number: int,
        servers: Servers,
        *,
        sharing: Sequence[PlannedCase] = (),
    ) -> None:
        """Run one launch and report it. A server's start-up time is divided among the launches in `sharing`."""
        case = entry.case
        self._progress.tell_launch(entry, purpose, number)
        with ExitStack() as stack:
            if self._turn is not None and purpose == "measure":
                place = self._progress.done.of_round(number).index(entry)
                waiting = partial(self._listener.preparing, "waiting for its turn")
                stack.enter_context(self._turn.held(waiting, place=place))
            plan = self.fabrics.placed(self.plan(case, purpose, number))
            log, forked = self._run.path / "server.log", partial(servers.of, plan.server_env)
            server = stack.enter_context(ranks_for(case, log, forked))
            began = self._clock()
            outcome = self.runner.run_launch(
                server,
                plan,
                measured_s=self._budget.measured_s,
                target_loss=self._budget.target_loss,
                server_share_s=self._share_s(entry, number, servers, server, sharing),
                on_pulse=ThroughputSoFar(entry, self._listener).pulse,
                lost=partial(self.fabrics.lost, case),
            )
            took_s = self._clock() - began
        self._ended(entry, purpose, number, outcome, took_s)

    def _share_s(
        self,
        entry: PlannedCase,
        number: int,
        servers: Servers,
        server: Ranks,
        sharing: Sequence[PlannedCase],
    ) -> float:
        """Return the part of a server's start-up time that is charged to one launch in round `number`, seconds."""
        share = launches_of_one_server(entry, sharing)
        return servers.charged_s(server, number) / share if share else 0.0

    def _ended(
        self, entry: PlannedCase, purpose: Purpose, number: int, outcome: LaunchOutcome, took_s: float
    ) -> None:
        """Record the end of a launch, and report it."""
        self._progress.note(entry, purpose, number, outcome, took_s)
        rate = launch_throughput(self._run, entry.case, number) if purpose == "measure" else None
        self._listener.launch_ended(entry, outcome, rate if outcome.status == "ok" else None)

    def launch_group(
        self, entries: Sequence[PlannedCase], number: int, servers: Servers, *, sharing: Sequence[PlannedCase]
    ) -> Sequence[PlannedCase]:
        """Run launches of round `number`, and return the cases that were not started.

        Several launches run at once, and their blocks of steps alternate. If memory gets short, no more launches are
        started. If no turnstile can be made, only the first launch is run.
        """
        turnstile = self._turnstile(number) if len(entries) > 1 else None
        if turnstile is not None:
            with closing(turnstile):
                return self._launch_interleaved(turnstile, entries, number, servers, sharing)
        entry, *others = entries
        self.launch(entry, "measure", number, servers, sharing=sharing)
        return others

    def _turnstile(self, number: int) -> Turnstile | None:
        """Return a new turnstile for a round; None if it cannot be made, which is reported once."""
        if self._no_turnstile:
            return None
        try:
            return Turnstile(random.Random(f"{self._budget.seed} {number}"))
        except OSError as error:
            self._no_turnstile = True
            self._progress.warn(f"launches of a round run one after another: no socket can be made ({error})")
            return None

    def _launch_interleaved(
        self,
        turnstile: Turnstile,
        entries: Sequence[PlannedCase],
        number: int,
        servers: Servers,
        sharing: Sequence[PlannedCase],
    ) -> Sequence[PlannedCase]:
        """Start launches one after another, each while no other launch computes; then let their blocks alternate.

        Returns the cases that were not started because memory got short.
        """
        ids = [entry.case.case_id for entry in entries]
        with InterleavedLaunches(turnstile) as together:
            turnstile.begin(ids)
            plans = [self.plan(entry.case, "measure", number) for entry in entries]
            cores = sorted({core for plan in plans for core in plan.cores})
            prepared_s = [self._prepared_s(servers, plan) for plan in plans]
            lanes = Counter[ServerProcess]()
            started = 0
            for entry, plan, extra_s in zip(entries, plans, prepared_s, strict=True):
                if started and not together.has_room():
                    break
                self._progress.tell_launch(entry, "measure", number)
                server, case_id = servers.of(plan.server_env), entry.case.case_id
                lane = server.lane(lanes[server])
                lanes[server] += 1
                has_turn = partial(_has_turn, turnstile, case_id)
                running = self.runner.begin(
                    lane,
                    plan,
                    measured_s=self._budget.measured_s,
                    target_loss=self._budget.target_loss,
                    server_share_s=extra_s + self._share_s(entry, number, servers, server, sharing),
                    on_pulse=partial(self._pulsed, entry, has_turn),
                    interleaved=Interleaved(
                        address=turnstile.address(case_id), cores=cores, has_turn=has_turn
                    ),
                )
                together.start(case_id, running, partial(self._ended, entry, "measure", number))
                started += 1
            for case_id in ids[started:]:
                turnstile.leave(case_id)
            together.finish()
        return entries[started:]

    @staticmethod
    def _prepared_s(servers: Servers, plan: LaunchPlan) -> float:
        """Have a launch's fork server import what its ranks need; return the time it took (s).

        If the imports make a server unable to fork, the server is replaced, and the ranks that it has forked end.
        Therefore all launches are prepared before any of them is started.
        """
        server, began = servers.of(plan.server_env), time.monotonic()
        with suppress(ServerGoneError):  # the launch starts another one
            server.prepare(plan.case)
        return time.monotonic() - began

    def _pulsed(self, entry: PlannedCase, has_turn: Callable[[], bool], pulse: Pulse) -> None:
        """Report a heartbeat of an interleaved launch, if it is its turn."""
        if has_turn():
            self._listener.pulse(entry, pulse, None)


def _has_turn(turnstile: Turnstile, side: str) -> bool:
    """Return whether a launch computes: it has the turn, or nobody has the turn because this launch is starting."""
    return turnstile.holder in (side, "")
