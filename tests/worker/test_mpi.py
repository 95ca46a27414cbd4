"""MPI as a process group: each operation's result on real ranks, its refusals, and what is left of it."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpbench.errors import MachineError
from ddpbench.worker.mpi import library, process_group
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks


def group_of_all() -> Any:
    process_group.register()
    return dist.new_group(backend=process_group.NAME)


def each_operation(rank: int, size: int) -> dict[str, Any]:
    group = group_of_all()
    results: dict[str, Any] = {"name": group.group_name, "size": group.size(), "rank": group.rank()}
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16, torch.bfloat16):
        tensor = torch.full((5,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor, group=group)
        results[f"sum of {dtype}"] = tensor
    tensor = torch.tensor([float(rank + 1), -float(rank)])
    for name in ("MAX", "MIN", "PRODUCT", "AVG"):
        other = tensor.clone()
        dist.all_reduce(other, getattr(dist.ReduceOp, name), group=group)
        results[name] = other
    tensor = torch.full((2,), float(rank))
    dist.broadcast(tensor, src=size - 1, group=group)
    results["broadcast"] = tensor
    tensor = torch.full((2,), rank + 1.0)
    dist.reduce(tensor, dst=1, group=group)
    results["reduce"] = tensor if rank == 1 else None
    own = torch.arange(2.0) + 10 * rank
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, own, group=group)
    results["all_gather"] = torch.stack(parts)
    dist.gather(own, parts if rank == 0 else None, dst=0, group=group)
    results["gather"] = torch.stack(parts)
    dist.scatter(own, [part + 1 for part in parts] if rank == 0 else None, src=0, group=group)
    results["scatter"] = own
    whole = torch.zeros(2 * size)
    group.all_gather_single(whole, own).wait()
    results["into one"] = whole
    group.all_gather_single(whole, whole[2 * rank : 2 * rank + 2]).wait()  # it is there already: FSDP's way
    results["in place"] = whole
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.SUM
    share = torch.zeros(2)
    group.reduce_scatter_single(share, torch.arange(2.0 * size) + rank, options).wait()
    results["reduce_scatter"] = share
    exchanged = torch.zeros(size)
    dist.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank, group=group)
    results["all_to_all"] = exchanged
    message = torch.zeros(100_000)
    works = [
        dist.irecv(message, (rank - 1) % size, group=group),
        dist.isend(torch.full((100_000,), float(rank)), (rank + 1) % size, group=group),
    ]
    for work in works:
        assert work is not None
        work.wait()
    results["message"] = message[[0, -1]]
    pair = dist.new_group([0, 1], backend=process_group.NAME)
    tensor = torch.ones(1)
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
    results["pair"] = tensor
    dist.barrier(group=group)
    results["segments"] = [path.name for path in Path("/dev/shm").glob("mpich_shm_*")]
    return results


def test_each_operation() -> None:
    size = 3
    for rank, results in enumerate(run_ranks(each_operation, size)):
        assert (results["rank"], results["size"]) == (rank, size)
        assert results["name"]
        for name, total in results.items():
            if name.startswith("sum of"):
                assert total.tolist() == [6] * 5, name
        assert results["MAX"].tolist() == [3, 0]
        assert results["MIN"].tolist() == [1, -2]
        assert results["PRODUCT"].tolist() == [6, 0]
        assert results["AVG"].tolist() == [2, -1]
        assert results["broadcast"].tolist() == [2, 2]
        if rank == 1:
            assert results["reduce"].tolist() == [6, 6]
        assert results["all_gather"].tolist() == [[0, 1], [10, 11], [20, 21]]
        assert results["scatter"].tolist() == [10 * rank + 1, 10 * rank + 2]
        assert results["into one"].tolist() == [1, 2, 11, 12, 21, 22]
        assert results["in place"].tolist() == [1, 2, 11, 12, 21, 22]
        assert results["reduce_scatter"].tolist() == [3 * (2 * rank) + 3, 3 * (2 * rank + 1) + 3]
        assert results["all_to_all"].tolist() == [rank, 10 + rank, 20 + rank]
        assert results["message"].tolist() == [(rank - 1) % size] * 2
        assert results["pair"].tolist() == ([2] if rank < 2 else [1])
        assert results["segments"] == []  # nothing that a killed rank would leave behind


def failed(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refusals(rank: int, size: int) -> dict[str, str]:
    group = group_of_all()
    options = dist.BroadcastOptions()
    options.rootRank = 7
    mismatched = group.broadcast([torch.ones(1)], options)
    waited = failed(mismatched.wait)
    return {
        "strided": failed(lambda: dist.all_reduce(torch.ones(4, 4).t()[1:], group=group)),
        "type": failed(lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), group=group)),
        "half": failed(lambda: dist.all_reduce(torch.ones(2).half(), dist.ReduceOp.MAX, group=group)),
        "call": waited,
        "its future": failed(lambda: mismatched.get_future().wait()),
    }


def test_what_fails_is_told_to_who_waits() -> None:
    for results in run_ranks(refusals, 2):
        assert "contiguous" in results["strided"]
        assert "torch.bool" in results["type"]
        assert "float16" in results["half"]
        assert "MPI_ERR_ROOT" in results["call"] or "root" in results["call"].lower()
        assert results["its future"]


def nested(rank: int, size: int) -> Any:
    """Make a call in the callback of another and wait for it, as PowerSGD's do."""
    group = group_of_all()

    def again(future: Any) -> torch.Tensor:
        second = future.value()[0] * 2
        dist.all_reduce(second, group=group)
        return second

    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(again).wait()


def test_a_callback_may_make_another_call() -> None:
    assert [results.tolist() for results in run_ranks(nested, 2)] == [[8.0] * 3] * 2


def test_what_killed_ranks_left_is_removed_and_nothing_else() -> None:
    folder = Path("/dev/shm")
    stray, mapped, new = (folder / f"mpich_shm_test{os.getpid()}{name}_0" for name in "abc")
    try:
        for path in (stray, mapped, new):
            path.write_bytes(b"x")
        for path in (stray, mapped):
            os.utime(path, (0, 0))
        with mapped.open("rb") as file, mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ):
            library._forget_strays()
            assert [path.exists() for path in (stray, mapped, new)] == [False, True, True]
    finally:
        for path in (stray, mapped, new):
            path.unlink(missing_ok=True)


def test_another_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimpleNamespace(rank=0, size=1)
    fake = SimpleNamespace(
        __file__=None, THREAD_MULTIPLE=3, COMM_WORLD=world, get_vendor=lambda: ("MPICH", (5, 0, 2))
    )

    def started(_: Any, __: Any, wanted: Any, provided: Any) -> int:
        provided._obj.value = wanted.value
        return 0

    for name in [name for name in os.environ if name.startswith("PMI")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(library, "load", lambda: fake)
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(MPI_Init_thread=started))
    monkeypatch.setattr("ddpbench.worker.mpi.pmi.serve", lambda *_, **__: None)
    with pytest.raises(
        MachineError, match=r"MPICH 5\.0\.2 started with 1 rank instead of 2.*MPI4PY_MPIABI=mpich"
    ):
        library.start.__wrapped__(dist.HashStore(), 0, 2)


def test_open_mpi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(get_vendor=lambda: ("Open MPI", (5, 0, 8)))
    monkeypatch.setattr(library, "load", lambda: fake)
    with pytest.raises(MachineError, match=r"Open MPI 5\.0\.8.*PMIx.*pip install"):
        library.checked_version()


def test_without_mpi4py_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MachineError, match=r"mpi4py cannot be imported.*pip install \"ddpbench\[mpi\]\""):
        library.load.__wrapped__()
