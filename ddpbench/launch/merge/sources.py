"""Read the runs to be merged, and check that their results belong together.

Every key of `identity` must agree, apart from the exceptions at `ALLOCATION`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddpbench.errors import IdentityError, RequestError, meant_path
from ddpbench.machine.identity import sources_named
from ddpbench.records import RunDir
from ddpbench.records.machine import read_machine, read_merged
from ddpbench.records.plan import MergedRun, Starter, StoredPlan, read_plan
from ddpbench.records.rundir import is_run
from ddpbench.records.sessions import read_sessions, stop_reason_of
from ddpbench.records.submission_dir import run_at
from ddpbench.spec.documents import stated_scope
from ddpbench.text_safety import on_one_line
from ddpbench.workloads import is_import_path
from ddpbench.workloads.shipped import PREFIX

ALLOCATION = ("cores", "physical_cores", "cpu_quota", "slots", "experiment_digest")
"""Keys of `identity` that may differ between the runs of a merge.

Two other keys may differ in part. `gpus` may differ in number, but not in kind. `workload_digest`, a digest of all
workloads of a run, may differ if the runs have different workloads and share no user's class and no replay.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A run to be merged."""

    path: Path
    machine: Mapping[str, Any]
    plan: Mapping[str, Any]
    stored: StoredPlan
    """The validated plan of the run."""
    sessions: Sequence[Any]
    fingerprints: frozenset[str]
    """Digests that identify the run, or each run that it was merged from."""
    experiment: str | None
    """The experiment's text; None if it cannot be read."""
    origins: Sequence[Mapping[str, Any]]
    spent: bool
    """True if the run ended because `budget.total` was spent."""

    @property
    def run(self) -> RunDir:
        """The run's directory."""
        return RunDir(self.path)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the run's machine and programs."""
        identity = self.machine.get("identity")
        return identity if isinstance(identity, dict) else {}

    @property
    def context(self) -> dict[str, Any]:
        """Further facts about the run's machine."""
        context = self.machine.get("context")
        return context if isinstance(context, dict) else {}

    @property
    def started_by(self) -> Starter:
        """The ddpbench command that continues the run."""
        if "submitted_nodes" in self.context:
            return "submit"
        return "plan" if "planned_nodes" in self.context else "sweep"

    def merged_runs(self, first_round: int, rounds: int, cases: frozenset[str]) -> list[MergedRun]:
        """Return the merged plan's entries for this run or, if it was itself merged, for the runs in it.

        Args:
            first_round: the run's first round in the merged run.
            rounds: how many of the run's rounds were copied.
            cases: the ids of the cases whose launches, if any, were copied.
        """
        if self.stored.merged:
            return [
                replace(
                    run,
                    first_round=first_round + run.first_round,
                    end_round=first_round + min(run.end_round, rounds),
                    cases=run.cases & cases,
                )
                for run in self.stored.merged
            ]
        runnable = {entry.case.case_id for entry in self.stored.runnable}
        budget = self.stored.budget
        return [
            MergedRun(
                path=str(origin["path"]),
                started_by=self.started_by,
                first_round=first_round,
                end_round=first_round + rounds,
                rounds_min=budget.rounds_min,
                target_half_width=budget.target_half_width,
                spent=self.spent,
                cases=cases & runnable,
            )
            for origin in self.origins
        ]

    @property
    def sources(self) -> set[str]:
        """The names of the cases' workloads and users' strategies, whose source code `workload_digest` covers."""
        return set(sources_named(entry.case for entry in self.stored.cases))


def read(path: Path) -> Source:
    """Read the run in a directory.

    Raises:
        RequestError: this is not a run directory.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else f"does not exist{meant_path(path, is_run)}"
        raise RequestError(f"{path} {what}; give run directories to merge")
    run = run_at(path)
    path = run.path
    stored = read_plan(run)  # validates the whole plan
    machine, plan, merged = read_machine(run), run.read_json(run.plan), read_merged(run)
    contents = json.dumps([machine, plan["cases"]], sort_keys=True)
    own = hashlib.sha256(contents.encode()).hexdigest()[:16]
    context = machine.get("context") or {}
    identity = machine.get("identity") or {}
    text = run.experiment_text()
    origins: list[dict[str, Any]] = [
        {
            "path": str(path),
            "fingerprint": own,
            "host": context.get("host"),
            "started_utc": context.get("started_utc"),
            "git_commit": context.get("git_commit"),
            "cores": len(devices_of(identity.get("cores"))),
            "gpus": len(devices_of(identity.get("gpus"))),
            "question": stored.question,
            "scope": stored.scope or stated_scope(text or ""),
        }
    ]
    if merged:
        origins = merged["sources"]
    return Source(
        path=path,
        machine=machine,
        plan=plan,
        stored=stored,
        experiment=text,
        sessions=read_sessions(run),
        fingerprints=frozenset(str(origin["fingerprint"]) for origin in origins),
        origins=origins,
        spent=stop_reason_of(run) == "budget",
    )


def check_different(sources: Sequence[Source]) -> None:
    """Check that no run is given twice, either directly or as part of a merged run.

    Raises:
        RequestError: a run is given twice.
    """
    for index, source in enumerate(sources):
        for other in sources[:index]:
            if source.path.samefile(other.path):
                raise RequestError(
                    f"{source.path} is given twice, but every launch may count only once: leave one out"
                )
            if source.fingerprints & other.fingerprints:
                raise RequestError(
                    f"{other.path} and {source.path} hold the same run or a merge of it (same host, "
                    "start and cases), but every launch may count only once: leave one out"
                )


def check_alike(sources: Sequence[Source]) -> None:
    """Check that the runs were measured on the same kind of machine, by the same programs.

    Raises:
        IdentityError: a run differs from the first; the message names all differences.
    """
    first = sources[0]
    lines = [
        f"  {on_one_line(f'{key}: {mine!r} in {first.path}, {theirs!r} in {other.path}')}"
        for other in sources[1:]
        for key, mine, theirs in _differences(first, other)
    ]
    if lines:
        listed = "\n".join(lines)
        raise IdentityError(
            "these runs were measured on different machines or by different programs, so their results "
            "are not comparable. Merge only runs that are alike, and report the others "
            f"separately\n{listed}"
        )


def _differences(first: Source, other: Source) -> list[tuple[str, object, object]]:
    differing: list[tuple[str, object, object]] = []
    for key in dict.fromkeys([*first.identity, *other.identity]):
        mine, theirs = first.identity.get(key), other.identity.get(key)
        if key in ALLOCATION or mine == theirs:
            continue
        if key == "gpus":
            mine, theirs = sorted(set(devices_of(mine))), sorted(set(devices_of(theirs)))
        elif key == "workload_digest" and first.sources != other.sources:
            # digests of different workloads cannot be compared; rank_code_digest covers ddpbench's own
            own = {
                name
                for name in first.sources | other.sources
                if is_import_path(name) or name.startswith(PREFIX)
            }
            if not own & first.sources & other.sources:
                continue
        if mine != theirs:
            differing.append((key, mine, theirs))
    return differing


def devices_of(value: Any) -> list[Any]:
    """Return the cores or GPUs in a value of machine.json as one list.

    The value may be a list or a dict of lists by host.
    """
    if isinstance(value, Mapping):
        return [one for own in value.values() for one in own or ()]
    return list(value or ())
