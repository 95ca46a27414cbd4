"""Compute a job's best snapshot period from the failure rate and the measured costs of snapshots and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.checkpoints import checkpoint_costs
from ddpbench.analysis.goodput import best, daly, ettr, young
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.errors import RequestError
from ddpbench.naming import Namer
from ddpbench.spec.grouping import RECOVERIES
from ddpbench.text_safety import command


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """The best time between snapshots for a job, and the fraction of time that is then spent training (`ettr`).

    Times are in seconds; `period_s` counts training only. The costs of a snapshot and a failure are means over
    launches, as the formula requires.
    """

    mtbf_s: float
    snapshot_s: float
    restored_s: float | None
    """Seconds from a failure until training resumes; None if not measured, and then left out."""
    measured: str
    """The measured setup: strategy, ranks and, if failures were measured, their kind."""
    period_s: float
    young_s: float
    daly_s: float
    ettr: float


def saving_of(cases: Sequence[CaseRun], workload: str, mtbf_s: float) -> Saving:
    """Return the best snapshot period, from the costs measured in a case of this workload.

    Cases with recovery are preferred, of these a killed rank (SIGKILL), and then more ranks.

    Raises:
        RequestError: no case of this workload measured the time of a snapshot.
    """
    able = [run for run in cases if run.status == "ok" and run.case.workload == workload]
    able.sort(key=lambda run: (run.case.recovery != "SIGKILL", -run.case.world_size))
    for run in able:
        cost = run.recovery
        if cost is not None and cost.restored_mean_s is not None and cost.snapshot_mean_s is not None:
            how = f", {RECOVERIES[run.case.recovery]}"
            return _saving(run, mtbf_s, cost.snapshot_mean_s, cost.restored_mean_s, how)
    for run in able:
        costs = checkpoint_costs(run.case_id, [one.checkpoints for one in run.good], run.timings)
        if costs:
            return _saving(run, mtbf_s, min(cost.mean_s for cost in costs), None, "")
    sweep = command("ddpbench", "sweep", "recovery", "--set", f"base.workload={workload}")
    raise RequestError(
        f"--mtbf: no case of {workload} has a measured snapshot time. Measure with base.checkpoint = true, or "
        f"give --recovery RUN_DIR with a run of: {sweep}"
    )


def _saving(run: CaseRun, mtbf_s: float, snapshot_s: float, restored_s: float | None, how: str) -> Saving:
    period_s = best(snapshot_s, mtbf_s)
    return Saving(
        mtbf_s=mtbf_s,
        snapshot_s=snapshot_s,
        restored_s=restored_s,
        measured=f"{Namer([run.case]).short(run.case)}{how}",
        period_s=period_s,
        young_s=young(snapshot_s, mtbf_s),
        daly_s=daly(snapshot_s, mtbf_s),
        ettr=ettr(period_s, snapshot_s, restored_s or 0.0, mtbf_s),
    )
