"""Groups of comparable cases: panels, and groups of cases that differ in a single respect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.spec import grouping
from ddpbench.spec.grouping import cap_order
from ddpbench.strategies.traits import traits_of

MOST_PANELS = 3
"""Largest number of panels from which sentences are made, starting with the largest panel."""


def panels(cases: Iterable[CaseRun]) -> list[list[CaseRun]]:
    """Return the cases in panels, which are groups of comparable cases.

    Single and independent ranks, which use no link, are in the panels of all networks.
    """
    every = list(cases)
    groups = grouped(every, lambda run: grouping.panel(run.case))
    free = [run for run in every if not run.case.fabric and _needs_no_link(run)]
    taken: set[str] = set()
    found: dict[tuple[Any, ...], list[CaseRun]] = {}
    for key, members in groups.items():
        joined = [one for one in free if members[0].case.fabric and _same_but_links(one, members[0])]
        taken |= {one.case_id for one in joined}
        found[key] = [*joined, *members]
    return [members for members in found.values() if not taken.issuperset(run.case_id for run in members)]


def _needs_no_link(run: CaseRun) -> bool:
    return run.case.world_size == 1 or not traits_of(run.case).exchanges


def _same_but_links(run: CaseRun, other: CaseRun) -> bool:
    return grouping.panel(run.case, but=("fabric",)) == grouping.panel(other.case, but=("fabric",))


def layouts_of(cases: Iterable[CaseRun]) -> dict[str, int]:
    """Return each case's number of nodes, by case id; 0 if its strategy ran each number of ranks in one layout."""
    found: dict[str, int] = {}
    for members in grouped(
        cases, lambda run: (grouping.panel(run.case), grouping.variant(run.case))
    ).values():
        shapes = {(run.case.world_size, run.case.nodes) for run in members}
        several = len(shapes) > len({world for world, _ in shapes})
        found |= {run.case_id: run.case.nodes if several else 0 for run in members}
    return found


def measured(cases: Iterable[CaseRun]) -> list[CaseRun]:
    """Return the cases with measured step times.

    If several bucket caps give equal buckets, only the case with the first of these caps is kept.
    """
    found = [run for run in cases if run.status == "ok" and run.timings]
    equal = {other.case_id for _, others in equal_buckets(found) for other in others}
    return [run for run in found if run.case_id not in equal]


def equal_buckets(cases: Iterable[CaseRun]) -> list[tuple[CaseRun, list[CaseRun]]]:
    """Return groups of cases that differ only in their caps and whose buckets are equal, as (first, others)."""
    with_buckets = [
        run for run in cases if run.bucket_bytes is not None and run.case.bucket_cap_mb is not None
    ]
    groups = grouped(
        with_buckets, lambda run: (grouping.alike(run.case, but=("bucket_cap_mb",)), run.bucket_bytes)
    )
    ordered = [sorted(group, key=lambda run: cap_order(run.case.bucket_cap_mb)) for group in groups.values()]
    return [(first, others) for first, *others in ordered if others]


def grouped(cases: Iterable[CaseRun], key: Any) -> dict[tuple[Any, ...], list[CaseRun]]:
    """Return the cases in groups of equal keys, as a dictionary in the order of the groups' first members."""
    groups: dict[tuple[Any, ...], list[CaseRun]] = {}
    for run in cases:
        groups.setdefault(key(run), []).append(run)
    return groups


def bucket_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return groups of cases that differ in bucket cap, with the same strategy and number of ranks."""
    with_caps = [run for run in measured(cases) if run.case.bucket_cap_mb is not None]
    nodes = layouts_of(with_caps)

    def key(run: CaseRun) -> tuple[Any, ...]:
        return (grouping.panel(run.case), grouping.variant(run.case), run.case.world_size, nodes[run.case_id])

    return [group for group in grouped(with_caps, key).values() if len(group) > 1]


def layout_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return groups of cases that differ in how ranks are laid out on nodes, with the same strategy and ranks."""

    def key(run: CaseRun) -> tuple[Any, ...]:
        return (
            grouping.panel(run.case),
            grouping.variant(run.case),
            run.case.world_size,
            run.case.bucket_cap_mb,
        )

    return [group for group in grouped(measured(cases), key).values() if len(group) > 1]


