"""Slots in a real store on a real port, and a stranger who reaches it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore

from ddpbench.errors import LaunchError, RequestError
from ddpbench.records.plan import StoredPlan
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.worker.place import SlotPlace
from ddpbench.worker.slot import follower
from ddpbench.worker.slot import meeting as meetings
from ddpbench.worker.slot.meeting import Meeting, join_within_s
from ddpbench.worker.slot.sealing import OtherKeyError, StrangerError
from ddpbench.worker.slot.slot import Slot
from tests.failures.launchers import free_port
from tests.worker.test_roster import card, seat

KEY = b"k" * 32
CASE = Case(workload="mlp:small", strategy="ddp", world_size=2, ranks_per_node=2)

SKIPPED = Case(workload="mlp:small", strategy="ddp", world_size=4)


def place(rank: int, port: int, address: str = "127.0.0.1", **changes: Any) -> SlotPlace:
    values: dict[str, Any] = {
        "slots": 2,
        "local_rank": rank,
        "node": "0",
        "agent_store": False,
        "prefix": "p",
    }
    return SlotPlace(rank=rank, master_addr=address, master_port=port, **{**values, **changes})


def lives() -> None:
    """Do nothing: the launcher always lives."""


class Job:
    """A leader and a follower that have agreed on a job, and a stranger at their port."""

    def __init__(self, key: bytes) -> None:
        self.port = free_port()
        self.leader = Meeting(place(0, self.port), lives, key, join_s=20)
        self.follower = Meeting(place(1, self.port), lives, key, join_s=20)
        cards = [card(rank, fresh=str(rank)).to_json() for rank in (0, 1)]
        for one in (self.leader, self.follower):
            one.begin_job(cards)
        self.stranger = TCPStore(
            "127.0.0.1", self.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5)
        )


@pytest.fixture(scope="module")
def job() -> Job:
    return Job(KEY)


@pytest.fixture(scope="module")
def keyless() -> Job:
    return Job(b"")


def test_slots_hear_each_other(job: Job) -> None:
    job.leader.put("go", {"refusal": "", "unshared": [1]})
    assert job.follower.get("go") == [{"refusal": "", "unshared": [1]}]
    parts = job.follower.send("file/0/1/records", os.urandom(3 * 1024) * 1024)
    assert parts == 3
    assert len(job.leader.receive("file/0/1/records", parts)) == 3 << 20


def test_who_leaves_first_says_why_for_all(job: Job) -> None:
    job.follower.stop("the disk is full\udcff" + "x" * 10_000, 1)
    job.leader.stop("slot 0 was interrupted", 1)  # by the launcher, since slot 1 has left
    (stopped,) = job.leader.get("stop")
    assert stopped["why"].startswith("the disk is full")


def test_records_that_a_stranger_changed_are_not_taken(job: Job) -> None:
    job.follower.send("file/1/1/records", b"true")
    job.stranger.set("p/file/1/1/records/0", b"false")
    with pytest.raises(StrangerError):
        job.leader.receive("file/1/1/records", 1)


def test_a_slot_with_another_key_is_told_so(job: Job) -> None:
    other = Meeting(place(1, job.port), lives, b"s" * 32, join_s=20)
    other.put("card/1", card(1).to_json())
    with pytest.raises(OtherKeyError):
        job.leader.get("card/1")


EVIL = "stranger.py"
JOBS: dict[str, dict[str, Any]] = {
    "a case with a path": {
        "do": "launch",
        "request": {"case": CASE.to_json() | {"workload": "{}:Evil"}, "purpose": "measure", "round": 0},
    },
    "a path for a case": {"do": "launch", "case": "{}:Evil", "purpose": "measure", "round": 0},
    "an environment": {"do": "round", "envs": [{"LD_PRELOAD": "{}"}], "fresh": True},
    "another round": {"do": "launch", "case": CASE.case_id, "purpose": "measure", "round": 7},
    "a skipped case": {"do": "launch", "case": SKIPPED.case_id, "purpose": "measure", "round": 0},
}


class EnoughError(Exception):
    """A job is done."""


def follow_one_job(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Make a slot carry out the job that is in the store, and return what it launched; after one job it ends."""
    launched: list[Any] = []
    plan = StoredPlan(
        experiment="x",
        question="",
        budget=Budget(rounds_min=1, rounds_max=2),
        cases=(
            PlannedCase(case=CASE, skip_reason=None, added_as_baseline=False, oversubscribed=False),
            PlannedCase(case=SKIPPED, skip_reason="too large", added_as_baseline=False, oversubscribed=False),
        ),
        ids=(CASE.case_id, SKIPPED.case_id),
        order=(),
    )

    def launch(_slot: object, _number: int, request: Any) -> None:
        launched.append(request)
        raise EnoughError

    def begin_round(_number: int, envs: list[dict[str, str]], *, fresh: bool) -> None:
        launched.append(envs)
        raise EnoughError

    monkeypatch.setattr(follower, "read_plan", lambda run: plan)
    monkeypatch.setattr(follower, "OwnRank", SimpleNamespace(of=launch))
    slot: Any = SimpleNamespace(
        run=None,
        meeting=meeting,
        lives=lives,
        check_stop=lives,
        share=lambda nonce: None,
        go=lives,
        await_key=lambda key, timeout_s: {"nonce": ""},
        begin_round=begin_round,
        seats=seat([card(0), card(1)], 0),
    )
    with contextlib.suppress(EnoughError):
        follower.follow(slot, 0)
    return launched


