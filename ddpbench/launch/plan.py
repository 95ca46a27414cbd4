"""Plan the launches of each round, their order, and their ranks' environments and cores."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpbench.errors import ExperimentError, Problem
from ddpbench.launch.memory import step_bytes
from ddpbench.machine.hardware import Hardware, numa_cores
from ddpbench.machine.placement import deal, early_env
from ddpbench.naming import Namer
from ddpbench.records import SCHEMA_VERSION, LaunchDir, RunDir
from ddpbench.records.plan import StoredPlan, claims_json, launches_json, planned_json
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.estimate import Tried, crowded_ids, launch_s, proof_s, server_starts_s
from ddpbench.runtime.order import run_order
from ddpbench.runtime.progress import Done, to_prove
from ddpbench.spec import Budget, Case, Catalog, Experiment, PlannedCase
from ddpbench.spec.claims import PlannedClaim, planned_claims
from ddpbench.spec.limits import MAX_LAUNCHES
from ddpbench.text_safety import command, quoted

FABRIC_PORT = 29500
FABRIC_INTERFACE = "eth0"


def skip_reasons(entries: Sequence[PlannedCase]) -> str:
    """Return a line for each reason to skip cases.

    The line names the first case with this reason, and the number of further cases.
    """
    names = Namer(entry.case for entry in entries)
    by_reason: dict[str | None, list[PlannedCase]] = {}
    for entry in entries:
        by_reason.setdefault(entry.skip_reason, []).append(entry)
    return "\n".join(
        f"  {names.full(first.case)}{f' and {len(more)} more' if more else ''}: {reason}"
        for reason, (first, *more) in by_reason.items()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRank:
    """A rank of a launch, and the environment variables to set for it."""

    env: dict[str, str]

    def command(self, run: RunDir, case_id: str, what: str) -> str:
        """Return a shell command line that runs the rank. `what` is `proof` or a round's number."""
        env = [f"{key}={quoted(value)}" for key, value in sorted(self.env.items()) if value]
        unset = [command("-u", key) for key, value in sorted(self.env.items()) if not value]
        argv = [sys.executable, "-P", "-m", "ddpbench.worker", str(run.path), case_id, what]
        return " ".join([*(["env", *unset] if unset else []), *env, command(*argv)])


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """A planned launch: its case, purpose and round, and its ranks with their environment and cores."""

    case: Case
    purpose: Purpose
    round: int
    server_env: dict[str, str]
    """Variables that must be set before a rank imports anything. Launches with equal variables share a fork server."""
    ranks: tuple[PlannedRank, ...]
    cores: tuple[int, ...]
    """The cores that the launch's ranks and their loader workers may use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All cases, and all launches up to `rounds_max` in run order; the stopping rule may leave out the last ones."""

    experiment: Experiment
    cases: tuple[PlannedCase, ...]
    order: tuple[tuple[int, str], ...]
    """(round, case id) of every launch, in run order."""
    run_id: str = ""
    """The id in all records of the run, which tells them from records of a different run; empty for older runs."""
    tried: Mapping[str, Tried] = field(default_factory=dict)
    """Results of trial steps of users' workloads, by the workload's name with options. Estimates use these results."""
    claims: tuple[PlannedClaim, ...] = ()
    """The experiment's claims, with the pairs of cases that decide them."""
    crowded: frozenset[str] = field(init=False, repr=False, compare=False)
    """The ids of cases whose ranks share cores."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "crowded", crowded_ids(self.cases))

    def case(self, case_id: str) -> PlannedCase:
        """Return the planned case with that id."""
        return next(entry for entry in self.cases if entry.case.case_id == case_id)

    @property
    def budget(self) -> Budget:
        """The experiment's budget."""
        return self.experiment.budget

    @property
    def runnable(self) -> tuple[PlannedCase, ...]:
        """The cases that are not skipped."""
        return tuple(entry for entry in self.cases if entry.skip_reason is None)

    @property
    def names(self) -> Namer:
        """An object that gives each of the plan's cases a distinct name."""
        return Namer(entry.case for entry in self.cases)

    def launch_s(self, case: Case) -> float:
        """Estimate how long one launch of a case takes, seconds."""
        tried, crowded = self.tried.get(case.workload_with_options), case.case_id in self.crowded
        return launch_s(case, self.experiment.budget, tried, crowded=crowded)

    def proof_s(self, case: Case) -> float:
        """Estimate how long the proof of a case takes, seconds."""
        tried, crowded = self.tried.get(case.workload_with_options), case.case_id in self.crowded
        return proof_s(case, tried, crowded=crowded)

    def step_bytes(self, case: Case) -> int | None:
        """Estimate the memory of one launch of a case in its measured steps, bytes; None if it is unknown."""
        tried = self.tried.get(case.workload_with_options)
        return step_bytes(case, tried.gradient_bytes if tried is not None else None)

    def estimate_s(
        self,
        rounds: int,
        left: Mapping[str, int] | None = None,
        proofs: Iterable[Case] | None = None,
        *,
        shared: bool = False,
    ) -> float:
        """Estimate how long this many rounds and the proofs before them take, seconds.

        `left` maps case ids to launches left (None: the given rounds). `proofs` has the cases to prove (None: all).
        With `shared`, other sweeps use the machine, and fork servers are started only once.
        """
        cases = [entry.case for entry in self.runnable]
        launches_s = sum(
            (rounds if left is None else left.get(case.case_id, 0)) * self.launch_s(case) for case in cases
        )
        proofs_s = sum(self.proof_s(case) for case in (to_prove(self.runnable) if proofs is None else proofs))
        return launches_s + server_starts_s(rounds, cases, shared=shared) + proofs_s

    def left_s(self, done: Done, *, shared: bool) -> float:
        """Estimate how long the rest of the first `rounds_min` rounds and the remaining proofs take, seconds."""
        promised, proofs = self.budget.rounds_min, to_prove(done.unproved)
        left = {entry.case.case_id: done.unfinished(entry, promised) for entry in done.worthwhile}
        rounds = max([*left.values(), 1 if proofs else 0], default=0)
        return self.estimate_s(min(promised, rounds), left, proofs, shared=shared)

    def to_json(self) -> dict[str, Any]:
        """Return the plan in the form of `plan.json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            **({"run_id": self.run_id} if self.run_id else {}),
            "experiment": self.experiment.name,
            "question": self.experiment.question,
            **({"scope": self.experiment.scope} if self.experiment.scope else {}),
            "budget": self.experiment.budget.model_dump(),
            "cases": [planned_json(entry) for entry in self.cases],
            "launches": launches_json(self.order),
            **claims_json(self.claims),
        }

    def dumps(self) -> str:
        """Return the text of `plan.json`."""
        return json.dumps(self.to_json(), indent=1) + "\n"


def with_seed(experiment: Experiment, stored: StoredPlan | None = None) -> Experiment:
    """Return the experiment with a seed for the order of launches: its own, or the resumed run's, or a random seed."""
    if experiment.budget.seed is not None:
        return experiment
    seed = stored.budget.seed if stored is not None else None
    budget = experiment.budget.model_copy(update={"seed": secrets.randbits(32) if seed is None else seed})
    return experiment.model_copy(update={"budget": budget})


