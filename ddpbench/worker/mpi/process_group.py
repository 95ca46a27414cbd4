"""A process group for torch that runs every collective in MPI, like torch's ProcessGroupMPI (in builds from source).

A thread of the group runs the collectives as blocking calls, one after the other, while the rank computes.
Point-to-point messages use MPI_Isend and MPI_Irecv.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.distributed import ReduceOp

from ddpbench.worker.mpi import library

NAME = "mpi4py"
"""The backend's name in torch. The name `mpi` is taken by torch's own backend in builds from source."""

HALVES = (torch.float16, torch.bfloat16)
"""Data types that MPI cannot add, so torch computes their sums."""

_Tensors = Sequence[torch.Tensor]


def register() -> None:
    """Register the MPI backend with torch, unless it is registered."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _created, extended_api=True, devices=["cpu"])


def _created(options: Any, _: Any) -> MpiGroup:
    """Return a group for the ranks in `options`; the first group has all ranks and starts MPI."""
    ranks = list(options.global_ranks_in_group)
    if not _WORLD:
        _WORLD.append(library.start(options.store, options.group_rank, options.group_size))
    world = _WORLD[0]
    members = world.group.Incl(ranks) if ranks else world.group
    return MpiGroup(world.Create_group(members), options.group_rank, options.group_size)


_WORLD: list[Any] = []


_Group: Any = dist.ProcessGroup  # torch's stubs declare these methods under other names, overloaded


class MpiGroup(_Group):  # type: ignore[misc]
    """Process group that exchanges CPU tensors by MPI. Tensors must be contiguous, which torch ensures."""

    def __init__(self, communicator: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._mpi = library.load()
        self._communicator, self._size = communicator, size
        self._types = {
            torch.float64: self._mpi.DOUBLE,
            torch.float32: self._mpi.FLOAT,
            torch.int64: self._mpi.INT64_T,
            torch.int32: self._mpi.INT32_T,
            torch.int16: self._mpi.INT16_T,
            torch.int8: self._mpi.INT8_T,
            torch.uint8: self._mpi.UINT8_T,
            **dict.fromkeys(HALVES, self._mpi.INT16_T),  # of the same size, and summed by `_sum_of`
        }
        self._sums = [
            (ReduceOp.SUM, self._mpi.SUM),
            (ReduceOp.AVG, self._mpi.SUM),
            (ReduceOp.PRODUCT, self._mpi.PROD),
            (ReduceOp.MIN, self._mpi.MIN),
            (ReduceOp.MAX, self._mpi.MAX),
            (ReduceOp.BAND, self._mpi.BAND),
            (ReduceOp.BOR, self._mpi.BOR),
            (ReduceOp.BXOR, self._mpi.BXOR),
        ]
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Any, Any]] = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._make_calls, name="mpi", daemon=True)
        self._caller.start()

    # Methods that torch calls, which a group must define if it uses none of torch's backends.
    def getBackendName(self) -> str:  # noqa: N802
        return "mpi"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _make_calls(self) -> None:
        while True:
            call, result, future = self._calls.get()
            _make(call, result, future)
            del call, result, future  # so that nothing of the last call stays alive until the next one

    def _soon(self, call: Callable[[], None], result: Any) -> Work:
        """Queue `call` for the group's thread, and return a torch `Work` that yields `result`.

        In the group's own thread, make the call at once.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()
        if (
            threading.current_thread() is self._caller
        ):  # a callback of a call may make another call and wait for it
            _make(call, result, future)
        else:
            self._calls.put((call, result, future))
        return _Call(future)

    def _raw(self, tensor: torch.Tensor) -> list[Any]:
        _refuse_strided(tensor)
        return [self._mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), self._mpi.BYTE]

    def _typed(self, tensor: torch.Tensor) -> list[Any]:
        _refuse_strided(tensor)
        if tensor.dtype not in self._types:
            raise TypeError(f"MPI cannot reduce tensors of {tensor.dtype}")
        return [self._mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), self._types[tensor.dtype]]

    def _operation(self, wanted: Any, dtype: torch.dtype) -> tuple[Any, int]:
        """Return MPI's operation for one of torch's reductions, and the number to divide the result by."""
        for ours, theirs in self._sums:
            if wanted == ours:  # not `ours == wanted`, nor `in`: torch answers those wrongly
                if dtype in HALVES:
                    if theirs != self._mpi.SUM:
                        break
                    theirs = _sum_of(self._mpi, dtype)
                return theirs, self._size if ours is ReduceOp.AVG else 1
        raise ValueError(f"MPI has no reduction {wanted} of {dtype}")

    # Collectives with a tensor of equal shape on all ranks
    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Work:
        operation, share = self._operation(
            opts.reduceOp if opts is not None else ReduceOp.SUM, tensors[0].dtype
        )
        memory = [self._typed(tensor) for tensor in tensors]

        def call() -> None:
            for tensor, each in zip(tensors, memory, strict=True):
                self._communicator.Allreduce(self._mpi.IN_PLACE, each, operation)
                _divide(tensor, share)

        return self._soon(call, list(tensors))

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: _Tensors, opts: Any) -> Work:
        memory, root = [self._raw(tensor) for tensor in tensors], opts.rootRank

        def call() -> None:
            for each in memory:
                self._communicator.Bcast(each, root)

        return self._soon(call, list(tensors))

    def reduce(self, tensors: _Tensors, opts: Any) -> Work:
        (tensor,), root = tensors, opts.rootRank
        operation, share = self._operation(opts.reduceOp, tensor.dtype)
        memory, own = self._typed(tensor), self.rank() == root

        def call() -> None:
            self._communicator.Reduce(
                self._mpi.IN_PLACE if own else memory, memory if own else None, operation, root
            )
            _divide(tensor, share if own else 1)

        return self._soon(call, list(tensors))

    def barrier(self, opts: Any = None) -> Work:
        return self._soon(self._communicator.Barrier, [])

    # Collectives that collect the ranks' tensors on one rank or on all, or spread them from one
    def gather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any) -> Work:
        (own,), root = inputs, opts.rootRank
        sent = self._raw(own)
        whole = own.new_empty((self._size, own.numel())) if self.rank() == root else None
        received = self._raw(whole) if whole is not None else None

        def call() -> None:
            self._communicator.Gather(sent, received, root)
            _keep(own)
            if whole is not None:
                _copy(whole, outputs[0])

        return self._soon(call, [list(each) for each in outputs])

    def scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any) -> Work:
        (own,), root = outputs, opts.rootRank
        received = self._raw(own)
        kept = _flat(inputs[0]) if self.rank() == root else None
        sent = self._raw(kept) if kept is not None else None

        def call() -> None:
            self._communicator.Scatter(sent, received, root)
            _keep(kept)

        return self._soon(call, list(outputs))

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None) -> Work:
        (own,) = inputs
        whole = own.new_empty((self._size, own.numel()))
        sent, received = self._raw(own), self._raw(whole)

        def call() -> None:
            self._communicator.Allgather(sent, received)
            _keep(own)
            _copy(whole, outputs[0])

        return self._soon(call, [list(each) for each in outputs])

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [own], opts)

    def all_gather_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Work:
        pairs = [
            (self._mpi.IN_PLACE if _is_part(own, whole, self.rank()) else self._raw(own), self._raw(whole))
            for whole, own in zip(outputs, inputs, strict=True)
        ]

        def call() -> None:
            for sent, received in pairs:
                self._communicator.Allgather(sent, received)
            _keep(inputs)

        return self._soon(call, list(outputs))

    # Collectives that leave a part of the sum on each rank
    def reduce_scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced(outputs, [_flat(each) for each in inputs], opts)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    def reduce_scatter_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any) -> Work:
        operation, share = self._operation(opts.reduceOp, outputs[0].dtype)
        pairs = [(self._typed(whole), self._typed(own)) for own, whole in zip(outputs, inputs, strict=True)]

        def call() -> None:
            for own, (sent, received) in zip(outputs, pairs, strict=True):
                self._communicator.Reduce_scatter_block(sent, received, operation)
                _divide(own, share)
            _keep(inputs)

        return self._soon(call, list(outputs))

    # A collective that sends a tensor from each rank to every other rank
    def all_to_all_single(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        sent = [self._raw(own)[0], _counts(own, input_sizes, self._size), self._mpi.BYTE]
        received = [self._raw(output)[0], _counts(output, output_sizes, self._size), self._mpi.BYTE]

        def call() -> None:
            self._communicator.Alltoallv(sent, received)
            _keep(own)

        return self._soon(call, [output])

    # Names of torch before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Point-to-point messages
    def send(self, tensors: _Tensors, to: int, tag: int) -> Work:
        (tensor,) = tensors
        return _MpiMessage(self._communicator.Isend(self._raw(tensor), to, tag), tensor, self._mpi)

    def recv(self, tensors: _Tensors, source: int, tag: int) -> Work:
        (tensor,) = tensors
        return _MpiMessage(self._communicator.Irecv(self._raw(tensor), source, tag), tensor, self._mpi)

    def recv_anysource(self, tensors: _Tensors, tag: int) -> Work:
        return self.recv(tensors, self._mpi.ANY_SOURCE, tag)


class _Call(Work):
    """A queued call as torch's `Work`. Unlike torch's own, its `wait` raises the call's error."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, *_: Any, **__: Any) -> bool:
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class _MpiMessage(Work):
    """A point-to-point message as torch's `Work`. MPI transfers it only while both ranks are in MPI calls."""

    def __init__(self, request: Any, tensor: torch.Tensor, mpi: Any) -> None:
        super().__init__()
        self._request, self._tensor, self._status = request, tensor, mpi.Status()

    def wait(self, *_: Any, **__: Any) -> bool:
        self._request.Wait(self._status)
        return True

    def is_completed(self) -> bool:
        return bool(self._request.Test(self._status))

    def _source_rank(self) -> int:
        return int(self._status.source)


