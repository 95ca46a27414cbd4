"""What cases are called where several are listed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddpbench.spec.case import Case


def labels(cases: Iterable[Case]) -> dict[str, str]:
    """What each is called, by its id: its label, and where several have the same what tells those apart."""
    alike: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        alike[case.label].append(case)
    return {
        case.case_id: " · ".join([label, *words])
        for label, members in alike.items()
        for case, words in zip(members, _apart(members), strict=True)
    }


def _apart(cases: Sequence[Case]) -> list[list[str]]:
    """For each case the words for what is not the same in all of them."""
    if len(cases) == 1:
        return [[]]
    settings = [_settings(case) for case in cases]
    every = dict.fromkeys(name for each in settings for name in each)
    differing = [name for name in every if any(each.get(name) != settings[0].get(name) for each in settings)]
    if "local_batch" in differing and "global_batch" in differing:
        differing.remove("global_batch")  # which follows from the other
    return [[_word(name, each[name]) for name in differing if name in each] for each in settings]


def _settings(case: Case) -> Mapping[str, Any]:
    """What a label leaves out."""
    return {
        "workload": case.workload.removeprefix("replay:"),
        **_json(case.workload_options_json),
        **_json(case.options_json),
        "scaling": case.scaling,
        "local_batch": case.local_batch,
        "global_batch": case.global_batch,
        "dtype": case.dtype,
        "threads_per_rank": case.threads_per_rank,
        "device": case.device,
        "backend": case.backend,
        "launcher": case.launcher,
        "compute": case.compute,
        "evaluation": case.evaluation,
        "checkpoint": case.checkpoint,
        "checkpoint_dir": case.checkpoint_dir,
        "seed": case.seed,
        "replicate": case.replicate,
    }


def _json(text: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _word(name: str, value: Any) -> str:
    """A setting as an experiment gives it; its value alone where that says what it is."""
    if name in ("workload", "dtype", "device", "backend", "launcher"):
        return str(value)
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"
