"""Which launches of a round bear the start of a fork server together."""

from __future__ import annotations

import json

from ddpbench.launch.sweep.servers import launches_of_one_server
from ddpbench.spec import Case, PlannedCase


def test_launches_of_one_environment_share_a_server() -> None:
    def entry(strategy: str, threads: int = 1, launcher: str = "local", **env: str) -> PlannedCase:
        case = Case(
            workload="mlp:small",
            strategy=strategy,
            threads_per_rank=threads,
            launcher=launcher,  # type: ignore[arg-type]
            env_json=json.dumps(env),
        )
        return PlannedCase(case=case)

    single, ddp = entry("single"), entry("ddp")
    others = [
        entry("deepspeed"),
        entry("ddp", threads=2),
        entry("ddp", GLOO_SOCKET_IFNAME="a"),
        entry("ddp", GLOO_SOCKET_IFNAME="b"),
    ]
    todo = [single, ddp, *others, entry("ddp", launcher="spawn")]
    assert [launches_of_one_server(one, todo) for one in (single, ddp)] == [2, 2]
    assert [launches_of_one_server(one, todo) for one in others] == [1] * len(others)