@cache
def _sum_of(mpi: Any, dtype: torch.dtype) -> Any:
    def add(some: Any, more: Any, _: Any) -> None:
        total = torch.frombuffer(more, dtype=dtype)
        total += torch.frombuffer(some, dtype=dtype)

    return mpi.Op.Create(add, commute=True)


def _make(call: Callable[[], None], result: Any, future: Any) -> None:
    try:
        call()
    except Exception as error:  # the waiting thread has to see it
        future.set_exception(error)
    else:
        future.set_result(result)


def _is_part(own: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    """Return whether `own` lies at its place in `whole`, as in FSDP; MPI then needs MPI_IN_PLACE."""
    return own.data_ptr() == whole.data_ptr() + rank * own.nbytes


def _refuse_strided(tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError("MPI sends only contiguous tensors: call contiguous() first")


def _divide(tensor: torch.Tensor, share: int) -> None:
    if share != 1:
        tensor.div_(share)


def _flat(tensors: _Tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _copy(whole: torch.Tensor, outputs: _Tensors) -> None:
    for row, output in zip(whole, outputs, strict=True):
        output.copy_(row.view_as(output))


def _keep(_: Any) -> None:
    """Keep a tensor alive while MPI reads its memory."""


def _counts(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """Return the bytes of each rank's part; `sizes` counts rows, or is empty for equal parts."""
    if not sizes:
        return [tensor.nbytes // ranks] * ranks
    row = tensor.nbytes // tensor.shape[0] if tensor.shape[0] else 0
    return [size * row for size in sizes]
