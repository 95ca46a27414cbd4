"""Description of the one setting in which another run's case differs."""

from __future__ import annotations

import json

from ddpbench.naming import EVERY
from ddpbench.spec import Case
from ddpbench.spec.grouping import FACETS, OPTIONS, differing, option_words

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
"""Fields whose words do not say what they describe."""
_NAMES = {"bucket_cap_mb": "buckets", "dtype": "type", "nodes": "layout", "ranks_per_node": "layout"}
"""Names of fields in a sentence, where they are not the fields' own."""
_CLAUSES = ("launcher", "dilation", "shrink", "evaluation", "checkpoint")
"""Fields whose words follow `the other has it` without `with`."""
_BY_VALUE = ("recovery",)
"""Fields that are named by their values: their words are not nouns."""
_TOGETHER = (("nodes", "ranks_per_node"), ("local_batch", "global_batch", "scaling"))
"""Fields that form one setting."""


def as_other_has_it(own: Case, other: Case) -> str:
    """Return `other`'s value of the one setting in which the two differ: `with 2 threads per rank`, `without
    NCCL_ALGO`.

    It is empty where they differ in several settings or in none.
    """
    names = differing([own, other], EVERY)
    if len(names) != 1 and not any({*names} and {*names} <= {*group} for group in _TOGETHER):
        return ""
    name = names[-1]
    return (name in OPTIONS and _of_options(name, own, other)) or _of_field(name, own, other)


def _of_options(name: str, own: Case, other: Case) -> str:
    """Return the options that `other` has with other values or lacks; empty where only their order differs."""
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
