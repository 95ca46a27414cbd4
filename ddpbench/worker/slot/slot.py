"""A slot: a process that torchrun, srun or a user started, and that gives every launch of a plan a fresh rank.

Slots meet in a store (`meeting`), check that they belong together (`roster`), and then do what the leading
slot (`leader`) orders: for each launch those it needs have fork servers of their own fork a rank, watch it,
and tell the store how it goes. A slot trains nothing itself. The keys:

    card/<slot>  verdict  shared/<slot>  go       the meeting
    job/<number>                                  what comes next: a round's servers, a launch, or the end
    order        stop                             end the ranks of a launch; somebody has to leave
    state/<slot>                                  how a slot and its rank are
    file/<number>/<rank>/...                      records and log of a rank whose node has its own directory
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.errors import DdpbenchError, LaunchError, RequestError, ServerGoneError
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import NoiseWatch, oom_kills, own_environment_allows_sharing
from ddpbench.machine.hardware import numa_cores, read_hardware
from ddpbench.machine.identity import RANK_CODE, code_digest, driver_version, text_digest, workloads_digest
from ddpbench.machine.placement import thread_env
from ddpbench.machine.seen import POLL_S, STACKS_S, is_stopped
from ddpbench.machine.server import START_TIMEOUT_S, ServerProcess
from ddpbench.records import LaunchRequest, RunDir, explain_os_error
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.spec import Case
from ddpbench.strategies import load_strategy
from ddpbench.worker.place import SlotPlace, host_name
from ddpbench.worker.slot.roster import Card, Seat, check, check_places, leading, members_of, seat, stands

if TYPE_CHECKING:
    from ddpbench.worker.slot.meeting import Meeting

EXIT_OK = 0
EXIT_NOT_OK = 1
EXIT_REQUEST = 2
EXIT_INTERRUPTED = 130
BEAT_S = 1.0
"""A slot whose rank runs says so at least this often."""
QUICK_POLL_S = 0.02
"""How often the leader looks once its own rank has ended: nothing is measured any more."""
LEADER_LOST_S = START_TIMEOUT_S + 60.0
_SHARED_TRIES = 5
_LOG_TAIL_BYTES = 1 << 16
"""So much of a rank's log goes to the leader from a node with a directory of its own."""
_SLOT_CODE = (*RANK_CODE, "machine", "records", "spec")


class StoppedError(LaunchError):
    """Another slot had to leave, and said why; `code` is the exit code for all."""

    def __init__(self, told: str, code: int) -> None:
        super().__init__(told)
        self.code = code


