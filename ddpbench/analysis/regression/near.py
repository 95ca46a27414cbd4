"""Say why a case of one run has no partner in the other run: the only setting in which a case there differs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace

from ddpbench.naming import EVERY
from ddpbench.spec import Case
from ddpbench.spec.grouping import FACETS, OPTIONS, alike, differing, option_words
from ddpbench.spec.matching import with_following

_NAMED = (
    "workload",
    "strategy",
    "algorithm",
    "schedule",
    "backend",
    "device",
    "dtype",
    "nodes",
    "ranks_per_node",
)
"""Fields that a sentence must name together with their values."""
_NAMES = {"bucket_cap_mb": "buckets", "dtype": "type", "nodes": "layout", "ranks_per_node": "layout"}
"""Names that sentences use instead of the fields' own names."""
_CLAUSES = ("launcher", "dilation", "shrink", "evaluation", "checkpoint")
"""Fields whose words follow `the other has it` without `with`."""
_BY_VALUE = ("recovery",)
"""Fields for which sentences give name and value, because their usual words are not nouns."""
_TOGETHER = (("nodes", "ranks_per_node"), ("local_batch", "global_batch", "scaling"))
"""Fields that form one setting."""


def why_alone(own: Case, others: Iterable[Case], side: str, apart: Collection[str] = ()) -> str:
    """Return why a case of the side named `side` has no partner among the other side's cases without one.

    `apart` are the fields in which the sides are meant to differ.
    """
    free = with_following(apart)
    every = list(others)
    if any(alike(own, but=free) == alike(other, but=free) for other in every):
        which = "which is compared with which is not known"
        return f"several cases match: {which}" if apart else f"the sides have it differently often: {which}"
    near = (
        as_other_has_it(own, replace(other, **{name: getattr(own, name) for name in free})) for other in every
    )
    outcome = next((words for words in near if words), "")
    return f"it is in {side} alone{f'; the other has it {outcome}' if outcome else ''}"


def as_other_has_it(own: Case, other: Case) -> str:
    """State `other`'s value of the one setting in which the cases differ, as in `with 2 threads per rank`.

    Empty if the cases differ in several settings or in none.
    """
    names = differing([own, other], EVERY)
    if len(names) != 1 and not any({*names} and {*names} <= {*group} for group in _TOGETHER):
        return ""
    name = names[-1]
    return (name in OPTIONS and _of_options(name, own, other)) or _of_field(name, own, other)


def _of_options(name: str, own: Case, other: Case) -> str:
    """Describe options that `other` has with different values or lacks; empty if only their order differs."""
    mine, others = OPTIONS[name](own), OPTIONS[name](other)
    keys = [
        key
        for key in {**others, **mine}
        if (key in mine) != (key in others) or json.dumps(mine[key]) != json.dumps(others[key])
    ]
    said = {
        one: dict(zip(OPTIONS[name](one), option_words(name, None, one), strict=True)) for one in (own, other)
    }
    words = [
        said[other][key] if said[other][key] != said[own].get(key) else f"{key}={json.dumps(others[key])}"
        for key in keys
        if key in others
    ]
    lacking = [key for key in keys if key not in others]
    parts = [f"with {', '.join(words)}"] if words else []
    parts += [f"without {', '.join(lacking)}"] if lacking else []
    return " and ".join(parts)


def _of_field(name: str, own: Case, other: Case) -> str:
    facet, value = FACETS[name], getattr(other, name)
    word, called = facet.word(other), _NAMES.get(name, name.replace("_", " "))
    if not word and facet.word(own):
        return f"without {called}"
    if not word or word == facet.word(own) or name in _BY_VALUE:
        return f"with {called} {value}" if value not in (None, "") else f"without {called}"
    if name in _CLAUSES:
        return word
    if name == "collective_timeout":
        return f"where {word}"
    return f"with {f'{called} ' if name in _NAMED else ''}{word}"
