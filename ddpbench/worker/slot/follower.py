"""A slot that follows: it carries out the leading slot's orders one after the other, until it is ordered to end.

An order names cases of the plan, whose settings a follower takes from its own copy.
"""

from __future__ import annotations

import time
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.runtime.watchdog import POLL_S
from ddpbench.spec import Case
from ddpbench.worker.slot.own_rank import OwnRank
from ddpbench.worker.slot.sealing import StrangerError
from ddpbench.worker.slot.slot import BEAT_S, LEADER_LOST_S, Slot, environments


def follow(slot: Slot, leader: int) -> int:
    """Carry out the orders of the slot `leader`. Return the exit code that the leader sends to all slots.

    Raises:
        RequestError: the leader refuses to begin.
        LaunchError: the slots cannot continue.
    """
    plan = read_plan(slot.run)
    slot.share(str(slot.await_key("nonce", LEADER_LOST_S)["nonce"]))
    slot.go()
    number = 0
    while True:
        job = _next_job(slot, number, leader)
        if job["do"] == "end":
            return int(job["code"])
        if job["do"] == "round":
            cases = [_planned(plan, case_id, number) for case_id in job["cases"]]
            slot.begin_round(number, environments(cases), fresh=job["fresh"])
        else:
            case = _planned(plan, job["case"], number)
            if job["round"] >= plan.budget.rounds_max:
                raise StrangerError(
                    f"job {number} asks for round {job['round'] + 1}, which is not in the plan"
                )
            own = OwnRank.of(slot, number, plan.request(case, job["purpose"], job["round"]))
            while own is not None and not own.ended:
                own.poll(POLL_S)
        number += 1


def _planned(plan: StoredPlan, case_id: str, number: int) -> Case:
    """Return the plan's case with this ID.

    Raises:
        StrangerError: the plan has no such case, or skips it.
    """
    entry = plan.case(case_id)
    if entry is None or entry.skip_reason is not None:
        raise StrangerError(
            f"job {number} asks for a case that this slot's plan does not run; see docs/security.md"
        )
    return entry.case


def _next_job(slot: Slot, number: int, leader: int) -> dict[str, Any]:
    """Wait for order `number`, without limit while the leading slot reports that it is alive.

    Raises:
        LaunchError: the leader has not reported for too long.
    """
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
            lead = next(one for one in slot.seats if one.rank == leader)
            raise LaunchError(f"the leading slot, {lead}, has not been heard from for {LEADER_LOST_S:.0f} s")
