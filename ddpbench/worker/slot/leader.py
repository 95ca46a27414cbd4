"""The leading slot: decides what is launched next, watches all slots' ranks, and writes every outcome.

The plan gives the order: proofs first, then round after round while `budget.total` lasts, up to `rounds_max`: how
narrow the intervals are is for the report to say, since a rank's side knows no statistics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.machine.finished import Key, finished_launches, given_up, is_ok
from ddpbench.machine.judge import conclude
from ddpbench.machine.placement import thread_env
from ddpbench.machine.seen import POLL_S
from ddpbench.machine.sessions import Session, note_session
from ddpbench.records import LaunchDir, LaunchOutcome, LaunchRequest
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import Purpose
from ddpbench.spec import PlannedCase, labels
from ddpbench.worker.slot.ending import EXIT_NOT_OK, EXIT_OK
from ddpbench.worker.slot.opening import open_run, try_own_workloads
from ddpbench.worker.slot.own_rank import OwnRank
from ddpbench.worker.slot.roster import members_of
from ddpbench.worker.slot.slot import LEADER_LOST_S, QUICK_POLL_S, Slot, processes_of, say
from ddpbench.worker.slot.watch import Watch, noise_of

_FILES_S = 3.0
"""How long the records of ranks on other hosts may take to appear on a shared file system."""


class Leader:
    """Carries out a plan with the slots that joined."""

    def __init__(self, slot: Slot, *, retry_failed: bool) -> None:
        self._slot, self._meeting, self._run = slot, slot.meeting, slot.run
        self._retry_failed = retry_failed
        self._plan: StoredPlan = read_plan(slot.run)
        self._labels = labels(entry.case for entry in self._plan.cases)
        self._outcomes: dict[Key, LaunchOutcome] = {}
        self._session = Session.begin()
        self._started = time.monotonic()
        self._number = 0
        self._server_s = 0.0
        self._measured = False
        self._walls: list[float] = []
        self._measured_s = 0.0
        self._launches = 0

    def lead(self) -> int:
        """Runs the plan to its end; returns the exit code for all slots.

        Raises:
            RequestError: the directory is in use or holds another machine's results, or a user's own workload
                does not work.
            LaunchError: the job cannot go on; what was finished stays.
        """
        with ExitStack() as stack:
            open_run(self._slot, self._plan, stack)
            try_own_workloads(self._slot, self._plan)
            self._started, reason = time.monotonic(), "failed"
            try:
                reason = self._work()
            except KeyboardInterrupt:
                reason = "interrupted"
                raise
            finally:
                note_session(
                    self._run,
                    self._session,
                    wall_s=time.monotonic() - self._started,
                    measured_s=self._measured_s,
                    launches=self._launches,
                    stop_reason=reason,
                )
        rounds = self._plan.budget.rounds_min if reason != "budget" else 1
        ok = all(is_ok(entry.case.case_id, self._outcomes, rounds) for entry in self._plan.runnable)
        code = EXIT_OK if ok else EXIT_NOT_OK
        self._order({"do": "end", "code": code})
        say(f"ended: {reason}; make the report with: ddpbench report {self._run.path}")
        return code

    def _work(self) -> str:
        """Run all launches that are to do and return why there are no more."""
        budget = self._plan.budget
        self._outcomes, damaged = finished_launches(
            self._run, [entry.case for entry in self._plan.runnable], self._plan.run_id
        )
        if self._outcomes:
            say(f"launches done already: {len(self._outcomes)}")
        if self._retry_failed:
            for key, outcome in list(self._outcomes.items()):
                if outcome.status != "ok" or key in damaged:
                    self._run.set_aside(self._run.launch(*key))
                    del self._outcomes[key]
        unproved = [
            entry for entry in self._plan.runnable if (entry.case.case_id, "proof", 0) not in self._outcomes
        ]
        if not self._round(unproved, "proof", 0):
            return "budget"
        for number in range(budget.rounds_max):
            todo = self._todo(number)
            if all(given_up(entry.case.case_id, self._outcomes) for entry in self._plan.runnable):
                return "no case can be measured"
            if todo and self._walls and self._spent(self._expected_s(len(todo))):
                return "budget"
            if not self._round(todo, "measure", number):
                return "budget"
        return "rounds_max"

    def _expected_s(self, launches: int) -> float:
        """Return how long one more round of so many launches takes; where servers serve all rounds, they run by now."""
        start_s = 0.0 if own_environment_allows_sharing() else self._server_s
        return sum(self._walls) / max(len(self._walls), 1) * launches + start_s

    def _spent(self, expected_s: float) -> bool:
        """Return whether what takes so long would end after the budget."""
        return time.monotonic() - self._started + expected_s > self._plan.budget.total

    def _todo(self, number: int) -> list[PlannedCase]:
        """Return what a round has left to launch, in its order."""
        ids = [case_id for at, case_id in self._plan.order if at == number]
        entries = [entry for case_id in ids if (entry := self._plan.case(case_id)) is not None]
        return [
            entry
            for entry in entries
            if (entry.case.case_id, "measure", number) not in self._outcomes
            and not given_up(entry.case.case_id, self._outcomes)
        ]

    def _round(self, todo: Sequence[PlannedCase], purpose: Purpose, number: int) -> bool:
        """Return whether all of it was launched: no launch is that would end after the budget."""
        if not todo:
            return True
        envs: list[dict[str, str]] = []
        for entry in todo:
            env = dict(thread_env(entry.case))
            if env not in envs:
                envs.append(env)
        # What was probed serves the proofs and the first round, too; and every round where no number counts.
        fresh = self._measured and not own_environment_allows_sharing()
        job = self._order({"do": "round", "envs": envs, "fresh": fresh})
        self._slot.begin_round(job, envs, fresh=fresh)
        self._server_s = self._await_ready(job)
        bears = purpose == "measure" and (
            fresh or not self._measured
        )  # the first round that these servers measure
        self._measured = purpose == "measure"
        share_s = self._server_s / len(todo) if bears else 0.0
        for entry in todo:
            if given_up(entry.case.case_id, self._outcomes):
                continue
            if self._spent(sum(self._walls) / max(len(self._walls), 1)):
                return False
            self._launch(entry, purpose, number, server_s=share_s)
        return True

    def _await_ready(self, job: int) -> float:
        """Waits for all slots' fork servers; returns how long the slowest took to start, seconds."""
        keys = [f"state/{one.rank}" for one in self._slot.seats]
        deadline = time.monotonic() + LEADER_LOST_S
        while True:
            self._slot.lives()
            self._slot.check_stop()
            states = self._meeting.get(*keys)
            late = [one for one, state in zip(self._slot.seats, states, strict=True) if state["job"] != job]
            if not late:
                return max(float(state["ready_s"]) for state in states)
            if time.monotonic() > deadline:
                raise LaunchError(f"{late[0]} did not start its fork server within {LEADER_LOST_S:.0f} s")
            self._slot.beat()
            time.sleep(QUICK_POLL_S)

    def _order(self, job: dict[str, Any]) -> int:
        """Publishes what comes next; returns its number."""
        number, self._number = self._number, self._number + 1
        self._meeting.put(f"job/{number}", job)
        return number

    def _launch(self, entry: PlannedCase, purpose: Purpose, number: int, *, server_s: float) -> None:
        case = entry.case
        directory = self._run.launch(case.case_id, purpose, number)
        if directory.path.exists():
            self._run.set_aside(directory)
        directory.path.mkdir(parents=True)
        budget = self._plan.budget
        request = LaunchRequest(
            case=case,
            purpose=purpose,
            round=number,
            measured_s=budget.measured_s,
            target_loss=budget.target_loss,
            run_id=self._plan.run_id,
        )
        request.write(directory.request)
        started_utc = datetime.now(UTC).isoformat(timespec="seconds")
        start = time.monotonic()
        job = self._order({"do": "launch", "request": request.to_json()})
        members = members_of(case, processes_of(case), self._slot.seats)
        own = OwnRank.of(self._slot, job, request)
        assert members is not None
        watch = Watch(self._slot, job, members, hang_timeout_s=self._plan.budget.hang_timeout)
        while not watch.over:
            if own is None:  # the leader's node has too few slots for this case
                self._slot.idle(POLL_S)
            else:
                own.poll(QUICK_POLL_S if own.ended else POLL_S)
            watch.look()
        wall_s = time.monotonic() - start
        self._gather(directory, job, watch.states)
        outcome = conclude(
            directory,
            request,
            watch.seen,
            oom=any(state.get("oom") for state in watch.states),
            started_utc=started_utc,
            wall_s=wall_s,
            server_s=server_s,
            noise=noise_of(members, watch.states, shared_machine=self._slot.shared_machine),
            session=self._session.id,
        )
        self._outcomes[case.case_id, purpose, number] = outcome
        self._launches += 1
        self._measured_s += outcome.measured_s
        if purpose == "measure":
            self._walls.append(wall_s)
        what = "proof" if purpose == "proof" else f"round {number + 1}"
        say(
            f"{what}  {self._labels[case.case_id]}  {outcome.status}{f': {outcome.error}' if outcome.error else ''}"
        )

    def _gather(self, directory: LaunchDir, job: int, states: Sequence[dict[str, Any]]) -> None:
        """Writes what ranks of other directories sent, and waits for what a shared one still holds back."""
        for rank, state in enumerate(states):
            if parts := state.get("files"):
                for name, path in (("records", directory.records(rank)), ("log", directory.log(rank))):
                    path.write_bytes(self._meeting.receive(f"file/{job}/{rank}/{name}", parts[name]))
        wanted = {directory.records(rank).name for rank, state in enumerate(states) if state.get("code") == 0}
        deadline = time.monotonic() + _FILES_S
        while not wanted.issubset(os.listdir(directory.path)) and time.monotonic() < deadline:  # noqa: PTH208
            time.sleep(QUICK_POLL_S)
