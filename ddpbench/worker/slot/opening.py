"""The leading slot's work before any launch: prepare the run directory, find the slots that see it, record nodes."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import ExitStack
from typing import Any

from ddpbench.errors import RequestError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.machine.identity import check_identity, nodes_record
from ddpbench.machine.placement import early_env
from ddpbench.machine.slurm import own_job
from ddpbench.own_code import code_digest
from ddpbench.records import write_atomically
from ddpbench.records.files import create_file
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import StoredPlan, launches_json, planned_json, read_plan
from ddpbench.runtime.equal_caps import sentences, without_equal
from ddpbench.runtime.estimate import Tried
from ddpbench.runtime.order import run_order
from ddpbench.runtime.trial import (
    gradients_in_rank,
    identifying,
    inspect_own,
    skipped_by_trial,
    summary_of,
    tried,
    within_own,
)
from ddpbench.spec import PlannedCase
from ddpbench.worker.slot.hearing import NOTHING_TOLD, Hearing
from ddpbench.worker.slot.own_card import plan_digest
from ddpbench.worker.slot.roster import members_of, oversubscribed
from ddpbench.worker.slot.slot import QUICK_POLL_S, Slot, processes_of, say

_FACTS = (
    "cpu",
    "cores",
    "cpu_quota",
    "gpus",
    "driver",
    "kernel",
    "torch",
    "cuda",
    "nccl",
    "cpu_capability",
    "python",
)
"""Fields that describe a node in machine.json. They come from the report of the node's first slot."""


def open_run(slot: Slot, plan: StoredPlan, stack: ExitStack) -> None:
    """Lock the run directory, record the machine, and find out which slots see the directory. Then all slots begin.

    If the directory cannot be used, no slot begins.

    Raises:
        RequestError: the directory cannot be used on some slot.
    """
    meeting = slot.meeting
    refusal = ""
    try:
        stack.enter_context(slot.run.locked())
        _identify(slot, plan)
    except RequestError as error:
        refusal = str(error)
    nonce = slot.run.path / f".meeting-{secrets.token_hex(8)}"
    create_file(nonce).close()
    try:
        meeting.put("order", {})
        meeting.put("nonce", {"nonce": nonce.name})
        slot.share(nonce.name)
        keys = [f"shared/{rank}" for rank in range(slot.place.slots)]
        hearing = Hearing(sorted(slot.seats, key=lambda one: one.rank))
        while missing := meeting.missing(keys):
            slot.lives()
            slot.check_stop()
            for rank in (keys.index(key) for key in missing):
                state = f"state/{rank}"
                hearing.note(rank, meeting.get(state)[0] if meeting.has(state) else NOTHING_TOLD)
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
        say(
            f"{', '.join(apart)}: the run directory is not shared with {slot.seat.host}; records are gathered on "
            f"{slot.seat.host}"
        )


def _identify(slot: Slot, plan: StoredPlan) -> None:
    digests = {
        "experiment_digest": slot.cards[0].experiment,
        "workload_digest": slot.cards[0].workloads,
        "rank_code_digest": code_digest(),
    }
    firsts = {
        one.node: (one.host, card)
        for card in reversed(slot.cards)
        for one in slot.seats
        if one.rank == card.rank
    }
    slots: dict[int, int] = {}
    for one in slot.seats:
        slots[one.node] = slots.get(one.node, 0) + 1
    planned = read_machine(slot.run)
    facts = _FACTS if all(card.mpi is None for _, card in firsts.values()) else (*_FACTS, "mpi")
    found = nodes_record(
        [
            (host, slots[node], {name: getattr(card, name) for name in facts})
            for node, (host, card) in sorted(firsts.items())
        ],
        digests,
        planned,
        {host: card.setup for host, card in firsts.values()},
    )
    found["identity"]["physical_cores"] = sorted(card.physical for _, card in firsts.values())
    if planned.get("identity"):
        check_identity(_cores_counted(planned), _cores_counted(found), slot.run.path)
    else:
        write_atomically(slot.run.machine, json.dumps(found, indent=1) + "\n")
    if job := own_job(slot.place.slots):
        machine = read_machine(slot.run)
        machine["context"].setdefault("slurm_jobs", []).append(job)
        write_atomically(slot.run.machine, json.dumps(machine, indent=1) + "\n")
    data = slot.run.read_json(slot.run.plan)
    for entry, stored in zip(plan.cases, data["cases"], strict=True):
        members = members_of(entry.case, processes_of(entry.case), slot.seats)
        if entry.skip_reason is None and members is not None:
            stored["oversubscribed"] = oversubscribed(entry.case, members)
    write_atomically(slot.run.plan, json.dumps(data, indent=1) + "\n")


def _cores_counted(machine: dict[str, Any]) -> dict[str, Any]:
    """Replace each node's cores by their number, because a batch queue gives each job different cores."""
    identity = dict(machine["identity"])
    cores = identity.get("cores")
    each = sorted(len(own or ()) for own in (cores.values() if isinstance(cores, dict) else [cores]))
    identity["cores"] = each[0] if len(set(each)) == 1 else each
    if "slots" in identity:
        identity["slots"] = sorted(identity["slots"])
    return {**machine, "identity": identity}


def settled_plan(slot: Slot, plan: StoredPlan) -> tuple[StoredPlan, dict[str, Tried]]:
    """Try users' own workloads as a sweep does, and leave out cases whose bucket caps give equal buckets.

    The leader's node tries them. Return the changed plan, which is also written to plan.json, and each trial's time and
    memory. machine.json gets the facts that identify the workloads.

    Raises:
        WorkloadError: some workload cannot be used; nothing is launched, and the other slots get the reason.
    """
    cases = [entry.case for entry in plan.runnable]
    if not cases:
        return plan, {}
    with GuardedFolder("ddpbench-") as folder:
        server = slot.server(early_env(cases[0]))
        own = inspect_own(server, cases, folder, before_each=slot.beat)
        left = within_own(plan.cases, own)
        if not any(slot.run.path.glob("cases/*/*/outcome.json")):  # else an earlier session has tried them
            left = tuple(without_equal(left, gradients_in_rank(server, folder, before_each=slot.beat)))
    if own:
        for name, facts in own.items():
            say(summary_of(name, facts))
        for line in skipped_by_trial(plan.cases, left):
            say(line)
        machine = read_machine(slot.run)
        machine.setdefault("context", {})["own_workloads"] = {
            name: identifying(facts) for name, facts in own.items()
        }
        write_atomically(slot.run.machine, json.dumps(machine, indent=1) + "\n")
    return _taken(slot, plan, left), tried(own)


def _taken(slot: Slot, plan: StoredPlan, cases: tuple[PlannedCase, ...]) -> StoredPlan:
    if cases == plan.cases:
        return plan
    for sentence in set(sentences(cases)) - set(sentences(plan.cases)):
        say(sentence)
    order = run_order(cases, plan.budget)
    data = slot.run.read_json(slot.run.plan)
    data.setdefault("planned_digest", plan_digest(data))
    data |= {"cases": [planned_json(entry) for entry in cases], "launches": launches_json(order)}
    write_atomically(slot.run.plan, json.dumps(data, indent=1) + "\n")
    return read_plan(slot.run)
