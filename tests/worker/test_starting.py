"""Modules that a rank of another launcher imports before its start is noted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.worker import starting
from ddpbench.worker.place import JobPlace
from tests.synthetic import case_of

IMPORTED = """
import json, sys
from ddpbench.spec import Case
from ddpbench.worker.starting import import_for
before = set(sys.modules)
import_for(Case(workload="mlp", strategy=sys.argv[1], local_batch=4, global_batch=8, world_size=2))
wanted = sys.argv[2:]
assert not before & set(wanted), before & set(wanted)
print(json.dumps(sorted(name for name in wanted if name not in sys.modules)))
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("strategy", "modules"),
    [
        ("ddp", ["torch._dynamo", "torch.nn.parallel", "ddpbench.strategies.ddp.replica"]),
        ("fsdp", ["torch._dynamo", "torch.distributed.fsdp", "ddpbench.strategies.fsdp.replica"]),
        ("master", ["torch._dynamo", "torch.distributed"]),
    ],
)
def test_all_that_a_case_needs_is_imported_at_once(strategy: str, modules: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, strategy, *modules],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr[-2000:]


def test_a_rank_imports_before_its_start_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Noting:
        def __init__(self, *_: Any) -> None:
            seen.append("made")

        def run(self) -> int:
            seen.append("run")
            return 3

    monkeypatch.setattr("ddpbench.worker.rank.rank.Rank", Noting)
    monkeypatch.setattr(starting, "import_for", lambda case: seen.append(case.strategy))
    place = JobPlace(rank=0, processes=2, local_rank=0, attempt=0, cores=(), loader_cores=(), host="here")
    request = LaunchRequest(case=case_of("ddp", 2), purpose="proof", round=0)
    assert starting.live(LaunchDir(tmp_path), place, request, None) == 3
    assert seen == ["ddp", "made", "run"]
