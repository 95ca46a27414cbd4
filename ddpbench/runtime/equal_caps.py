"""Find values of DDP's bucket_cap_mb that give a model the same gradient buckets, and run one case for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ddpbench.records.plan import StoredPlan
from ddpbench.runtime.estimate import gradient_width, replay_of
from ddpbench.spec import Case, PlannedCase, grouping
from ddpbench.spec.buckets import bucket_bytes, caps_worth, equal_words

Gradients = Callable[[Case], Sequence[int] | None]
"""Function that returns the size of each gradient of a case (bytes), in the order of readiness; None if unknown."""


def without_equal(cases: Sequence[PlannedCase], gradients: Gradients) -> list[PlannedCase]:
    """Replace each set of cases that differ only in the bucket cap, but have equal buckets, by one case.

    That is the case with DDP's default cap, or else the first. Its `stands_for` lists the other caps. A case with
    unknown gradients stays as it is.
    """
    known: dict[grouping.GroupKey, Sequence[int] | None] = {}
    kept: dict[str, PlannedCase] = {entry.case.case_id: entry for entry in cases}
    for members in _groups(cases):
        first = members[0].case
        key = (*grouping.deciding("state", first), first.shrink)
        if key not in known:
            known[key] = gradients(first)
        sizes = known[key]
        if sizes:
            for entry, others in _alike(members, sizes):
                kept[entry.case.case_id] = entry
                for other in others:
                    del kept[other.case.case_id]
    return list(kept.values())


def _groups(cases: Sequence[PlannedCase]) -> list[list[PlannedCase]]:
    groups: dict[grouping.GroupKey, list[PlannedCase]] = {}
    for entry in cases:
        options = entry.case.options
        if entry.skip_reason is not None or entry.case.bucket_cap_mb is None:
            continue
        if options.get("find_unused_parameters") and not options.get("static_graph"):
            continue  # DDP's reducer then never rebuilds its first buckets, which follow the model's parameter order
        groups.setdefault(grouping.alike(entry.case, but=("bucket_cap_mb",)), []).append(entry)
    return [members for members in groups.values() if len(members) > 1]


def open_words(cases: Sequence[PlannedCase]) -> str:
    """Return a sentence if only running a rank can show which bucket caps make equal buckets; otherwise `""`."""
    if all(replayed_gradients(members[0].case) for members in _groups(cases)):
        return ""
    return "bucket caps that make the same buckets are found before the timed launches, and run once"


def _alike(
    members: Sequence[PlannedCase], sizes: Sequence[int]
) -> list[tuple[PlannedCase, list[PlannedCase]]]:
    """Return, per set of equal buckets, the case that stands for it and the others.

    `sizes` has the bytes of each gradient, in the order in which gradients become ready.
    """
    by_buckets: dict[tuple[int, ...], list[PlannedCase]] = {}
    for entry in members:
        by_buckets.setdefault(bucket_bytes(sizes, entry.case.bucket_cap_mb, entry.case.shrink), []).append(
            entry
        )
    groups = []
    caps = [entry.case.bucket_cap_mb for entry in members]
    for alike in by_buckets.values():
        one = next((entry for entry in alike if entry.case.bucket_cap_mb == "default"), alike[0])
        others = [entry for entry in alike if entry is not one]
        if others:
            stands_for = tuple(entry.case.bucket_cap_mb for entry in others)
            worth = caps_worth(sizes, caps, one.case.shrink)
            made_of = [*one.combinations, *(each for other in others for each in other.combinations)]
            standing = replace(one, stands_for=stands_for, caps_worth=worth, combinations=made_of)
            groups.append((standing, others))
    return groups


def as_stored(cases: Sequence[PlannedCase], stored: StoredPlan | None) -> list[PlannedCase]:
    """Return the cases, with each set of equal cases replaced by its representative in a resumed run's stored plan.

    If `stored` is None, return all cases.
    """
    if stored is None:
        return list(cases)
    standing = {entry.case.case_id: entry for entry in stored.cases if entry.stands_for}
    gone = {
        replace(entry.case, bucket_cap_mb=cap).case_id
        for entry in standing.values()
        for cap in entry.stands_for
    }
    return [
        replace(entry, stands_for=found.stands_for, caps_worth=found.caps_worth)
        if (found := standing.get(entry.case.case_id)) is not None
        else entry
        for entry in cases
        if entry.case.case_id not in gone
    ]


def replayed_gradients(case: Case) -> list[int] | None:
    """Return the size of each gradient of a replay (bytes), in the order of its profile; None for other workloads."""
    replay = replay_of(case)
    if replay is None:
        return None
    rhythm, width = replay.for_case(case, 0).rhythm, gradient_width(case)
    return [width * rhythm.elements(number) for number in replay.profile.order]


def sentences(cases: Sequence[PlannedCase]) -> list[str]:
    """Return one sentence for each set of bucket caps that is represented by a single case."""
    lines: dict[str, None] = {}
    for entry in cases:
        if entry.stands_for:
            case = entry.case
            lines[equal_words(case.workload, case.bucket_cap_mb, entry.stands_for, entry.caps_worth)] = None
    return list(lines)
