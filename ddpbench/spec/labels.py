"""What cases are called where several are listed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ddpbench.spec import environment
from ddpbench.spec.case import OWN_TYPES, Case
from ddpbench.spec.grouping import FACETS
from ddpbench.texts import on_one_line


def labels(cases: Iterable[Case]) -> dict[str, str]:
    """Return what each is called, by its id: its label, and where several have the same what tells those apart."""
    return dict(_labels(tuple(cases)))


@lru_cache(maxsize=2)
def _labels(cases: tuple[Case, ...]) -> dict[str, str]:
    # Kept: all that tells of a run's cases in sentences asks for the same ones.
    return {
        case.case_id: on_one_line(" · ".join([label, *words]))
        for label, members in _grouped(cases, lambda case: case.label).items()
        for case, words in _apart(members)
    }


def _apart(cases: Sequence[Case]) -> Iterator[tuple[Case, list[str]]]:
    """Yield each with the words for what is not the same in all of them; settings are compared within a workload."""
    workloads = _grouped(cases, lambda case: case.workload)
    # of one class name in several files, or of a user's own strategy that leaves a choice
    named = [name for name in _CHOICES if len({getattr(case, name) for case in cases}) > 1]
    for name, members in workloads.items():
        told = [name.removeprefix("replay:")] if len(workloads) > 1 else []
        settings = [_settings(case) for case in members]
        every = dict.fromkeys(key for each in settings for key in each)
        differing = [key for key in every if any(each.get(key) != settings[0].get(key) for each in settings)]
        if ("", "local_batch") in differing and ("", "global_batch") in differing:
            differing.remove(("", "global_batch"))  # which follows from the other
        for case, mine in zip(members, settings, strict=True):
            choices = (_choice(getattr(case, name)) for name in named)
            words = (_word(*key, mine[key]) for key in differing if key in mine)
            yield case, [*choices, *told, *words]


_CHOICES = ("strategy", "algorithm", "schedule")


def _choice(value: str) -> str:
    """Return what tells a name from others of one label: the file of a user's own class, else the name itself."""
    return value.rpartition(":")[0] or value.replace("_", " ")


def _grouped(cases: Iterable[Case], key: Callable[[Case], str]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        found[key(case)].append(case)
    return found


def _settings(case: Case) -> dict[tuple[str, str], Any]:
    """Return what a label leaves out, by whose it is (workload, strategy, environment, the case itself) and name."""
    own = {
        name: getattr(case, name)
        for name, facet in FACETS.items()
        if facet.role != "bookkeeping" and not facet.in_label
    }
    kinds = {"workload": case.workload_options, "strategy": case.options, "env": case.env, "": own}
    return {(kind, name): value for kind, values in kinds.items() for name, value in values.items()}


def _word(kind: str, name: str, value: Any) -> str:
    """Return a setting as an experiment gives it; its value alone where that says what it is."""
    if kind == "env":
        return environment.words(name, value)
    if name == "dtype" and value == OWN_TYPES:
        return "own types"
    if name in ("dtype", "device", "backend", "launcher"):
        return str(value)
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"
