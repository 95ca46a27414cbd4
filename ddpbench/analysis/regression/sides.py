"""A side of a comparison: its cases, and the machine and software with which they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.records import RunDir
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import read_plan
from ddpbench.spec.differences import SEED, differing_settings
from ddpbench.spec.matching import fields_set, match
from ddpbench.text_safety import on_one_line

CODE = ("experiment_digest", "workload_digest", "rank_code_digest")
"""Parts of a run's identity that may differ, because they concern the code that is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A run on one side of a comparison. Sentences call it by its `name`."""

    name: str
    path: Path
    """Run directory or file from which it was read."""
    cases: tuple[CaseRun, ...]
    machine: Mapping[str, Any]
    commit: str = ""
    """Commit of its code; empty if unknown."""
    tests: tuple[str, ...] = ()
    """Full name of the pytest-benchmark test that measured each case, in order; empty for a run directory."""
    lacks: str = ""
    """Sentence on information that a run directory has and this side lacks; empty if nothing is missing."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the recorded identity of the machine and software with which the side was measured."""
        found: Mapping[str, Any] = self.machine.get("identity", {})
        return found

    @property
    def experiment(self) -> str:
        """Return the text of the run's experiment; empty if the side is a file, or the text cannot be read."""
        return (RunDir(self.path).experiment_text() if self.path.is_dir() else None) or ""


def read_side(run: RunDir, name: str = "", *, commit: str | None = None) -> Side:
    """Read a run as a side. `commit` is the commit of its code; by default, the recorded commit is used.

    Raises:
        IdentityError: `run` is not a run directory, or has another schema.
    """
    plan = read_plan(run)
    machine = read_machine(run)
    there = str(machine.get("context", {}).get("git_commit") or "")
    return Side(
        name=on_one_line(name or str(run.path)),
        path=run.path,
        cases=tuple(read_cases(run, plan)),
        machine=machine,
        commit=on_one_line(there if commit is None else commit),
    )


_OF_TEXTS = frozenset({SEED, "name", "question", "scope", "claims"})
"""Parts of an experiment that change nothing in what a launch of a case measures."""


def settings_between(base: Side, new: Side) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the sides' experiments differ, each with its value of base and of new.

    The value of a setting that a side does not have is None.
    """
    return differing_settings(base.experiment, new.experiment, ignored=_OF_TEXTS)


def fields_between(base: Side, new: Side) -> tuple[str, ...]:
    """Return the fields of a case that the settings in which the sides' experiments differ may set.

    Empty if the sides have a case in common, which shows that they were meant to be equal.
    """
    mine, others = (
        [run.case for run in side.cases if not run.planned.added_as_baseline] for side in (base, new)
    )
    if match(mine, others).pairs:
        return ()
    names = [name.removeprefix("axes.") for name in settings_between(base, new) if "." in name]
    return fields_set(name if "." in name else f"base.{name}" for name in names)


def unlike(base: Side, new: Side) -> list[str]:
    """Describe each difference between the sides' machines and software, such as torch.

    Empty if all are the same.
    """
    before, after = base.identity, new.identity
    untold = {"physical_cores"} - (before.keys() & after.keys())  # older runs lack it
    names = [name for name in dict.fromkeys([*before, *after]) if name not in CODE and name not in untold]
    return [
        f"{on_one_line(name)}: {before.get(name)!r} in {base.name}, {after.get(name)!r} in {new.name}"
        for name in names
        if before.get(name) != after.get(name)
    ]
