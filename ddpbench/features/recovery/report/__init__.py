"""Write the report's section on failures: their cost, part by part, and the best time between snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.summary import RunSummary
from ddpbench.features.recovery.report.costs import costs_of, failures_table, rates_table
from ddpbench.features.recovery.report.goodput import goodput_picture
from ddpbench.features.recovery.report.parts import parts_picture
from ddpbench.report.parts import Section
from ddpbench.report.rows import Row
from ddpbench.spec.grouping import RECOVERIES


def section(run: RunSummary, rows: Sequence[Row]) -> Section | None:
    """Return the report's section on failures; None if no failure happened."""
    costs = costs_of(run.steps.launches, rows)
    if not costs:
        return None
    timed = [cost for cost in costs if cost.found.total is not None]
    pictures = [parts_picture(timed)] if timed else []
    saved = [
        cost
        for cost in timed
        if cost.found.snapshot_mean_s is not None and cost.found.restored_mean_s is not None
    ]
    if saved:
        usual = next((cost for cost in saved if cost.row.case.recovery == "SIGKILL"), saved[0])
        pictures.append(goodput_picture(usual))
    notes = [
        f"{cost.found.failures - cost.found.recoveries} of {cost.found.failures} failures "
        f"({RECOVERIES[cost.row.case.recovery]}) were not recovered from within the launch."
        for cost in costs
        if cost.found.recoveries < cost.found.failures
    ]
    notes += [
        f"Where {cost.name}: {'; '.join(cost.found.unreadable)}; training went on from the snapshot before."
        for cost in costs
        if cost.found.unreadable
    ]
    kinds = {cost.row.case.recovery for cost in costs}
    if "SIGSTOP" in kinds:
        timeout_s = next(c.row.case.collective_timeout for c in costs if c.row.case.recovery == "SIGSTOP")
        notes.append(
            f"A stopped rank is noticed after collective_timeout, {timeout_s:g} s here. torchrun then waits half "
            "a minute before it kills the rank. Both times are settings, not properties of this machine."
        )
    if kinds & {"agent", "leave"}:
        notes.append(
            "If an agent is gone, most of the rendezvous is torchrun's wait until the agent's place expires, "
            "about 15 s by torchrun's settings."
        )
    if len({cost.found.recomputed_steps for cost in costs}) > 1:
        notes.append(
            "The number of recomputed steps is drawn for each round, from anywhere between two snapshots; a rank "
            "that is killed in a snapshot always recomputes all of them. Compare kinds of failures by when "
            "training continues."
        )
    if any(cost.row.case.agents > 1 for cost in costs):
        notes.append("Agents share this machine: each stands for a node, and no network lies between them.")
    return Section(
        anchor="recovery",
        title="Recovery",
        question="What does a failure cost, and how often is a snapshot worth while?",
        pictures=tuple(pictures),
        tables=(failures_table(costs), *rates_table(timed)),
        notes=tuple(notes),
    )
