"""The launches of a round that share the cost of starting a fork server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddpbench.errors import ServerGoneError
from ddpbench.launch.sweep import servers as module
from ddpbench.launch.sweep.servers import Servers, launches_of_one_server
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


@pytest.mark.parametrize(
    ("killed", "begins"), [([True], 2), ([True, True], 2), ([False], 1), ([], 1)], ids=str
)
def test_one_that_is_killed_while_it_starts_has_one_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[bool], begins: int
) -> None:
    """It would end the sweep; a server that ends by itself would do so again, so it has no successor."""
    begun: list[Mapping[str, str]] = []

    class Starting:
        def __init__(self, env: Mapping[str, str], log: Path, *, log_stays: bool) -> None:
            begun.append(env)
            if len(begun) <= len(killed):
                gone = ServerGoneError("gone")
                gone.killed = killed[len(begun) - 1]
                raise gone

        def __enter__(self) -> Starting:
            return self

        def __exit__(self, *_: object) -> None:
            """Do nothing: nothing is running."""

    monkeypatch.setattr(module, "ServerProcess", Starting)
    with Servers(tmp_path / "server.log") as found:
        if killed in ([True], []):
            assert isinstance(found.of({"A": "1"}), Starting)
        else:
            with pytest.raises(ServerGoneError):
                found.of({"A": "1"})
    assert begun == [{"A": "1"}] * begins
