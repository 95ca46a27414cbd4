"""The leading slot, which decides what is launched next, watches all slots' ranks, and writes every outcome.

Proofs come first, then round after round until the time `budget.total` is spent, at most `rounds_max` rounds. Narrow
confidence intervals do not end the run, because rank-side code computes no statistics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.naming import Namer
from ddpbench.records import LaunchDir
from ddpbench.records.files import write_anew
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.estimate import Tried
from ddpbench.runtime.expected import Expected
from ddpbench.runtime.judge import Took, conclude
from ddpbench.runtime.progress import Done, left_out_words
from ddpbench.runtime.room import Room
from ddpbench.runtime.sessions import Session, note_session
from ddpbench.runtime.watchdog import POLL_S
from ddpbench.spec import PlannedCase
from ddpbench.text_safety import command
from ddpbench.units import utc_now
from ddpbench.worker.slot.ending import EXIT_NOT_OK, EXIT_OK
from ddpbench.worker.slot.hearing import Hearing
from ddpbench.worker.slot.opening import open_run, settled_plan
from ddpbench.worker.slot.own_rank import OwnRank
from ddpbench.worker.slot.roster import members_of
from ddpbench.worker.slot.slot import LEADER_LOST_S, QUICK_POLL_S, Slot, environments, processes_of, say
from ddpbench.worker.slot.watch import Watch, noise_of

_FILES_S = 3.0
"""Longest wait for other hosts' records to appear on a shared file system, in seconds."""