@pytest.mark.parametrize("what", JOBS)
@pytest.mark.parametrize("with_key", [True, False])
def test_a_strangers_job_is_not_obeyed(
    what: str,
    with_key: bool,
    job: Job,
    keyless: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a key none is run; without one, strangers can seal as slots do, and only cases of the plan run."""
    here = job if with_key else keyless
    text = json.dumps(JOBS[what]).replace("{}", str(tmp_path / EVIL))
    here.stranger.set("p/job/0", text if with_key else keyless.leader.seals.seal("job/0", text.encode()))
    with pytest.raises(StrangerError) as refused:
        follow_one_job(here.follower, monkeypatch)
    assert "\n" not in str(refused.value)


def test_the_leaders_job_is_obeyed_with_what_the_followers_own_plan_says(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.leader.put("job/0", {"do": "launch", "case": CASE.case_id, "purpose": "measure", "round": 1})
    (request,) = follow_one_job(job.follower, monkeypatch)
    assert (request.case, request.round) == (CASE, 1)
    job.leader.put("job/0", {"do": "round", "cases": [CASE.case_id], "fresh": False})
    ((env,),) = follow_one_job(job.follower, monkeypatch)
    assert set(env) == {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def listening(port: int) -> set[str]:
    return {
        one.laddr.ip
        for one in psutil.Process().net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    }


def outward() -> str | None:
    """Return an address of this host that others could reach, or None."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return str(one.address)
    return None


def test_the_store_listens_on_the_named_interface_alone(job: Job) -> None:
    assert listening(job.port) == {"127.0.0.1"}
    address = outward()
    if address is None:
        pytest.skip("this host has no address but loopback")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, job.port), timeout=5)
    port = free_port()
    held = Meeting(place(0, port, address), lives, KEY, join_s=20)
    assert held.serves
    assert listening(port) == {address}


@pytest.mark.parametrize(
    ("name", "resolved", "bound"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("this-host", "127.0.1.1", None),  # as Debian names itself: others know it by another address
        ("this-host", "203.0.113.1", None),  # no interface's here: behind address translation
    ],
)
def test_where_a_name_means_something_else_here_torch_listens_everywhere(
    name: str, resolved: str, bound: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, port))
    monkeypatch.setattr(meetings.socket, "getaddrinfo", lambda *_, **__: [entry])
    listener = meetings._listener(place(0, port, name))
    assert (None if listener is None else listener.getsockname()[0]) == bound
    if listener is not None:
        listener.close()


@pytest.mark.parametrize("name", ["node1..cluster", "a" * 64])
def test_a_name_that_no_host_has_is_said_in_a_sentence(name: str) -> None:
    for rank, what in ((0, "cannot be served here"), (1, "was not reached within 1 s")):
        with pytest.raises(LaunchError, match=f"{name}:[0-9]+ {what}"):
            Meeting(place(rank, free_port(), name), lives, KEY, join_s=1)


def test_a_taken_port_is_said_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            LaunchError, match=rf"127\.0\.0\.1:{port} cannot be served here: is the port free"
        ):
            Meeting(place(0, port), lives, KEY)


def test_a_slot_waits_for_no_longer_than_it_says() -> None:
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"was not reached within 1 s: "):
        Meeting(place(1, free_port()), lives, KEY, join_s=1)
    assert time.monotonic() - began < meetings._TRY_S


@pytest.mark.parametrize(("late", "words"), [(["card/1"], "slot 1"), (["card/1", "card/2"], "slots 1, 2")])
def test_slots_that_did_not_come_are_named(late: list[str], words: str) -> None:
    put: list[Any] = []
    meeting = SimpleNamespace(join_s=-1.0, missing=lambda _: late, put=lambda *values: put.append(values))
    slot: Any = SimpleNamespace(
        place=place(0, 1, slots=3), meeting=meeting, _start_s=0.0, lives=lives, check_stop=lives
    )
    Slot._gather(slot)
    assert put == [("verdict", {"refusal": f"{words} (of 3) did not join"})]


def test_how_long_slots_wait_for_each_other_is_set_within_bounds() -> None:
    assert join_within_s({}) == join_within_s({"DDPBENCH_JOIN_TIMEOUT": ""}) == 300
    assert join_within_s({"DDPBENCH_JOIN_TIMEOUT": "1800"}) == 1800
    for wrong in ("0", "-1", "nan", "1e3", "86401", "\u00b2", "9" * 400):
        with pytest.raises(RequestError, match=r"give whole seconds, from 1 to 86,400"):
            join_within_s({"DDPBENCH_JOIN_TIMEOUT": wrong})
