"""A claim that another user holds, perhaps for no sweep at all, and the way around it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ddpbench.errors import MachineError
from ddpbench.machine.claim import claimed

CORE = 90_020
STRANGER = 12_345
HOLDS = """
import os, socket, sys, time
os.setuid(int(sys.argv[1]))
held = socket.socket(socket.AF_UNIX)
held.bind("\\0ddpbench-core-" + sys.argv[2])
if sys.argv[3] == "listens":
    held.listen(1)
print("held", flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture(params=["listens", "is silent"])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another user's process that holds a core's name and measures nothing."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDS, str(STRANGER), str(CORE), request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield request.param
        process.communicate("")


@needs_root
def test_another_users_claim_is_named_with_the_way_around(stranger: str) -> None:
    with pytest.raises(MachineError, match=f"core {CORE}") as caught, claimed([CORE]):
        pass
    assert ("of user 12345" in str(caught.value)) == (stranger == "listens")
    assert "DDPBENCH_CLAIMS=own" in str(caught.value)


@needs_root
def test_with_own_claims_alone_a_stranger_stops_nobody_and_ones_own_sweep_does(
    stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
    with claimed([CORE]):
        with pytest.raises(MachineError, match=rf"\(process {os.getpid()}\)") as caught, claimed([CORE]):
            pass
        assert "DDPBENCH_CLAIMS" not in str(caught.value)
    with claimed([CORE]):
        pass


def test_a_sweep_that_passed_a_stranger_over_is_seen_once_the_stranger_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0ddpbench-core-{CORE}")
        monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
        context = claimed([CORE])
        context.__enter__()
    monkeypatch.delenv("DDPBENCH_CLAIMS")
    with pytest.raises(MachineError, match=f"process {os.getpid()}"), claimed([CORE]):
        pass
    context.__exit__(None, None, None)
    with claimed([CORE]):
        pass