class Leader:
    """Carries out a plan, with the slots that have joined."""

    def __init__(self, slot: Slot, *, retry_failed: bool) -> None:
        self._slot, self._meeting, self._run = slot, slot.meeting, slot.run
        self._retry_failed = retry_failed
        self._take(read_plan(slot.run), {})
        self._room = Room(self._plan.budget, say, say)
        self._session = Session.begin()
        self._started = time.monotonic()
        self._number = 0
        self._measured = False
        self._measured_s = 0.0
        self._launches = 0

    def _take(self, plan: StoredPlan, tried: Mapping[str, Tried]) -> None:
        self._plan = plan
        self._names = Namer(entry.case for entry in plan.cases)
        self._done = Done(self._run, plan)
        self._expected = Expected(plan, self._done, shared=own_environment_allows_sharing(), tried=tried)

    def lead(self) -> int:
        """Run the plan to its end. Return the exit code for all slots.

        Raises:
            RequestError: the directory is in use or holds another machine's results, or a user's own workload does not
                work.
            LaunchError: the slots cannot continue; finished results remain.
        """
        with ExitStack() as stack:
            open_run(self._slot, self._plan, stack)
            plan, tried = settled_plan(self._slot, read_plan(self._run))
            self._take(plan, tried)
            self._started, reason = time.monotonic(), "failed"
            try:
                reason = self._work("once your model was tried" if tried else "as estimated")
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
        ok = all(self._done.endings.is_ok(entry.case.case_id, rounds) for entry in self._plan.runnable)
        code = EXIT_OK if ok else EXIT_NOT_OK
        self._order({"do": "end", "code": code})
        if reason == "budget" and (left := left_out_words(self._names, self._done, self._plan.budget)):
            say(f"{left}; to run them, run the same commands again")
        say(f"ended: {reason}; make the report with: {command('ddpbench', 'report', self._run.path)}")
        return code

    def _work(self, when: str) -> str:
        """Run all remaining launches and say why none follows; `when` opens the message on the time left."""
        budget, done = self._plan.budget, self._done
        self._expected.note_finished(done.read())
        if done.endings:
            say(f"launches done already: {len(done.endings)}")
        if self._retry_failed:
            done.set_failed_aside()
        self._tell_room(when, 0)
        if not self._round(done.unproved, "proof", 0):
            return "budget"
        begun = False
        for number in range(budget.rounds_max):
            todo = done.left_of_round(number)
            if not done.worthwhile:
                return "no case can be measured"
            if todo and begun and self._expected.round_s(todo) > self._left_s():
                return "budget"
            begun = begun or bool(todo)
            if not self._round(todo, "measure", number):
                return "budget"
            if todo:
                self._tell_room(f"after round {number + 1}", number + 1)
        return "rounds_max"

    def _left_s(self) -> float:
        return self._started + self._plan.budget.total - time.monotonic()

    def _tell_room(self, when: str, number: int) -> None:
        self._room.tell(when, self._left_s(), number, self._done, self._expected)

    def _round(self, todo: Sequence[PlannedCase], purpose: Purpose, number: int) -> bool:
        """Run a round; return False if a launch was left out to stay within the time budget."""
        if not todo:
            return True
        envs = environments(entry.case for entry in todo)
        # The servers that were probed also serve the proofs and the first round. A plan that times nothing uses them
        # for all rounds.
        fresh = self._measured and not own_environment_allows_sharing()
        job = self._order({"do": "round", "cases": [entry.case.case_id for entry in todo], "fresh": fresh})
        self._slot.begin_round(job, envs, fresh=fresh)
        server_s = self._await_ready(job)
        if fresh:
            self._expected.server_start_s = server_s
        carries_start = purpose == "measure" and (
            fresh or not self._measured
        )  # the first round that these servers measure
        self._measured = purpose == "measure"
        share_s = server_s / len(todo) if carries_start else 0.0
        for entry in todo:
            if self._done.given_up(entry):
                continue
            expected = self._expected
            if (
                expected.proof_s(entry.case) if purpose == "proof" else expected.launch_s(entry)
            ) > self._left_s():
                return False
            self._launch(entry, purpose, number, server_s=share_s)
        return True

    def _await_ready(self, job: int) -> float:
        keys = [f"state/{one.rank}" for one in self._slot.seats]
        hearing = Hearing(self._slot.seats)
        deadline = time.monotonic() + LEADER_LOST_S
        while True:
            self._slot.lives()
            self._slot.check_stop()
            states = self._meeting.get(*keys)
            for number, state in enumerate(states):
                if state["job"] != job:
                    hearing.note(number, state)
            late = [one for one, state in zip(self._slot.seats, states, strict=True) if state["job"] != job]
            if not late:
                return max(float(state["ready_s"]) for state in states)
            if time.monotonic() > deadline:
                raise LaunchError(f"{late[0]} did not start its fork server within {LEADER_LOST_S:.0f} s")
            self._slot.beat()
            time.sleep(QUICK_POLL_S)

    def _order(self, job: dict[str, Any]) -> int:
        number, self._number = self._number, self._number + 1
        self._meeting.put(f"job/{number}", job)
        return number

    def _launch(self, entry: PlannedCase, purpose: Purpose, number: int, *, server_s: float) -> None:
        case = entry.case
        directory = self._run.launch(case.case_id, purpose, number)
        if directory.path.exists():
            self._run.set_aside(directory)
        directory.path.mkdir(parents=True)
        request = self._plan.request(case, purpose, number)
        request.write(directory.request)
        started_utc = utc_now()
        start = time.monotonic()
        job = self._order({"do": "launch", "case": case.case_id, "purpose": purpose, "round": number})
        members = members_of(case, processes_of(case), self._slot.seats)
        own = OwnRank.of(self._slot, job, request)
        assert members is not None
        watch = Watch(self._slot, job, members, hang_timeout_s=self._plan.budget.hang_timeout)
        while not watch.over:
            if own is None:  # this case doesn't use the leader's slot
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
            took=Took(started_utc=started_utc, wall_s=wall_s, server_s=server_s),
            noise=noise_of(members, watch.states, shared_machine=self._slot.shared_machine),
            session=self._session.id,
        )
        self._done.endings[case.case_id, purpose, number] = outcome.status
        self._launches += 1
        self._measured_s += outcome.measured_s
        if purpose == "measure":
            self._expected.note(case, outcome, wall_s)
        what = "proof" if purpose == "proof" else f"round {number + 1}"
        say(
            f"{what}  {self._names.full(case)}  {outcome.status}{f': {outcome.error}' if outcome.error else ''}"
        )

    def _gather(self, directory: LaunchDir, job: int, states: Sequence[dict[str, Any]]) -> None:
        for rank, state in enumerate(states):
            if parts := state.get("files"):
                for name, path in (("records", directory.records(rank)), ("log", directory.log(rank))):
                    write_anew(path, self._meeting.receive(f"file/{job}/{rank}/{name}", parts[name]))
        wanted = {directory.records(rank).name for rank, state in enumerate(states) if state.get("code") == 0}
        deadline = time.monotonic() + _FILES_S
        while not wanted.issubset(os.listdir(directory.path)) and time.monotonic() < deadline:  # noqa: PTH208
            time.sleep(QUICK_POLL_S)
