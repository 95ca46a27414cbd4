"""Tables of transfer operations: what each needs before its data flow, and the queue it waits in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Flow = Literal["together", "to_root", "from_root", "through_root", "tree", "pair"]
"""When data flow, and when a rank's part ends:

- `together`: no rank has a result before every rank has given its data. From the last rank's start to each
  rank's end.
- `to_root`: from when the root and a sender have both started until the root has everything, which is the end
  for all: a sender whose message is in the kernel's buffer is not done.
- `from_root`: from when the root and a receiver have both started until that receiver has its data; the
  root's part ends with the last receiver's.
- `through_root`: to rank 0 and back from it.
- `tree`: to rank 0 and back along a binomial tree, in which a rank exchanges data with its parent and its
  children.
- `pair`: from when both ranks have started until the receiver has the data.
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that a transfer can be."""

    flow: Flow
    threaded: bool = False
    """True if a rank processes these one after the other in a separate thread (`collectives/background.py`).
    """
    queued: bool = True
    """True if these are known to wait for one another in the backend's queue."""


OPERATIONS: Mapping[str, Operation] = {
    "all_reduce": Operation("together"),
    "all_gather": Operation("together"),
    "reduce_scatter": Operation("together"),
    "powersgd": Operation("together", threaded=True),
    "ring": Operation("together", threaded=True),
    "naive_ring": Operation("together", threaded=True),
    "halving_doubling": Operation("together", threaded=True),
    "hierarchical": Operation("together", threaded=True),
    "sharded_master": Operation("together", threaded=True),
    "gather": Operation("to_root"),
    "reduce": Operation("to_root"),
    "scatter": Operation("from_root"),
    "broadcast": Operation("from_root"),
    "master": Operation("through_root", threaded=True),
    "tree": Operation("tree", threaded=True),
    "hook": Operation("together", queued=False),
    "send": Operation("pair"),
    "push": Operation("pair"),
    "pull": Operation("pair"),
    "call": Operation("pair"),
}
"""By `CommRecord.op`. Operations of users' strategies are called `NAME/FLOW`, such as `top_k/together`."""

_OWN: Mapping[str, Operation] = {flow: Operation(flow, queued=False) for flow in get_args(Flow)}
_AT_ONCE = {"gloo": 2, "nccl": 1, "mpi": 1}  # unknown for UCC
"""Number of a rank's collectives that a backend runs at once; the others wait in the order of submission. A
gloo process group has two threads (torch, ProcessGroupGloo.hpp, `Options.threads`), NCCL one stream, and
an MPI group one thread (`worker/mpi/process_group.py`).
"""


def operation_of(op: str) -> Operation | None:
    """Return the entry of an operation; None if its data may flow in any way."""
    flow = op.rpartition("/")[2] if "/" in op else ""
    return _OWN.get(flow) if flow else OPERATIONS.get(op)


def flow_of(op: str) -> Flow:
    """Return how an operation's data flow. An unknown operation is assumed to need every rank."""
    found = operation_of(op)
    return found.flow if found is not None else "together"


def slots_of(op: str, backend: str) -> int | None:
    """Return how many operations of this one's queue run at once; None if it has no queue, or the number is
    unknown.
    """
    found = operation_of(op)
    if found is None or found.flow == "pair" or not found.queued:
        return None
    return 1 if found.threaded else _AT_ONCE.get(backend)


def tree_parent(rank: int) -> int:
    """Return the parent of a rank other than 0 in the binomial tree of `collectives/tree.py`: without its
    lowest bit.
    """
    return rank & (rank - 1)
