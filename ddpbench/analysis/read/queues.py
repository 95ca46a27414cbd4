"""Times at which ranks start their parts in transfers, which are queued behind others before.

A rank recorded its start, or it follows from the backend: one that runs k transfers at once starts a transfer when
fewer than k earlier ones are unfinished.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.read.parts import NONE, Ints, TransferParts, changes
from ddpbench.records.operations import slots_of


def served_at(parts: TransferParts, backends: Sequence[str]) -> Ints:
    """Return when each part left its rank's queue (ns), at the latest at its end. `backends` has a name per launch."""
    start, end, owner, begun = parts.start, parts.end, parts.owner, parts.begun
    kinds = list(dict.fromkeys(backends))
    table = np.array([[slots_of(name, backend) or 0 for backend in kinds] for name in parts.ops])
    slots = table[parts.op, np.array([kinds.index(backend) for backend in backends])[parts.launch]]
    served = np.where(begun == NONE, start, np.maximum(begun, start))
    unknown = begun == NONE
    # A rank's thread for this package's algorithms has its own queue with one slot, as NCCL has. No rank uses both,
    # because these algorithms need gloo.
    for count in sorted(set(slots[unknown].tolist()) - {0}):
        rows = np.flatnonzero(unknown & (slots == count))
        rows = rows[np.lexsort((start[rows], owner[rows]))]  # stable: in the order of queueing
        freed = _freed(changes([owner[rows]]), start[rows], end[rows], count)
        served[rows] = np.maximum(start[rows], freed)
    kept: Ints = np.minimum(served, np.maximum(end, start))
    return kept


def after_gathers(
    served: Ints,
    *,
    owner: NDArray[np.intp],
    start: Ints,
    begin: Ints,
    until: Ints,
    gathers: NDArray[np.bool_],
) -> Ints:
    """Return when parts left their queue (ns), corrected for parts that were queued behind a gather.

    An early sender starts the next transfer, but the root starts it only once it has received everything.
    """
    if not gathers.any():
        return served
    order = np.lexsort((start, owner))
    over = np.where(gathers, until, start)[order]
    left = np.empty(len(start), np.int64)
    left[order] = _freed(changes([owner[order]]), start[order], over, 1)
    found: Ints = np.minimum(np.maximum(served, left), np.maximum(begin, served))
    return found


def _freed(first: NDArray[np.bool_], start: Ints, end: Ints, slots: int) -> Ints:
    """Return, for each row, when one of `slots` became free: the slots-th largest end of its group's earlier rows.

    `first` is true at a group's first row. Rows with too few predecessors get the group's first start.
    """
    number = np.cumsum(first) - 1
    base = start[first][number]
    room = int((np.maximum(end, start) - base).max()) + 1
    bottom = number * room
    values = np.maximum(end - base, 0) + bottom  # exceeds all earlier groups, for the running maximum
    for _ in range(slots - 1):
        values = np.minimum(
            values, _largest_before(first, values, bottom)
        )  # the value that the new one displaces
    freed: Ints = _largest_before(first, values, bottom) - bottom + base
    return freed


def _largest_before(first: NDArray[np.bool_], values: Ints, bottom: Ints) -> Ints:
    reached = np.roll(np.maximum.accumulate(values), 1)
    found: Ints = np.where(first, bottom, reached)
    return found
