"""A slot that follows: it carries out what the leading slot orders, job after job, until the end is ordered."""

from __future__ import annotations

import time
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.machine.seen import POLL_S
from ddpbench.records import LaunchRequest
from ddpbench.worker.slot.own_rank import OwnRank
from ddpbench.worker.slot.slot import BEAT_S, LEADER_LOST_S, Slot


def follow(slot: Slot, leader: int) -> int:
    """Does what the slot `leader` orders; returns the exit code that it ends all slots with.

    Raises:
        RequestError: the leader refuses to begin.
        LaunchError: the job cannot go on.
    """
    slot.share(str(slot.await_key("nonce", LEADER_LOST_S)["nonce"]))
    slot.go()
    number = 0
    while True:
        job = _next_job(slot, number, leader)
        if job["do"] == "end":
            return int(job["code"])
        if job["do"] == "round":
            slot.begin_round(number, job["envs"], fresh=job["fresh"])
        else:
            own = OwnRank.of(slot, number, LaunchRequest.from_json(job["request"]))
            while own is not None and not own.ended:
                own.poll(POLL_S)
        number += 1


def _next_job(slot: Slot, number: int, leader: int) -> dict[str, Any]:
    """Return the next order; as long as it takes, while the leader lives."""
    last, heard = None, time.monotonic()
    while True:
        slot.lives()
        job = slot.meeting.take(f"job/{number}", BEAT_S)
        if job is not None:
            return job
        slot.check_stop()
        tick = slot.meeting.get(f"state/{leader}")[0]["tick"]
        if tick != last:
            last, heard = tick, time.monotonic()
        elif time.monotonic() - heard > LEADER_LOST_S:
            told = next(one for one in slot.seats if one.rank == leader)
            raise LaunchError(f"{told}, which leads, has not been heard of for {LEADER_LOST_S:.0f} s")