def strategy_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return groups of cases that differ in strategy, with the same number of ranks. All aggregate gradients.

    Each strategy is represented by the case with its default bucket cap, or else with its smallest measured cap.
    """
    able = [run for run in measured(cases) if traits_of(run.case).exchanges]
    nodes = layouts_of(able)
    shared = any(nodes.values())  # then strategies are compared in the same layout

    def at(run: CaseRun) -> tuple[Any, ...]:
        return (grouping.panel(run.case), run.case.world_size, run.case.nodes if shared else 0)

    variants = grouped(able, lambda run: (*at(run), grouping.variant(run.case)))
    chosen = [min(group, key=lambda run: cap_order(run.case.bucket_cap_mb)) for group in variants.values()]
    groups = grouped(chosen, at)
    return [group for group in groups.values() if len(group) > 1]


def rank_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return groups of comparable cases with the same number of ranks.

    All of them aggregate gradients, with separate cores for each rank.
    """
    able = [run for run in measured(cases) if exchanges_gradients(run) and not run.oversubscribed]
    groups = grouped(able, lambda run: (grouping.panel(run.case), run.case.world_size))
    return [group for group in groups.values() if len(group) > 1]


def fair_panels(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return the groups of comparable cases (panels) in which any case aggregates gradients, the largest first.

    Only cases with separate cores for each rank are included.
    """
    fair = [run for run in measured(cases) if not run.oversubscribed]
    ordered = sorted(panels(fair), key=lambda members: -len(members))
    return [members for members in ordered if any(exchanges_gradients(run) for run in members)]


def compared_panels(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return the groups of comparable cases (panels) from which findings are made, the largest first."""
    return fair_panels(cases)[:MOST_PANELS]


def exchanges_gradients(run: CaseRun) -> bool:
    """Return whether the case has several ranks that aggregate gradients."""
    return traits_of(run.case).exchanges and run.case.world_size > 1


def _largest(members: Sequence[CaseRun]) -> int:
    return max(run.case.world_size for run in members if exchanges_gradients(run))


def with_one_process(cases: Sequence[CaseRun]) -> tuple[CaseRun, CaseRun] | None:
    """Return the reference case of the first panel, and the one-process case with about as many threads.

    None if the reference's launcher measured no such case.
    """
    if len({run.case.threads_per_rank for run in cases}) < 2:
        return None
    shared = ("threads_per_rank", "fabric")
    for members in compared_panels(cases)[:1]:
        reference = reference_of(members)
        own = reference.case.threads_per_rank
        candidates = [
            run
            for run in measured(cases)
            if traits_of(run.case).role == "base"
            and run.case.threads_per_rank > own
            and run.case.compute == "real"
            and not run.oversubscribed
            and run.case.launcher == reference.case.launcher
            and grouping.panel(run.case, but=shared) == grouping.panel(reference.case, but=shared)
        ]
        if candidates:
            cores = reference.case.world_size * own
            return reference, min(candidates, key=lambda run: abs(run.case.threads_per_rank - cores))
    return None


def reference_of(members: Sequence[CaseRun]) -> CaseRun:
    """Return the case to compare others with: DDP at the largest world size, at its default cap if measured.

    Without DDP, it is the plan's first strategy that aggregates. Choosing the fastest case would reward luck.
    """
    world = _largest(members)
    able = [run for run in members if exchanges_gradients(run) and run.case.world_size == world]
    ddp = [run for run in able if traits_of(run.case).role == "reference"] or able
    chosen = [run for run in ddp if grouping.variant(run.case) == grouping.variant(ddp[0].case)]
    return min(chosen, key=lambda run: cap_order(run.case.bucket_cap_mb))
