"""Properties of transfer operations, such as which ranks send to which, and whether an operation waits in a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Flow = Literal["together", "to_root", "from_root", "through_root", "tree", "pair"]
"""Kind of flow, which decides when an operation's data flow and when a rank's part in it ends.

- `together`: data flow from the last rank's start to each rank's end, because no rank can have a result before every
  rank has given its data.
- `to_root`: data flow from when both the root and a sender have started until the root has everything. This is the end
  for all ranks, since a sender's message may still be in the kernel's buffer when its call returns.
- `from_root`: data flow from when both the root and a receiver have started until the receiver has its data. The root's
  part ends with the last receiver's.
- `through_root`: data flow to rank 0 and back from it.
- `tree`: data flow to rank 0 and back along a binomial tree, in which a rank exchanges data with its parent and its
  children.
- `pair`: data flow from when both ranks have started until the receiver has the data.
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """The properties of one kind of transfer operation."""

    flow: Flow
    threaded: bool = False
    """True if a rank processes such transfers one after the other in a separate thread (`collectives/background.py`).
    """
    queued: bool = True
    """True if such transfers are known to wait for one another in the backend's queue."""


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
"""Operations by `CommRecord.op`. Operations of users' strategies are not in this table; their `op` is `NAME/FLOW`, such
as `top_k/together`.
"""

_OWN: Mapping[str, Operation] = {flow: Operation(flow, queued=False) for flow in get_args(Flow)}
_AT_ONCE = {"gloo": 2, "nccl": 1, "mpi": 1}  # unknown for UCC
"""Number of a rank's collectives that each backend runs at once; further collectives wait in the order of submission. A
gloo process group has two threads (torch, ProcessGroupGloo.hpp, `Options.threads`), NCCL one stream, and an MPI group
one thread (`worker/mpi/process_group.py`).
"""


def operation_of(op: str) -> Operation | None:
    """Return the properties of the operation with this `CommRecord.op`; None if the operation is unknown."""
    flow = op.rpartition("/")[2] if "/" in op else ""
    return _OWN.get(flow) if flow else OPERATIONS.get(op)


def flow_of(op: str) -> Flow:
    """Return the pattern in which an operation moves data between ranks; `together` for an unknown operation."""
    found = operation_of(op)
    return found.flow if found is not None else "together"


def slots_of(op: str, backend: str) -> int | None:
    """Return how many operations can run at once in the queue of `op`; None without a queue, or if unknown."""
    found = operation_of(op)
    if found is None or found.flow == "pair" or not found.queued:
        return None
    return 1 if found.threaded else _AT_ONCE.get(backend)


def tree_parent(rank: int) -> int:
    """Return the parent of a rank above 0 in the binomial tree of `collectives/tree.py`.

    The parent's number is the rank's number with the lowest set bit cleared.
    """
    return rank & (rank - 1)
