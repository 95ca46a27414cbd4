"""Cases of the classes in files of this folder, without a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpbench.spec import Case
from ddpbench.strategies import load_strategy


def own_case(
    file: Path,
    name: str,
    strategy: str,
    ranks: int,
    *,
    dtype: str = "float32",
    options: Mapping[str, Any] | None = None,
) -> Case:
    """Return a case of a class, with 8 samples per rank and the strategy's defaults except for its `options`."""
    found = load_strategy(strategy)
    return Case(
        workload=f"{file}:{name}",
        strategy=strategy,
        algorithm=found.algorithm,
        schedule=found.schedule,
        options_json=json.dumps(found.options(**(options or {})).model_dump(mode="json")),
        world_size=ranks,
        bucket_cap_mb="default" if found.uses_buckets else None,
        local_batch=8,
        global_batch=8 * ranks,
        dtype=dtype,
        backend="gloo" if found.uses_backend else "",
    )
