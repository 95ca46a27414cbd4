"""Run a sweep's launches on their cores, GPUs and networks; in a comparison, both sides' launches alternate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.fabrics import Fabrics
from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import LaunchPlan, plan_launch
from ddpbench.launch.sweep.interleaved import Rotation, can_all_alternate
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.launch.sweep.progress import Progress
from ddpbench.launch.sweep.rotating import Rotating
from ddpbench.launch.sweep.servers import Servers, launches_of_one_server
from ddpbench.launch.sweep.throughput import ThroughputSoFar, launch_throughput
from ddpbench.launch.watch import LaunchRunner
from ddpbench.records import LaunchOutcome
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.serving import Ranks, ranks_for
from ddpbench.runtime.turnstile import Turn
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
            short_blocks=self._has_short_blocks,
        )
        self.rotating = Rotating(self.runner, progress, listener, self._budget)

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

    def _has_short_blocks(self, case: Case) -> bool:
        """Return whether a case's blocks are as short as those of alternating launches.

        This also applies to its launches that run alone. In a comparison of two sides, the turn decides.
        """
        turns = self._budget.turns if self._turn is None else "launches"
        return turns == "blocks" or (
            turns == "auto" and can_all_alternate(case, self._progress.plan.runnable)
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
        """Start the fork server for a round's first launch now, if the sweep is a side of a comparison.

        No side is measuring yet, so both can start their servers at once.
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
                server_share_s=self._share_s(entry, server, number=number, servers=servers, sharing=sharing),
                on_pulse=ThroughputSoFar(entry, self._listener).pulse,
                lost=partial(self.fabrics.lost, case),
            )
            took_s = self._clock() - began
        self._ended(entry, outcome, took_s, purpose=purpose, number=number)

    def _share_s(
        self,
        entry: PlannedCase,
        server: Ranks,
        *,
        number: int,
        servers: Servers,
        sharing: Sequence[PlannedCase],
    ) -> float:
        """Return the part of a server's start-up time that is charged to one launch in round `number`, seconds."""
        share = launches_of_one_server(entry, sharing)
        return servers.charged_s(server, number) / share if share else 0.0

    def _ended(
        self, entry: PlannedCase, outcome: LaunchOutcome, took_s: float, *, purpose: Purpose, number: int
    ) -> None:
        self._progress.note(entry, purpose, number, outcome, took_s)
        rate = launch_throughput(self._run, entry.case, number) if purpose == "measure" else None
        self._listener.launch_ended(entry, outcome, rate if outcome.status == "ok" else None)

    def launch_rotation(
        self, rotation: Rotation, number: int, servers: Servers, *, sharing: Sequence[PlannedCase]
    ) -> Sequence[PlannedCase]:
        """Run launches of round `number`, and return the cases that are still to be launched.

        Blocks of a group's launches alternate. Short memory stops further starts. Launches of a fork server that ends
        are repeated alone. Without a turnstile, only the first launch is run.
        """
        turnstile = self.rotating.turnstile(number) if len(rotation.entries) > 1 else None
        if turnstile is None:
            entry, *others = rotation.entries
            self.launch(entry, "measure", number, servers, sharing=sharing)
            return others
        with closing(turnstile):
            plans = {entry: self.plan(entry.case, "measure", number) for entry in rotation.entries}
            share_s = partial(self._share_s, number=number, servers=servers, sharing=sharing)
            ended = partial(self._ended, purpose="measure", number=number)
            return self.rotating.run(rotation, turnstile, plans, servers, share_s=share_s, ended=ended)