def make_plan(experiment: Experiment, cases: Sequence[PlannedCase], stored: StoredPlan | None = None) -> Plan:
    """Return a plan whose rounds have random, balanced orders (`ddpbench.runtime.order`).

    The seed is the budget's, or drawn and stored in the plan's experiment. A resumed run keeps its `stored` order; a
    sweep refuses it later if its cases have changed.

    Raises:
        ExperimentError: there would be too many launches; raised before their order is made.
    """
    experiment = with_seed(experiment, stored)
    budget = experiment.budget
    count = sum(entry.skip_reason is None for entry in cases)
    if count * budget.rounds_max > MAX_LAUNCHES:
        message = (
            f"{budget.rounds_max:,} given; {count:,} cases in {budget.rounds_max:,} rounds are "
            f"{count * budget.rounds_max:,} launches, but a plan must have {MAX_LAUNCHES:,} at most"
        )
        raise ExperimentError(experiment.name, [Problem(path="budget.rounds_max", message=message)])
    order = run_order(cases, budget)
    if stored is not None and sorted(stored.order) == sorted(order):
        order = list(stored.order)
    run_id = secrets.token_hex(6) if stored is None else stored.run_id
    claims = planned_claims(experiment.claims, experiment.axes, cases) if stored is None else stored.claims
    return Plan(experiment=experiment, cases=tuple(cases), order=tuple(order), run_id=run_id, claims=claims)


def plan_launch(
    case: Case,
    purpose: Purpose,
    round_number: int,
    *,
    directory: LaunchDir,
    hardware: Hardware,
    catalog: Catalog,
    gpu_addresses: Sequence[str | None] = (),
) -> LaunchPlan:
    """Plan a launch of a case, with cores for its ranks and loader workers.

    Each rank gets cores near its GPU if there are enough; otherwise rank r gets core r modulo the number of cores.
    Loader workers use the remaining cores, or else their rank's.
    """
    processes = 1 if catalog.strategy(case.strategy).one_process else case.world_size
    stands = deal(
        hardware.cores,
        processes,
        threads=case.threads_per_rank * (case.world_size // processes),
        loader_workers=case.loader_workers,
        nearby=_nearby(hardware, processes, gpu_addresses) if case.device == "cuda" else (),
        pinned=case.compute == "real",  # a replay's ranks sleep; their transfers use any free core
    )
    server_env = dict(early_env(case))
    a_node = case.ranks_per_node if case.fabric else processes
    meeting = (
        # The fabric has its own addresses; every port is free in its separate network.
        {"MASTER_PORT": str(FABRIC_PORT), "GLOO_SOCKET_IFNAME": FABRIC_INTERFACE}
        if case.fabric
        else {"DDPBENCH_RENDEZVOUS": str(directory.rendezvous.absolute()), "GLOO_SOCKET_IFNAME": "lo"}
    )
    ranks = [
        PlannedRank(
            env={
                **server_env,
                "RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_RANK": str(rank % a_node),
                "LOCAL_WORLD_SIZE": str(min(a_node, processes)),
                "GROUP_RANK": str(rank // a_node),
                **meeting,
                **stand.env,
                **case.env,  # a requested interface overrides the one above
            }
        )
        for rank, stand in enumerate(stands)
    ]
    return LaunchPlan(
        case=case,
        purpose=purpose,
        round=round_number,
        server_env=server_env,
        ranks=tuple(ranks),
        cores=tuple(sorted({core for stand in stands for core in (*stand.cores, *stand.loader_cores)})),
    )


def _nearby(hardware: Hardware, processes: int, gpu_addresses: Sequence[str | None]) -> list[tuple[int, ...]]:
    """Return the cores close to each rank's GPU; if unknown for any rank, all cores for every rank."""
    if not gpu_addresses:
        return [hardware.cores] * processes
    nearby = [numa_cores(gpu_addresses[rank % len(gpu_addresses)]) for rank in range(processes)]
    return nearby if all(nearby) else [hardware.cores] * processes
