"""The leading slot: decides what is launched next, watches all slots' ranks, and writes every outcome.

The plan gives the order: proofs first, then round after round. `rounds_min` rounds are run whatever they
take, then more while `budget.total` lasts, up to `rounds_max`: how narrow the intervals are is for the
report to say, since a rank's side knows no statistics.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpbench.errors import LaunchError, RequestError
from ddpbench.machine.disturbance import Totals, own_environment_allows_sharing, worst_of
from ddpbench.machine.finished import Key, finished_launches, given_up, is_ok
from ddpbench.machine.identity import RANK_CODE, check_identity, code_digest, nodes_record
from ddpbench.machine.judge import conclude
from ddpbench.machine.placement import thread_env
from ddpbench.machine.seen import POLL_S, Seen
from ddpbench.machine.sessions import Session, note_session
from ddpbench.machine.trial import inspect_own, told
from ddpbench.records import LaunchDir, LaunchOutcome, LaunchRequest, Noise, write_atomically
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import Purpose
from ddpbench.spec import PlannedCase, labels
from ddpbench.worker.slot.roster import Seat, members_of, oversubscribed
from ddpbench.worker.slot.slot import (
    EXIT_NOT_OK,
    EXIT_OK,
    LEADER_LOST_S,
    QUICK_POLL_S,
    OwnRank,
    Slot,
    processes_of,
)

LOST_S = 20.0
"""A slot with a rank under way that says nothing for so long is lost, and its node perhaps with it."""
_FILES_S = 3.0
"""How long the records of ranks on other hosts may take to appear on a shared file system."""
_HANG_SETTING = "budget.hang_timeout"


class Leader:
    """Carries out a plan with the slots that joined."""

    def __init__(self, slot: Slot, *, retry_failed: bool) -> None:
        self._slot, self._meeting, self._run = slot, slot.meeting, slot.run
        self._retry_failed = retry_failed
        self._plan: StoredPlan = read_plan(slot.run)
        self._labels = labels(entry.case for entry in self._plan.cases)
        self._outcomes: dict[Key, LaunchOutcome] = {}
        self._session = Session.begin()
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
            self._open(stack)
            self._try_own_workloads()
            started, reason = time.monotonic(), "failed"
            try:
                reason = self._work(started)
            except KeyboardInterrupt:
                reason = "interrupted"
                raise
            finally:
                note_session(
                    self._run,
                    self._session,
                    wall_s=time.monotonic() - started,
                    measured_s=self._measured_s,
                    launches=self._launches,
                    stop_reason=reason,
                )
        rounds = self._plan.budget.rounds_min
        ok = all(is_ok(entry.case.case_id, self._outcomes, rounds) for entry in self._plan.runnable)
        code = EXIT_OK if ok else EXIT_NOT_OK
        self._order({"do": "end", "code": code})
        _say(f"ended: {reason}; make the report with: ddpbench report {self._run.path}")
        return code

    def _open(self, stack: ExitStack) -> None:
        """Locks and identifies the directory, and learns which slots see it; all slots go on or none."""
        slot, meeting = self._slot, self._meeting
        refusal = ""
        try:
            stack.enter_context(self._run.locked())
            self._identify()
        except RequestError as error:
            refusal = str(error)
        nonce = self._run.path / f".meeting-{secrets.token_hex(8)}"
        nonce.touch()
        try:
            meeting.put("nonce", {"nonce": nonce.name})
            slot.share(nonce.name)
            keys = [f"shared/{rank}" for rank in range(slot.place.slots)]
            deadline = time.monotonic() + LEADER_LOST_S
            while missing := meeting.missing(keys):
                slot.lives()
                slot.check_stop()
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"no response from {', '.join(missing)}: slots that had joined are gone"
                    )
                time.sleep(QUICK_POLL_S)
        finally:
            nonce.unlink(missing_ok=True)
        answers = meeting.get(*keys)
        refusal = refusal or next((answer["problem"] for answer in answers if answer["problem"]), "")
        unshared = [rank for rank, answer in enumerate(answers) if not answer["sees"]]
        meeting.put("go", {"refusal": refusal, "unshared": unshared})
        slot.go()
        if unshared:
            apart = sorted({one.host for one in slot.seats if one.rank in unshared})
            _say(
                f"{', '.join(apart)}: a directory of its own; records are gathered here, on {slot.seat.host}"
            )

    def _identify(self) -> None:
        """Completes machine.json and plan.json with what only the nodes know, or compares them with it."""
        digests = {
            "experiment_digest": self._slot.cards[0].experiment,
            "workload_digest": self._slot.cards[0].workloads,
            "rank_code_digest": code_digest(RANK_CODE),
        }
        firsts = {
            one.node: (one.host, card)
            for card in reversed(self._slot.cards)
            for one in self._slot.seats
            if one.rank == card.rank
        }
        slots: dict[int, int] = {}
        for one in self._slot.seats:
            slots[one.node] = slots.get(one.node, 0) + 1
        planned = self._run.read_json(self._run.machine)
        facts = {
            "cpu": "cpu",
            "cores": "cores",
            "cpu_quota": "cpu_quota",
            "gpus": "gpus",
            "driver": "driver",
            "kernel": "kernel",
            "torch": "torch",
            "cuda": "cuda",
            "nccl": "nccl",
            "cpu_capability": "cpu_capability",
            "python": "python",
        }
        found = nodes_record(
            [
                (host, slots[node], {key: getattr(card, name) for key, name in facts.items()})
                for node, (host, card) in sorted(firsts.items())
            ],
            digests,
            planned,
        )
        if planned.get("identity"):
            check_identity(planned, found, self._run.path)
        else:
            write_atomically(self._run.machine, json.dumps(found, indent=1) + "\n")
        data = self._run.read_json(self._run.plan)
        for entry, stored in zip(self._plan.cases, data["cases"], strict=True):
            members = members_of(entry.case, processes_of(entry.case), self._slot.seats)
            if entry.skip_reason is None and members is not None:
                stored["oversubscribed"] = oversubscribed(entry.case, members)
        write_atomically(self._run.plan, json.dumps(data, indent=1) + "\n")

    def _try_own_workloads(self) -> None:
        """Tries them as a sweep does, on the leader's node alone, and notes in machine.json what they are.

        Raises:
            WorkloadError: some cannot be used; nothing is launched, and the other slots hear of it.
        """
        cases = [entry.case for entry in self._plan.runnable]
        if not cases:
            return
        with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
            server = self._slot.server(thread_env(cases[0]))
            own = inspect_own(server, cases, Path(folder), before_each=self._slot.beat)
        if own:
            for name, facts in own.items():
                _say(told(name, facts))
            machine = self._run.read_json(self._run.machine)
            machine["context"]["own_workloads"] = dict(own)
            write_atomically(self._run.machine, json.dumps(machine, indent=1) + "\n")

    def _work(self, started: float) -> str:
        """Run all launches that are to do and return why there are no more."""
        budget = self._plan.budget
        self._outcomes, damaged = finished_launches(
            self._run, [entry.case.case_id for entry in self._plan.runnable]
        )
        if self._outcomes:
            _say(f"launches done already: {len(self._outcomes)}")
        if self._retry_failed:
            for key, outcome in list(self._outcomes.items()):
                if outcome.status != "ok" or key in damaged:
                    self._run.set_aside(self._run.launch(*key))
                    del self._outcomes[key]
        unproved = [
            entry for entry in self._plan.runnable if (entry.case.case_id, "proof", 0) not in self._outcomes
        ]
        self._round(unproved, "proof", 0)
        for number in range(budget.rounds_max):
            todo = self._todo(number)
            if all(given_up(entry.case.case_id, self._outcomes) for entry in self._plan.runnable):
                return "no case can be measured"
            if number >= budget.rounds_min and todo:
                expected = sum(self._walls) / max(len(self._walls), 1) * len(todo) + self._server_s
                if time.monotonic() - started + expected > budget.total:
                    return "budget"
            self._round(todo, "measure", number)
        return "rounds_max"

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

    def _round(self, todo: Sequence[PlannedCase], purpose: Purpose, number: int) -> None:
        if not todo:
            return
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
            if not given_up(entry.case.case_id, self._outcomes):
                self._launch(entry, purpose, number, server_s=share_s)

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
            case=case, purpose=purpose, round=number, measured_s=budget.measured_s, goal=budget.goal
        )
        request.write(directory.request)
        started_utc = datetime.now(UTC).isoformat(timespec="seconds")
        start = time.monotonic()
        job = self._order({"do": "launch", "request": request.to_json()})
        members = members_of(case, processes_of(case), self._slot.seats)
        own = OwnRank.of(self._slot, job, request)
        assert members is not None
        watch = _Watch(self._slot, job, members, hang_timeout_s=self._plan.budget.hang_timeout)
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
            noise=_noise(members, watch.states, shared_machine=self._slot.shared_machine),
            session=self._session.id,
        )
        self._outcomes[case.case_id, purpose, number] = outcome
        self._launches += 1
        self._measured_s += outcome.measured_s
        if purpose == "measure":
            self._walls.append(wall_s)
        what = "proof" if purpose == "proof" else f"round {number + 1}"
        _say(
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


class _Watch:
    """The watchdog over all slots of one launch."""

    def __init__(self, slot: Slot, job: int, members: Sequence[Seat], *, hang_timeout_s: float) -> None:
        now = time.monotonic()
        self._slot, self._job, self._members = slot, job, members
        self._hang_timeout_s = hang_timeout_s
        self._heard = [(-1, now)] * len(members)
        self._ordered = False
        self.seen = Seen(ranks=len(members), alive_at=now)
        self.states: list[dict[str, Any]] = [{} for _ in members]
        self.over = False

    def look(self) -> None:
        """Reads all states, and ends the launch where a rank has failed or none makes progress.

        Raises:
            LaunchError: a slot is lost.
        """
        now, seen = time.monotonic(), self.seen
        keys = [f"state/{one.rank}" for one in self._members]
        for rank, state in enumerate(self._slot.meeting.get(*keys)):
            tick, heard_at = self._heard[rank]
            # Until its rank is forked a slot is silent: its server may be started, or import the workload.
            limit_s = LOST_S if state["job"] == self._job else LEADER_LOST_S
            if state["tick"] != tick:
                self._heard[rank] = (state["tick"], now)
            elif rank not in seen.codes and now - heard_at > limit_s:
                raise LaunchError(
                    f"{self._members[rank]} has not been heard of for {limit_s:.0f} s: its process or node is "
                    "gone. Run the same lines again to resume"
                )
            if state["job"] != self._job:
                continue
            self.states[rank] = state
            seen.beat(rank, Pulse(state["steps"], state["phase"]), now)
            if rank in seen.codes:
                continue
            if state.get("gone"):
                seen.server_gone = f"on {self._members[rank].host} {state['gone']}"
                seen.ended_by_us.add(rank)
                seen.exited(rank, -9, state["cpu_s"], now)
            elif state.get("code") is not None:
                seen.exited(rank, state["code"], state["cpu_s"], now)
        if seen.left:
            if seen.must_end(now) or seen.server_gone:
                self._end(stacks=False)
            elif seen.hangs(now, self._hang_timeout_s):
                stopped = [rank for rank in seen.left if self.states[rank].get("stopped")]
                seen.explain_hang(stopped, self._hang_timeout_s, _HANG_SETTING)
                self._end(stacks=True)
        self.over = not seen.left or seen.unheard(now)

    def _end(self, *, stacks: bool) -> None:
        self.seen.end(time.monotonic())
        if not self._ordered:
            self._slot.meeting.put("order", {"end": self._job, "stacks": stacks})
            self._ordered = True


def _noise(members: Sequence[Seat], states: Sequence[dict[str, Any]], *, shared_machine: bool) -> Noise:
    """Return the worst host's noise: on each, what was used of the watched cores beside its own ranks."""
    own_s: dict[str, float] = {}
    totals: dict[str, Totals] = {}
    for one, state in zip(members, states, strict=True):
        own_s[one.host] = own_s.get(one.host, 0.0) + float(state.get("cpu_s") or 0.0)
        if found := state.get("totals"):
            totals[one.host] = Totals(**found)
    return worst_of([seen.noise(own_s[host], shared_machine=shared_machine) for host, seen in totals.items()])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