def explained(error: Exception) -> str:
    """Return an error as one sentence."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{explain_os_error(error)}"
    return str(error)


class Slot:
    """One slot. Use it as a context; leaving it leaves no server and no rank behind."""

    def __init__(
        self, run: RunDir, place: SlotPlace, meeting: Meeting, launcher_lives: Callable[[], None]
    ) -> None:
        self.run, self.place, self.meeting = run, place, meeting
        self.lives = launcher_lives
        self.shared_machine = own_environment_allows_sharing()
        self.cards: list[Card] = []
        self.seats: list[Seat] = []
        self.unshared: set[int] = set()
        """Slots that do not see the leader's directory."""
        self._stack = ExitStack()
        self._servers: dict[str, ServerProcess] = {}
        self._ticks = 0
        self.told_at = 0.0
        self._state: dict[str, Any] = {}

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_servers()
        self._stack.close()

    def attend(self, *, lead: Callable[[Slot], int]) -> int:
        """Meets the others, and leads or follows until the plan is carried out; returns the exit code.

        `lead` is called where this slot is the one that leads.

        Raises:
            RequestError: the slots do not belong together, or are too few; nothing was measured.
            LaunchError: the job cannot go on.
        """
        self.tell(job=-1)
        self.meeting.put(f"card/{self.place.rank}", self._card().to_json())
        if self.place.rank == 0:
            self.meeting.put("order", {})
            self.meeting.put_first("stop", {})  # who was interrupted on its way here has said so already
            self._gather()
        verdict = self._await("verdict", START_TIMEOUT_S + 2 * self.meeting.join_s)
        if verdict["refusal"]:
            raise RequestError(verdict["refusal"])
        self.cards = [Card.from_json(card) for card in verdict["cards"]]
        leader: int = verdict["leader"]
        self.seats = seat(self.cards, leader)
        if leader == self.place.rank:
            return lead(self)
        return self._follow(leader)

    def _card(self) -> Card:
        """Return what this slot says of itself."""
        place, problem = self.place, ""
        facts: dict[str, Any] = {}
        try:
            plan = read_plan(self.run)
            hardware = read_hardware()
            probe = self._probe(plan)
            pci = [gpu["pci"] for gpu in probe["gpus"]]
            near = pci[place.local_rank] if place.local_rank < len(pci) else None
            facts = {
                "cores": hardware.cores,
                "physical": hardware.physical,
                "cpu_quota": hardware.quota,
                "cpu": hardware.cpu_model,
                "kernel": os.uname().release,
                "driver": driver_version(),
                "gpus": tuple(gpu["name"] for gpu in probe["gpus"]),
                "gpu_cores": numa_cores(near),
                **{name: probe[name] for name in ("torch", "python", "cuda", "nccl", "cpu_capability")},
                "code": code_digest(_SLOT_CODE),
                "workloads": workloads_digest(entry.case.workload for entry in plan.cases),
                "experiment": text_digest(self.run.experiment.read_text(encoding="utf-8")),
                "plan": _plan_digest(self.run),
                "finished": sum(1 for _ in self.run.path.glob("cases/*/*/outcome.json")),
            }
        except (DdpbenchError, OSError) as error:
            problem = explained(error)
        return Card(
            rank=place.rank,
            local_rank=place.local_rank,
            node=place.node,
            host=host_name(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            run_dir=str(self.run.path.absolute()),
            problem=problem,
            **facts,
        )

    def _probe(self, plan: StoredPlan) -> dict[str, Any]:
        first = plan.runnable[0].case if plan.runnable else plan.cases[0].case
        with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
            return self.server(thread_env(first)).probe(Path(folder))

    def _gather(self) -> None:
        """Slot 0: waits for all cards, and tells all whether they belong together."""
        keys = {f"card/{rank}": rank for rank in range(self.place.slots)}
        deadline = time.monotonic() + self.meeting.join_s + START_TIMEOUT_S
        while missing := self.meeting.missing(list(keys)):
            self.lives()
            self.check_stop()
            if time.monotonic() > deadline:
                late = ", ".join(str(keys[key]) for key in missing)
                self.meeting.put("verdict", {"refusal": f"slots {late} of {len(keys)} did not come"})
                return
            time.sleep(POLL_S)
        cards = [Card.from_json(card) for card in self.meeting.get(*keys)]
        refusal, leader = "", 0
        try:
            check(cards)
            leader = leading(cards)
            check_places(
                [(entry, processes_of(entry.case)) for entry in read_plan(self.run).runnable],
                seat(cards, leader),
            )
        except RequestError as error:
            refusal = str(error)
        verdict = {"refusal": refusal, "leader": leader, "cards": [card.to_json() for card in cards]}
        self.meeting.put("verdict", verdict)

    def _await(self, key: str, timeout_s: float) -> dict[str, Any]:
        """Return a key's value, while the launcher lives and nobody has to leave."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.lives()
            found = self.meeting.take(key, BEAT_S)
            if found is not None:
                return found
            self.check_stop()
        raise LaunchError(f"slot {self.place.rank} waited {timeout_s:.0f} s for {key!r} of the leading slot")

    def check_stop(self) -> None:
        """Raises StoppedError once another slot had to leave."""
        if self.meeting.has("stop") and (stop := self.meeting.get("stop")[0]):
            resumable = stop["code"] != EXIT_REQUEST
            start = "ended, and can be resumed with the same lines: " if resumable else ""
            raise StoppedError(f"{start}{stop['why']}", stop["code"])

    def share(self, nonce: str) -> None:
        """Tells whether this slot sees the leader's directory, and claims this host's cores."""
        sees = False
        for attempt in range(_SHARED_TRIES):
            sees = (self.run.path / nonce).exists()
            if sees:
                break
            time.sleep(0.1 * attempt)  # a network file system may take a moment
        problem = ""
        first_on_host = next(one.rank for one in self.seats if one.host == self.seat.host)
        if first_on_host == self.place.rank and not self.shared_machine:
            cores = {core for one in self.seats if one.host == self.seat.host for core in one.cores}
            try:
                self._stack.enter_context(claimed(sorted(cores)))
            except DdpbenchError as error:
                problem = f"{self.seat.host}: {error}"
        self.meeting.put(f"shared/{self.place.rank}", {"sees": sees, "problem": problem})

    def go(self) -> None:
        """Waits for the leader's last word before anything runs."""
        go = self._await("go", LEADER_LOST_S)
        if go["refusal"]:
            raise RequestError(go["refusal"])
        self.unshared = set(go["unshared"])

    @property
    def seat(self) -> Seat:
        """This slot's own."""
        return next(one for one in self.seats if one.rank == self.place.rank)

    def _follow(self, leader: int) -> int:
        self.share(str(self._await("nonce", LEADER_LOST_S)["nonce"]))
        self.go()
        number = 0
        while True:
            job = self._next_job(number, leader)
            if job["do"] == "end":
                return int(job["code"])
            if job["do"] == "round":
                self.begin_round(number, job["envs"], fresh=job["fresh"])
            else:
                own = OwnRank.of(self, number, LaunchRequest.from_json(job["request"]))
                while own is not None and not own.ended:
                    own.poll(POLL_S)
            number += 1

    def _next_job(self, number: int, leader: int) -> dict[str, Any]:
        """Return the next order; as long as it takes, while the leader lives."""
        last, heard = None, time.monotonic()
        while True:
            self.lives()
            job = self.meeting.take(f"job/{number}", BEAT_S)
            if job is not None:
                return job
            self.check_stop()
            tick = self.meeting.get(f"state/{leader}")[0]["tick"]
            if tick != last:
                last, heard = tick, time.monotonic()
            elif time.monotonic() - heard > LEADER_LOST_S:
                told = next(one for one in self.seats if one.rank == leader)
                raise LaunchError(f"{told}, which leads, has not been heard of for {LEADER_LOST_S:.0f} s")

    def begin_round(self, number: int, envs: Sequence[Mapping[str, str]], *, fresh: bool) -> None:
        """Sees that fork servers run; `fresh` ends those of a measured round first: forks share an address layout."""
        if fresh:
            self.close_servers()
        started_s = sum(self.server(env).start_s for env in envs)
        self.tell(job=number, ready_s=round(started_s, 3))

    def server(self, env: Mapping[str, str]) -> ServerProcess:
        """Return the fork server of an environment, started when first asked for."""
        key = json.dumps(dict(env), sort_keys=True)
        if key not in self._servers or not self._servers[key].alive:
            log = self.run.path / f"server-{self.place.rank:05d}.log"
            self._servers[key] = ServerProcess(env, log)
        return self._servers[key]

    def close_servers(self) -> None:
        """Ends the fork servers, and their ranks with them."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()

    def tell(self, **state: Any) -> None:
        """Sets this slot's state."""
        self._state = state
        self._ticks += 1
        self.told_at = time.monotonic()
        self.meeting.put(f"state/{self.place.rank}", {"tick": self._ticks, **state})

    def beat(self) -> None:
        """Says the same again, once in a while, as a sign of life."""
        if time.monotonic() - self.told_at > BEAT_S:
            self.tell(**self._state)

    def idle(self, timeout_s: float) -> None:
        """Passes some time without a rank of its own.

        Raises:
            StoppedError: another slot had to leave.
            LaunchError: the launcher is gone.
        """
        self.lives()
        self.check_stop()
        time.sleep(timeout_s)
        self.beat()


class OwnRank:
    """This slot's rank in one launch, from its fork to the last word on it."""

    def __init__(
        self, slot: Slot, number: int, request: LaunchRequest, members: Sequence[Seat], rank: int
    ) -> None:
        self._slot, self._number, self._request, self._rank = slot, number, request, rank
        self._directory = slot.run.launch(request.case.case_id, request.purpose, request.round)
        own = members[rank]
        placed = stands(request.case, members)
        there = [n for n, one in enumerate(members) if one.host == own.host]
        self._speaks_for_host = there[0] == rank
        watched = [core for n in there for core in (*placed[n].cores, *placed[n].loader_cores)]
        self._code: int | None = None
        self._cpu_s = 0.0
        self._gone = ""
        self._told: dict[str, Any] = {}
        self._oom_before = oom_kills()
        self._directory.path.mkdir(parents=True, exist_ok=True)
        if slot.place.rank in slot.unshared:  # what an unfinished try left there
            for stale in (self._directory.records(rank), self._directory.log(rank)):
                stale.unlink(missing_ok=True)
        self._server = slot.server(thread_env(request.case))
        self._noise = NoiseWatch(
            sorted(set(watched)) if self._speaks_for_host else (),
            self._server.pid,
            shared_machine=slot.shared_machine,
            helpers=request.case.loader_workers > 0,
        )
        per_node = sum(1 for one in members if one.node == own.node)
        env = {
            **thread_env(request.case),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(members)),
            # A launcher that gives each slot its own GPU shows it as the only one.
            "LOCAL_RANK": str(0 if request.case.device == "cuda" and own.gpus == 1 else own.local_rank),
            "LOCAL_WORLD_SIZE": str(per_node),
            "TORCHELASTIC_RESTART_COUNT": "0",  # a slot's restart is not its rank's
            "DDPBENCH_STORE": f"{slot.place.prefix}/launch/{number}",
            "DDPBENCH_HOST": own.host,
            **placed[rank].env,
        }
        try:
            self._server.launch([env], self._directory, request)
        except ServerGoneError as error:
            self._gone = str(error)
        self._tell()

    @classmethod
    def of(cls, slot: Slot, number: int, request: LaunchRequest) -> OwnRank | None:
        """Return the slot's rank of a launch, started; None where the launch does without this slot."""
        members = members_of(request.case, processes_of(request.case), slot.seats)
        assert members is not None  # `check_places` has seen to it
        ranks = [rank for rank, one in enumerate(members) if one.rank == slot.place.rank]
        return cls(slot, number, request, members, ranks[0]) if ranks else None

    @property
    def ended(self) -> bool:
        """Whether the rank is gone."""
        return self._code is not None or bool(self._gone)

    def poll(self, timeout_s: float) -> None:
        """Hears of the rank's end within this time, does what is ordered, and tells how it goes.

        Raises:
            StoppedError: another slot had to leave.
            LaunchError: the launcher is gone.
        """
        if self.ended:
            self._slot.idle(timeout_s)
            return
        self._slot.lives()
        try:
            for event in self._server.events(timeout_s):
                if event["event"] == "exited":
                    self._server.signal_ranks(signal.SIGKILL)  # loader workers outlive a killed rank
                    self._code, self._cpu_s = int(event["code"]), float(event["cpu_s"])
        except ServerGoneError as error:
            self._server.signal_ranks(signal.SIGKILL)
            self._gone = str(error)
        self._noise.tick(computing=self._pulse.phase == "timed steps")
        order, stop = self._slot.meeting.get("order", "stop")
        if stop:
            self._slot.check_stop()
        if order.get("end") == self._number and not self.ended:
            self._end(stacks=order["stacks"])
        self._tell()

    @property
    def _pulse(self) -> Pulse:
        return self._server.pulse(0)

    def _end(self, *, stacks: bool) -> None:
        """Kills the rank, after it has written its stacks into its log where they tell why it hangs."""
        if stacks and not any(is_stopped(pid) for pid in self._server.pids):
            self._server.signal_ranks(signal.SIGUSR1)
            time.sleep(STACKS_S)
        self._server.signal_ranks(signal.SIGKILL)

    def _tell(self) -> None:
        pulse = self._pulse
        state: dict[str, Any] = {
            "job": self._number,
            "steps": pulse.steps,
            "phase": pulse.phase,
            "stopped": any(is_stopped(pid) for pid in self._server.pids),
        }
        if self.ended:
            self._server.pids = ()
            case = self._request.case
            if case.checkpoint:  # what a rank that was killed could not remove, on whichever node
                shutil.rmtree(self._directory.snapshots(case.checkpoint_dir), ignore_errors=True)
            state |= {
                "code": self._code,
                "gone": self._gone,
                "cpu_s": round(self._cpu_s + self._noise.helper_cpu_s, 6),
                "oom": oom_kills() > self._oom_before,
                "totals": asdict(self._noise.totals()) if self._speaks_for_host else None,
                "files": self._send_files() if self._slot.place.rank in self._slot.unshared else None,
            }
        elif state["phase"] == self._told.get("phase") and time.monotonic() - self._slot.told_at < BEAT_S:
            return  # steps alone can wait
        self._told = state
        self._slot.tell(**state)

    def _send_files(self) -> dict[str, int]:
        """Puts records and the end of the log into the store; returns how many parts each has."""
        directory, key = self._directory, f"file/{self._number}/{self._rank}"
        parts: dict[str, int] = {}
        for name, path in (
            ("records", directory.records(self._rank)),
            ("log", directory.log(self._rank)),
        ):
            data = b""
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
            if name == "log":
                data = data[-_LOG_TAIL_BYTES:]
            parts[name] = self._slot.meeting.send(f"{key}/{name}", data)
        return parts


def processes_of(case: Case) -> int:
    """Return how many ranks a case has: one, where its strategy holds all replicas in one process."""
    return 1 if load_strategy(case.strategy).one_process else case.world_size


def _plan_digest(run: RunDir) -> str:
    """Return a digest of the plan but for what the leader fills in when it knows the nodes."""
    data = run.read_json(run.plan)
    for entry in data["cases"]:
        del entry["oversubscribed"]
    return text_digest(json.dumps(data, sort_keys=True))
