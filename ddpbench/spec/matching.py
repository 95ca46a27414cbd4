"""Match the cases of two sides that differ in given settings, by all other settings.

A setting **sets** fields of a case, and other fields may **follow** from it: a strategy without buckets has no bucket
cap. Cases are matched by all fields but those set; what is left is also matched without the fields that follow.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from ddpbench.spec.case import Case
from ddpbench.spec.grouping import alike, panel_value
from ddpbench.spec.overrides import whole_keys

_NODES = ("nodes", "ranks_per_node")
_BATCHES = ("local_batch", "global_batch")
FOLLOWING: dict[str, tuple[str, ...]] = {
    "workload": ("workload_options_json", "dtype", "compute", *_BATCHES),
    "strategy": (
        *("algorithm", "schedule", "options_json", "bucket_cap_mb"),
        *("backend", "launcher", "env_json", "fabric", *_NODES),
    ),
    "device": ("backend",),
    "world_size": ("fabric", *_NODES),
    "nodes": ("ranks_per_node", "world_size", "fabric"),
    "scaling": _BATCHES,
    "data": ("loader_workers",),
    "checkpoint": ("checkpoint_dir",),
    "recovery": ("checkpoint_dir", "snapshot_every", "agents", "collective_timeout"),
    "fabric": ("backend", *_NODES),
}
"""Fields of a case that may follow from a field, as `matrix.expand` decides them."""
_SECTIONS: dict[str, tuple[str, ...]] = {
    "options": ("options_json", "workload_options_json"),
    "env": ("env_json",),
    "fabric": ("fabric",),
}
"""Fields that hold the settings of a section."""


def fields_set(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of `Case` that these settings may set: `strategy` for `base.strategy`.

    The keys are as `overrides.whole_keys` returns them: a name without a section is an option's.
    """
    names = {one.name for one in fields(Case)}
    found: set[str] = set()
    for key in keys:
        section, dot, name = key.partition(".")
        if not dot:
            found.update(_SECTIONS["options"])
        elif section == "fabric" and name in _NODES:
            found.update(_NODES)
        elif section in _SECTIONS:
            found.update(_SECTIONS[section])
        elif section == "base" and name in names:
            found.add(name)
    return tuple(sorted(found))


def keys_apart(base: Iterable[str], new: Iterable[str]) -> list[str]:
    """Return the keys of settings that only one side has, or both with different values.

    `base` and `new` are the sides' overrides, such as `base.strategy=ddp`.
    """
    mine, others = list(base), list(new)
    lone = [text for text in [*mine, *others] if (text in mine) != (text in others)]
    return list(dict.fromkeys(key for text in lone for key in whole_keys(text)))


def fields_apart(base: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of `Case` in which the sides of these overrides are meant to differ."""
    return fields_set(keys_apart(base, new))


def with_following(apart: Collection[str]) -> tuple[str, ...]:
    """Return the fields `apart`, and those that may follow from them."""
    more = {name for one in apart for name in FOLLOWING.get(one, ())}
    return (*apart, *sorted(more - set(apart)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """Cases of two sides, as indices: each base case with the new case that it is compared with."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    """In the base's order."""
    unclear: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """Cases of base and new that match each other, so that it is not known which is compared with which."""
    alone: tuple[list[int], list[int]] = ([], [])
    """Cases of base and of new that match none of the other side."""


def match(base: Sequence[Case], new: Sequence[Case], apart: Collection[str] = ()) -> Matching:
    """Match cases that are equal in all fields but `apart` and those that follow from them.

    Names of experiments do not count. Equal cases are matched first. Two axes of as many values are matched in order,
    and so are several equal cases, provided that both sides have equally many.
    """
    pairs: list[tuple[int, int]] = []
    unclear: list[tuple[list[int], list[int]]] = []
    left = list(range(len(base))), list(range(len(new)))
    levels = [(), tuple(apart), with_following(apart)] if apart else [()]
    for but in levels:
        rest: tuple[list[int], list[int]] = [], []
        for mine, others in _groups(base, new, left, but):
            found = _paired(base, new, (mine, others), apart if but else ())
            if found is None:
                unclear.append((mine, others))
                continue
            pairs += found
            for kept, side, indices in ((rest[0], 0, mine), (rest[1], 1, others)):
                kept += [index for index in indices if index not in {pair[side] for pair in found}]
        left = sorted(rest[0]), sorted(rest[1])
    return Matching(pairs=sorted(pairs), unclear=unclear, alone=left)


def _groups(
    base: Sequence[Case], new: Sequence[Case], left: tuple[list[int], list[int]], but: Collection[str]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indices of both sides' cases that are equal in all fields but these."""
    groups: dict[Hashable, tuple[list[int], list[int]]] = {}
    for side, cases in enumerate((base, new)):
        for index in left[side]:
            groups.setdefault(alike(cases[index], but=but), ([], []))[side].append(index)
    yield from groups.values()


def _paired(
    base: Sequence[Case], new: Sequence[Case], group: tuple[list[int], list[int]], apart: Collection[str]
) -> list[tuple[int, int]] | None:
    """Return the pairs in a group of cases that match each other; None if it is not known which.

    Cases left over on one side only are alone.
    """
    mine, others = group
    if not mine or not others:
        return []
    if not apart:
        return list(zip(mine, others, strict=True)) if len(mine) == len(others) else None
    values = _values(base, mine, apart), _values(new, others, apart)
    # Values of an axis are not matched by what follows from them, which would be chance.
    names = apart if max(map(len, values)) > 1 else with_following(apart)

    def distance(a: int, b: int) -> int:
        return sum(panel_value(base[a], name) != panel_value(new[b], name) for name in names)

    of_base = {a: _nearest({b: distance(a, b) for b in others}) for a in mine}
    of_new = {b: _nearest({a: distance(a, b) for a in mine}) for b in others}
    found = [(a, b) for a, b in of_base.items() if b is not None and of_new[b] == a]
    if len(found) == min(len(mine), len(others)):
        return found
    in_order = len(mine) == len(others) == len(values[0]) == len(values[1])
    return list(zip(mine, others, strict=True)) if in_order else None


def _values(
    cases: Sequence[Case], indices: Iterable[int], names: Collection[str]
) -> set[tuple[Hashable, ...]]:
    return {tuple(panel_value(cases[index], name) for name in names) for index in indices}


def _nearest(distances: Mapping[int, int]) -> int | None:
    """Return the index with the smallest distance, a number of fields; None if several have it."""
    least = min(distances.values())
    found = [index for index, distance in distances.items() if distance == least]
    return found[0] if len(found) == 1 else None
