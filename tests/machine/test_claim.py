"""A claim that another user holds, perhaps without a sweep, and the way around it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from ddpbench.errors import InUseError, RequestError
from ddpbench.machine import claim, names
from ddpbench.machine.claim import claimed

CORE = 90_020
STRANGER = 12_345
HOLDS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
held = [socket.socket(socket.AF_UNIX) for _ in sys.argv[3:]]
for one, name in zip(held, sys.argv[3:]):
    one.bind("\\0" + name)
    if sys.argv[2] == "listens":
        one.listen(1)
    if sys.argv[2] == "is connected":
        other = socket.socket(socket.AF_UNIX)
        other.bind("")
        other.listen(1)
        one.connect(other.getsockname())
print("held", flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@contextmanager
def stranger_with(*names: str, how: str = "listens") -> Iterator[None]:
    """Start another user's process that holds names and measures nothing."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDS, str(STRANGER), how, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("")


@pytest.fixture(params=["listens", "is silent", "is connected"])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start another user's process that holds a core's name."""
    with stranger_with(f"ddpbench-core-{CORE}", how=request.param):
        yield request.param


@pytest.mark.parametrize("left", [False, True])
def test_other_cores_are_advised_only_where_one_is_left(left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {CORE, CORE + 1} if left else {CORE})
    with claimed([CORE]), pytest.raises(InUseError) as caught, claimed([CORE]):
        pass
    assert ("taskset" in str(caught.value)) is left


def test_a_word_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPBENCH_CLAIMS", "mine")
    with pytest.raises(RequestError, match="DDPBENCH_CLAIMS='mine': set it to own, or unset it"), claimed():
        pass


@needs_root
def test_another_users_claim_is_named_with_the_way_around(stranger: str) -> None:
    with pytest.raises(InUseError, match=f"core {CORE}") as caught, claimed([CORE]):
        pass
    assert re.search(r"\(process [0-9]+ of user 12345\)", str(caught.value))
    assert "DDPBENCH_CLAIMS=own" in str(caught.value)


@needs_root
def test_with_own_claims_alone_a_stranger_stops_nobody_and_ones_own_sweep_does(
    stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
    with claimed([CORE]):
        with pytest.raises(InUseError, match=rf"\(process {os.getpid()}\)") as caught, claimed([CORE]):
            pass
        assert "DDPBENCH_CLAIMS" not in str(caught.value)
    with claimed([CORE]):
        pass


@pytest.fixture(params=["told by the kernel", "listed alone"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test with a kernel that says who owns a socket, and with one, or a sandbox, that only lists sockets."""

    def none(_: int) -> Iterator[tuple[str, object]]:
        raise OSError("no answer")

    if request.param == "listed alone":
        monkeypatch.setattr(names, "_asked", none)


@needs_root
def test_a_sweep_that_passed_a_stranger_over_is_seen_once_the_stranger_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as sweep:
        with stranger_with(f"ddpbench-core-{CORE}"):
            monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
            sweep.enter_context(claimed([CORE]))
        monkeypatch.delenv("DDPBENCH_CLAIMS")
        with pytest.raises(InUseError, match=f"process {os.getpid()}"), claimed([CORE]):
            pass
    with claimed([CORE]):
        pass


@pytest.mark.usefixtures("kernel")
def test_a_sweep_is_named_and_respected_however_often_another_one_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with claimed([CORE]):
        for claims in [""] * 6 + ["own"] * 6:
            monkeypatch.setenv("DDPBENCH_CLAIMS", claims)
            with pytest.raises(InUseError, match=rf"\(process {os.getpid()}\)") as caught, claimed([CORE]):
                pass
            assert "DDPBENCH_CLAIMS" not in str(caught.value)


@needs_root
@pytest.mark.usefixtures("kernel")
def test_a_stranger_who_has_others_wait_at_a_sweeps_names_hides_it_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim, "_WAITING", 2)
    monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
    with claimed([CORE]):
        for name in names.holders(f"\0ddpbench-core-{CORE}"):
            with ExitStack() as waiting:
                for _ in range(8):
                    one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                    one.setblocking(False)
                    with suppress(BlockingIOError):
                        one.connect(name)
                with pytest.raises(InUseError, match=f"process {os.getpid()}"), claimed([CORE]):
                    pass


@needs_root
@pytest.mark.usefixtures("kernel")
def test_a_stranger_with_all_names_of_a_user_has_two_sweeps_of_the_user_see_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
    name = f"ddpbench-core-{CORE}"
    with stranger_with(name, f"{name}-of-{os.geteuid()}", f"{name}-of-{os.geteuid()}-0123456789abcdef"):
        with (
            claimed([CORE]),
            pytest.raises(InUseError, match=rf"\(process {os.getpid()}\)"),
            claimed([CORE]),
        ):
            pass
        with claimed([CORE]):
            pass


@needs_root
@pytest.mark.usefixtures("kernel")
def test_a_name_that_looks_like_a_list_of_names_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lists line breaks of a name as they are."""
    monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
    name = f"ddpbench-core-{CORE}"
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(f"\0{name}-test-{os.getpid()}")
        inode = os.fstat(own.fileno()).st_ino
        forged = f"x\n0: 00000002 00000000 00010000 0001 01 {inode} @{name}-of-{os.geteuid()}-aa"
        with stranger_with(name, forged), claimed([CORE]):
            pass


@needs_root
def test_who_cannot_be_told_from_ones_own_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that tells nothing, on a process that this user does not see, which answers no more connections."""
    monkeypatch.setenv("DDPBENCH_CLAIMS", "own")
    for query in ("_asked", "_listed", "_processes"):
        monkeypatch.setattr(names, query, lambda *_: {})
    with stranger_with(f"ddpbench-core-{CORE}"), ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(f"\0ddpbench-core-{CORE}")
        with (
            pytest.raises(InUseError, match="another ddpbench command is using") as caught,
            claimed([CORE]),
        ):
            pass
        assert "DDPBENCH_CLAIMS" not in str(caught.value)


def test_of_a_process_and_its_children_the_process_is_named(tmp_path: Path) -> None:
    """Fork servers inherit a sweep's sockets."""
    with socket.socket(socket.AF_UNIX) as held:
        name = f"\0ddpbench-{tmp_path.name}-{os.getpid()}"
        held.bind(name)
        held.listen(1)
        if (child := os.fork()) == 0:
            signal.pause()
        try:
            assert names.holder(name) == names.NameHolder(user=os.geteuid(), process=os.getpid())
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
