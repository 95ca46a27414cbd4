"""Answers to an MPI library: lines of PMI-1, and the ranks' nodes."""

from __future__ import annotations

import socket
from threading import Thread

import pytest

from ddpbench.worker.mpi import pmi


class DictStore:
    """A store in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value

    def get(self, key: str) -> bytes:
        while key not in self.kept:
            pass
        return self.kept[key].encode()

    def add(self, key: str, amount: int) -> int:
        self.kept[key] = str(int(self.kept.get(key, "0")) + amount)
        return int(self.kept[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)


@pytest.mark.parametrize(
    ("nodes", "blocks"),
    [
        (["a"], "(vector,(0,1,1))"),
        (["a", "a", "a"], "(vector,(0,1,3))"),
        (["a", "a", "b", "b"], "(vector,(0,2,2))"),
        (["a", "b", "c"], "(vector,(0,3,1))"),
        (["a", "b", "a", "b"], "(vector,(0,2,1),(0,2,1))"),
        (["a", "a", "b"], "(vector,(0,1,2),(1,1,1))"),
    ],
)
def test_nodes_are_told_in_blocks(nodes: list[str], blocks: str) -> None:
    assert pmi.mapping(nodes) == blocks


def test_what_one_rank_puts_another_gets() -> None:
    store = DictStore()
    one, other = (pmi.Answers(store, size=2, world="w7", nodes=lambda: ["a", "b"]) for _ in range(2))
    assert one.to("cmd=init pmi_version=1 pmi_subversion=1").endswith("pmi_subversion=1 rc=0")
    assert "kvsname=w7 " in one.to("cmd=get_my_kvsname")
    assert "size=2" in one.to("cmd=get_universe_size")
    assert one.to("cmd=put kvsname=ddpbench key=-bc-1 value=mpi#02=00$").endswith("rc=0 msg=success")
    assert other.to("cmd=get kvsname=ddpbench key=-bc-1").endswith("value=mpi#02=00$")
    assert "rc=-1" in other.to("cmd=get kvsname=ddpbench key=PMI_hwloc_xmlfile")
    assert other.to("cmd=get kvsname=ddpbench key=PMI_process_mapping").endswith("value=(vector,(0,2,1))")
    assert "rc=-1" in one.to("cmd=spawn nprocs=3")


def test_a_barrier_opens_for_all_and_each_anew() -> None:
    store = DictStore()
    answers = [pmi.Answers(store, size=3, world="w7", nodes=lambda: ["a"] * 3) for _ in range(3)]
    said: list[str] = []
    for _ in range(2):
        said.clear()
        waiting = [
            Thread(target=lambda one=one: said.append(one.to("cmd=barrier_in"))) for one in answers[:2]
        ]
        for thread in waiting:
            thread.start()
        waiting[0].join(0.05)
        assert not said
        assert answers[2].to("cmd=barrier_in") == "cmd=barrier_out rc=0"
        for thread in waiting:
            thread.join(10)
        assert said == ["cmd=barrier_out rc=0"] * 2


def test_another_process_manager_is_left_out() -> None:
    given = {"PMI_PORT": "x:1", "PMIX_RANK": "3", "PMI_RANK": "9", "PATH": "/bin"}
    variables = pmi.environment(7, rank=1, size=4, given=given)
    assert variables == {"PATH": "/bin", "PMI_FD": "7", "PMI_RANK": "1", "PMI_SIZE": "4"}


def test_a_library_is_answered_over_its_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PMIX_RANK", "5")
    theirs = pmi.serve(DictStore(), rank=0, size=1, world="w7", nodes=lambda: ["a"])
    with socket.socket(fileno=theirs.detach()) as library, library.makefile("r") as lines:
        for asked, begins in (("cmd=get_maxes", "cmd=maxes "), ("cmd=finalize", "cmd=finalize_ack")):
            library.sendall(f"{asked}\n".encode())
            assert lines.readline().startswith(begins)
