"""Times at which data flow in transfers, by kind of flow: to a root, from a root, along a tree, between two ranks.

Hosts have no common clock. A transfer across hosts whose result depends on every rank (`together`) takes as long as the
part of the last rank to start. In other transfers across hosts, waiting counts as communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.read.parts import NONE, Ints, TransferParts, WholeTransfers
from ddpbench.records.operations import Flow, flow_of, tree_parent

_FAR = np.iinfo(np.int64).max
_FLOWS: tuple[Flow, ...] = ("together", "to_root", "from_root", "through_root", "tree", "pair")
TOGETHER, TO_ROOT, FROM_ROOT, THROUGH_ROOT, TREE, PAIR = range(len(_FLOWS))
_ROOTED = (TO_ROOT, FROM_ROOT, THROUGH_ROOT)


@dataclass(frozen=True, slots=True)
class Times:
    """Times in which data move: from `begin` to `until` in a rank's part, and from `begins` to `ends` in a transfer."""

    begin: Ints
    until: Ints
    begins: Ints
    ends: Ints


@dataclass(frozen=True, slots=True)
class Group:
    """Each rank's parts in transfers, as arrays sorted by transfer.

    `starts` has the position of each transfer's first part. `flow` and `roots` have one value per transfer.
    """

    starts: NDArray[np.intp]
    transfer: NDArray[np.intp]
    flow: NDArray[np.intp]
    roots: Ints
    rank: Ints
    served: Ints
    end: Ints
    sends: NDArray[np.bool_]

    @classmethod
    def of(cls, parts: TransferParts, whole: WholeTransfers, served: Ints) -> Group:
        """Return the group of all parts of complete transfers.

        `served` is the time at which each part left its queue.
        """
        row, head = whole.row, whole.head
        base = np.where(np.array(parts.ops)[parts.op[head]] == "broadcast", parts.bucket[head], 0)
        roots = np.maximum.reduceat(parts.root[row], whole.starts)
        return cls(
            starts=whole.starts,
            transfer=whole.transfer,
            flow=np.array([_FLOWS.index(flow_of(name)) for name in parts.ops])[parts.op[head]],
            roots=np.where(roots == NONE, base, roots),
            rank=parts.rank[row],
            served=served[row],
            end=parts.end[row],
            sends=parts.sent[row] > 0,
        )

    def times(self, one_clock: NDArray[np.bool_]) -> Times:
        """Return the times of data flow. `one_clock` is true for each transfer whose ranks have a common clock."""
        here = self._on_one_clock()
        return here if one_clock.all() else self._across_hosts(here, one_clock)

    def lanes(self) -> tuple[NDArray[Any], ...]:
        """Return three arrays with one value per transfer: the kind of flow, the sender and the place.

        Transfers over the same links have the same three values. Groups of ranks without a common rank use different
        links.
        """
        flow = self.flow
        sender = np.maximum.reduceat(np.where(self.sends, self.rank, NONE), self.starts)
        receiver = np.maximum.reduceat(np.where(self.sends, NONE, self.rank), self.starts)
        place = np.where(flow == PAIR, np.where(sender == NONE, np.arange(len(flow)), receiver), self.roots)
        first = np.minimum.reduceat(self.rank, self.starts)
        place = np.where((flow == TOGETHER) | (flow == TREE), first, place)
        return flow, np.where(flow == PAIR, sender, NONE), place

    def _on_one_clock(self) -> Times:
        flow = self.flow[self.transfer]
        latest = np.maximum.reduceat(self.served, self.starts)
        begin, until = latest[self.transfer], self.end.copy()
        last = np.maximum.reduceat(self.end, self.starts)[self.transfer]
        if (rooted := np.isin(flow, _ROOTED)).any():
            at_root = self.rank == self.roots[self.transfer]
            root_served = self._of(self.served, at_root, np.maximum, -_FAR)
            root_end = self._of(self.end, at_root, np.maximum, -_FAR)
            first_other = self._of(self.served, ~at_root, np.minimum, _FAR)
            known = rooted & (root_served > -_FAR)
            earliest = np.where(at_root, np.where(first_other < _FAR, first_other, self.served), root_served)
            begin = np.where(known, np.maximum(self.served, earliest), begin)
            until = np.where(known & (flow == TO_ROOT), root_end, until)
            until = np.where(known & at_root & (flow != TO_ROOT), last, until)
        if (pairs := flow == PAIR).any():
            received = self._of(self.end, ~self.sends, np.maximum, -_FAR)
            until = np.where(pairs, np.where(received > -_FAR, received, last), until)
        for number in np.flatnonzero(self.flow == TREE).tolist():
            self._along_a_tree(slice(int(self.starts[number]), self._after(number)), begin, until)
        begins, ends = np.minimum.reduceat(begin, self.starts), np.maximum.reduceat(until, self.starts)
        return Times(begin, until, begins, ends)

    def _across_hosts(self, here: Times, one_clock: NDArray[np.bool_]) -> Times:
        took = np.minimum.reduceat(self.end - self.served, self.starts)[self.transfer]
        together = (self.flow == TOGETHER)[self.transfer]
        afar = np.where(together, self.end - took, self.served)
        known = one_clock[self.transfer]
        begin, until = np.where(known, here.begin, afar), np.where(known, here.until, self.end)
        begins = np.where(one_clock, here.begins, begin[self.starts])
        ends = np.where(one_clock, here.ends, until[self.starts])
        return Times(begin, until, begins, ends)

    def _of(self, values: Ints, where: NDArray[np.bool_], extreme: Any, without: int) -> Ints:
        """Return, per part, the extreme of `values` over the selected parts of its transfer, or else `without`."""
        found: Ints = extreme.reduceat(np.where(where, values, without), self.starts)[self.transfer]
        return found

    def _after(self, number: int) -> int:
        return int(self.starts[number + 1]) if number + 1 < len(self.starts) else len(self.rank)

    def _along_a_tree(self, parts: slice, begin: Ints, until: Ints) -> None:
        """Write the times of a tree transfer's parts into `begin` and `until`.

        A part begins once its rank and one neighbour have started, and ends once its last child has the data.
        """
        served = dict(zip(self.rank[parts].tolist(), self.served[parts].tolist(), strict=True))
        ends = dict(zip(self.rank[parts].tolist(), self.end[parts].tolist(), strict=True))
        near: dict[int, list[int]] = {rank: [] for rank in served}
        last = dict(ends)
        for rank, at in served.items():
            parent = tree_parent(rank)
            if rank and parent in served:
                near[rank].append(served[parent])
                near[parent].append(at)
                last[parent] = max(last[parent], ends[rank])
        begin[parts] = [max(at, min(near[rank], default=at)) for rank, at in served.items()]
        until[parts] = [last[rank] for rank in served]
