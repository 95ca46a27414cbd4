"""Find rounds that were measured earlier with a sweep's cases on this machine, to forecast how far intervals narrow."""

from __future__ import annotations

import glob
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.errors import DdpbenchError
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.machine.identity import known_identity
from ddpbench.planted import is_decoy
from ddpbench.records import RunDir
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import read_plan

if TYPE_CHECKING:
    from ddpbench.analysis import SoFar

_OTHER = ("experiment_digest", "rank_code_digest")
"""Facts of a run's identity that may differ, because its cases and settings are compared instead."""
_ALIKE = ("measured_s", "turns")
"""Settings of the budget on which the scatter of rounds depends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRounds:
    """A run with rounds of a sweep's cases, measured on this machine."""

    run: RunDir
    found: SoFar
    case_ids: tuple[str, ...]
    resumed: bool
    """True if the sweep resumes this run, so that these rounds count for it."""


def earlier_rounds(prepared: Prepared) -> EarlierRounds | None:
    """Return the resumed run itself or, for a new run, the newest run in `reports` with the same cases and conditions.

    None without such a run. Its intervals must be known. Packed runs are left out, because reading them unpacks them.
    """
    if prepared.resumes:
        return _measured(prepared, prepared.run)
    folder = Path("reports")
    with suppress(DdpbenchError, OSError):  # it may not be readable
        if is_decoy(str(folder)) or not folder.is_dir():
            return None
        paths = sorted(folder.glob(f"{glob.escape(prepared.experiment.name)}-*"), reverse=True)
        runs = [run for path in paths if (run := RunDir(path)).cases.is_dir()]
        here = _identity(prepared) if runs else {}
        alike = (run for run in runs if _is_alike(run, here, prepared))
        return next((found for run in alike if (found := _measured(prepared, run))), None)
    return None


def _identity(prepared: Prepared) -> dict[str, Any]:
    """Return the facts about this machine and the cases' sources that must be equal."""
    known = known_identity(prepared.hardware, prepared.experiment.to_toml(), prepared.plan.cases)
    return {name: value for name, value in known.items() if name not in _OTHER}


def _is_alike(run: RunDir, here: dict[str, Any], prepared: Prepared) -> bool:
    with suppress(DdpbenchError, OSError):
        there = read_machine(run).get("identity", {})
        if any(there.get(name) != value for name, value in here.items()):
            return False
        plan, budget = read_plan(run), prepared.plan.budget
        ids = {entry.case.case_id for entry in plan.runnable}
        alike = all(getattr(plan.budget, name) == getattr(budget, name) for name in _ALIKE)
        return alike and ids.issuperset(_ids(prepared))
    return False


def _ids(prepared: Prepared) -> tuple[str, ...]:
    return tuple(entry.case.case_id for entry in prepared.plan.runnable)


def _measured(prepared: Prepared, run: RunDir) -> EarlierRounds | None:
    if not run.cases.is_dir():
        return None
    from ddpbench.analysis import so_far  # loads pandas

    with suppress(DdpbenchError, OSError):
        found, case_ids = so_far(run), _ids(prepared)
        if found.widest_at(found.made, case_ids) is not None:
            return EarlierRounds(run=run, found=found, case_ids=case_ids, resumed=prepared.resumes)
    return None
