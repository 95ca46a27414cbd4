"""The identity of a run (machine, experiment and cases), written once and compared when it is resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ddpbench.errors import DdpbenchError, IdentityError
from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import Plan, make_plan
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.machine.identity import (
    IDENTITY,
    check_identity,
    known_identity,
    machine_record,
    sources_named,
    sources_of,
)
from ddpbench.records import RunDir, write_atomically
from ddpbench.records.files import MOST_NOTES, read_text
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import read_plan
from ddpbench.runtime.equal_caps import sentences, without_equal
from ddpbench.runtime.estimate import Tried
from ddpbench.runtime.probes import probed
from ddpbench.runtime.server import ServerProcess
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
from ddpbench.spec.differences import settings_apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Facts that a process with torch found before the first launch."""

    gpu_addresses: list[str | None]
    plan: Plan
    """The plan. If several bucket caps make the same buckets, the plan runs only one of them."""
    tried: dict[str, Tried]
    """Results of trials of users' workloads, by name with options."""


def check_resumable(prepared: Prepared) -> None:
    """Check that a run is resumed on the same machine with the same experiment, as far as this is known without torch.

    Raises:
        IdentityError: the machine or experiment differs, or the run's files are damaged.
    """
    run, plan = prepared.run, prepared.plan
    if not prepared.resumes:
        return
    read_plan(run)
    recorded, toml = read_machine(run), prepared.experiment.to_toml()
    known = known_identity(prepared.hardware, toml, plan.cases)
    before = str(recorded.get("identity", {}).get("torch"))
    with contextlib.suppress(PackageNotFoundError):
        if (installed := version("torch")).partition("+")[0] != before.partition("+")[0]:
            known["torch"] = installed
    there = {
        name: value
        for name, value in recorded.get("identity", {}).items()
        if name in known or name not in IDENTITY
    }
    check_identity({"identity": there}, {"identity": known}, run.path, _apart(prepared, toml))
    _check_cases(run, plan)


def _apart(prepared: Prepared, toml: str) -> dict[str, str]:
    """Return, by a digest's name, what may explain its change: changed settings, or source files."""
    before = ""
    with contextlib.suppress(OSError, DdpbenchError):  # the file is read only for the message
        before = read_text(prepared.run.experiment, MOST_NOTES)
    return {
        "experiment_digest": settings_apart(before, toml),
        "workload_digest": sources_of(sources_named(entry.case for entry in prepared.plan.cases)),
    }


def identify(
    prepared: Prepared,
    server: ServerProcess,
    listener: Listener,
    claim_gpus: Callable[[Sequence[str]], object] = lambda _: None,
) -> Found:
    """Write machine.json, plan.json and experiment.toml, or compare them with the existing ones.

    `claim_gpus` is called with the UUIDs of the used GPUs, before anything is computed on them or written.

    Raises:
        IdentityError: the directory belongs to a different machine or experiment.
        MachineError: raised by `claim_gpus`.
        WorkloadError: a user's workload does not work.
    """
    run, plan = prepared.run, prepared.plan
    probe = probed(server, run.path)
    (run.path / "probe.json").unlink(missing_ok=True)
    (run.path / "probe.log").unlink(missing_ok=True)
    if any(entry.case.device == "cuda" for entry in plan.runnable):
        claim_gpus([gpu.get("uuid", "") for gpu in probe["gpus"]])
    toml = prepared.experiment.to_toml()
    record = machine_record(prepared.hardware, probe, toml, plan.cases)
    own = inspect_own(server, [entry.case for entry in plan.runnable], run.path)
    for name, facts in own.items():
        listener.looked_at(summary_of(name, facts))
    plan = _settled(prepared, server, own, listener)
    record["context"]["own_workloads"] = {name: identifying(facts) for name, facts in own.items()}
    if prepared.resumes:
        check_identity(read_machine(run), record, run.path, _apart(prepared, toml))
        _check_cases(run, plan)
    else:
        write_atomically(run.machine, json.dumps(record, indent=1) + "\n")
        write_atomically(run.experiment, toml)
        write_atomically(run.plan, plan.dumps())  # last, because its existence makes the directory resumable
    return Found(
        gpu_addresses=[gpu["pci"] for gpu in probe["gpus"]],
        plan=plan,
        tried=tried(own),
    )


def _settled(
    prepared: Prepared, server: ServerProcess, own: Mapping[str, Mapping[str, Any]], listener: Listener
) -> Plan:
    """Return the plan without users' classes that failed (`own` has their trials), and without equal bucket caps."""
    plan = prepared.plan
    cases: Sequence[PlannedCase] = within_own(plan.cases, own)
    for line in skipped_by_trial(plan.cases, cases):
        listener.looked_at(line)
    if not prepared.resumes:
        summary_of = set(sentences(cases))
        cases = without_equal(cases, gradients_in_rank(server, prepared.run.path))
        for sentence in sentences(cases):
            if sentence not in summary_of:
                listener.looked_at(sentence)
    if tuple(cases) == plan.cases:
        return plan
    stored = read_plan(prepared.run) if prepared.resumes else None
    return replace(make_plan(plan.experiment, cases, stored), run_id=plan.run_id)


def _check_cases(run: RunDir, plan: Plan) -> None:
    """Check that a plan has the same cases, by id, as the run's stored plan.

    Raises:
        IdentityError: the cases differ.
    """
    stored = set(read_plan(run).ids)
    now = {entry.case.case_id for entry in plan.cases}
    if stored != now:
        raise IdentityError(
            f"{run.path} was planned with other cases: give another --out (only planned before: "
            f"{_few(stored - now) or 'none'}; only planned now: {_few(now - stored) or 'none'})"
        )


def _few(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids)[:3])
