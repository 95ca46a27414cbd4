"""This slot's report to the other slots: its place, its machine, versions, and the plan that it will run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddpbench.errors import DdpbenchError, RequestError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.machine.hardware import numa_cores, read_hardware
from ddpbench.machine.identity import driver_version, mpi_of, sources_digest, sources_named, text_digest
from ddpbench.machine.placement import early_env
from ddpbench.machine.setup import read_setup
from ddpbench.own_code import RANK_CODE, code_digest
from ddpbench.records import RunDir
from ddpbench.records.files import MOST_NOTES, read_text
from ddpbench.records.plan import StoredPlan, read_plan
from ddpbench.records.rundir import check_checkpoint_dir, check_own
from ddpbench.runtime.probes import probed
from ddpbench.runtime.server import ServerProcess
from ddpbench.worker.place import SlotPlace, host_name
from ddpbench.worker.slot.ending import explained
from ddpbench.worker.slot.roster import Card

_SLOT_CODE = (*RANK_CODE, "machine", "records", "spec")


def own_card(run: RunDir, place: SlotPlace, server: Callable[[Mapping[str, str]], ServerProcess]) -> Card:
    """Return what this slot reports about its node. `server` returns the fork server for an environment."""
    problem = ""
    facts: dict[str, Any] = {}
    try:
        check_own(run.path)
        plan = read_plan(run)
        if not plan.cases:
            raise RequestError(f"{run.plan} has no case: plan the experiment again, into another --out")
        for name in {entry.case.checkpoint_dir for entry in plan.cases} - {""}:
            check_checkpoint_dir(name)
        hardware = read_hardware()
        probe = _probe(plan, server)
        pci = [gpu["pci"] for gpu in probe["gpus"]]
        # If a launcher gives each slot its own GPU, the slot sees only that GPU.
        mine = 0 if len(pci) == 1 else place.local_rank
        near = pci[mine] if mine < len(pci) else None
        facts = {
            "cores": hardware.cores,
            "physical": hardware.physical,
            "cpu_quota": hardware.quota,
            "cpu": hardware.cpu_model,
            "kernel": os.uname().release,
            "driver": driver_version(),
            "setup": read_setup(),
            "gpus": tuple(gpu["name"] for gpu in probe["gpus"]),
            "gpu_cores": numa_cores(near),
            "gpu": probe["gpus"][mine].get("uuid", "") if mine < len(pci) else "",
            **{name: probe[name] for name in ("torch", "python", "cuda", "nccl", "cpu_capability")},
            "mpi": mpi_of(plan.cases),
            "code": code_digest(_SLOT_CODE),
            "workloads": sources_digest(sources_named(entry.case for entry in plan.cases)),
            "experiment": text_digest(read_text(run.experiment, MOST_NOTES)),
            "plan": plan_digest(run.read_json(run.plan)),
            "finished": sum(1 for _ in run.path.glob("cases/*/*/outcome.json")),
        }
    except (DdpbenchError, OSError) as error:
        problem = explained(error)
    return Card(
        rank=place.rank,
        local_rank=place.local_rank,
        node=place.node,
        host=host_name(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        run_dir=str(run.path.absolute()),
        problem=problem,
        **facts,
    )


def _probe(plan: StoredPlan, server: Callable[[Mapping[str, str]], ServerProcess]) -> dict[str, Any]:
    first = plan.runnable[0].case if plan.runnable else plan.cases[0].case
    with GuardedFolder("ddpbench-") as folder:
        return probed(server(early_env(first)), folder, log_stays=False)


def plan_digest(data: Mapping[str, Any]) -> str:
    """Return a digest of the plan as it was first made, without the facts about nodes that the leader adds later."""
    if "planned_digest" in data:  # written by a leader, whose directory other slots may not see
        return str(data["planned_digest"])
    cases = [
        {key: value for key, value in entry.items() if key != "oversubscribed"} for entry in data["cases"]
    ]
    return text_digest(json.dumps({**data, "cases": cases}, sort_keys=True))
