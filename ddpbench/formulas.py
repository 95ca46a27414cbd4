"""The cost of aggregating gradients: textbook formulas of time and of bytes. Pure functions; nothing is fitted.

Throughout, n ranks hold S bytes of gradient each, a rank's link carries B bytes/s in either direction at once, and a
message costs α seconds before its first byte arrives. Times are seconds for the whole operation, bytes those that
one link carries in one direction. Sources:

- Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
  Comput. 69 (2009): the ring, and the least that any algorithm moves.
- Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
  Comput. Appl. 19 (2005): the cost model α + S/B, the binomial tree (section 3), halving-doubling (section 4.5).
- Jiang et al., "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU clusters"
  (BytePS), OSDI'20, section 3: parameter servers.
- Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019, section
  2.3, and Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC'21,
  section 2.2: the pipeline's bubble, alike in both orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

PAYLOAD = 0.95
"""Share of a link's rate that gradients get: of 1,538 bytes that a frame takes on the wire 1,448 are TCP's payload
(94.1 %), and where shaping counts frames without preamble and gap, as here, of 1,514 (95.6 %).
"""


def ring_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of a ring all-reduce, a reduce-scatter and an all-gather: 2(n-1) α + 2(n-1)/n · S/B."""
    return 2 * (n - 1) * alpha + lower_bound_s(n, size, rate)


def naive_ring_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of whole gradients passed round a ring, n-1 times: (n-1)(α + S/B)."""
    return (n - 1) * (alpha + size / rate)


def master_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of gathering on one rank, which then sends to each: 2α + 2(n-1) S/B at the master's link."""
    return (2 * alpha if n > 1 else 0.0) + 2 * (n - 1) * size / rate


def tree_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of a binomial tree up and down, not pipelined: 2 ⌈log2 n⌉ (α + S/B)."""
    return 2 * math.ceil(math.log2(n)) * (alpha + size / rate)


def halving_doubling_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of halving-doubling, p the largest power of two in n: 2 log2 p · α + 2(p-1)/p · S/B.

    If n is not a power of two, the ranks beyond p give their gradient to another first and get the result last: 2(α +
    S/B).
    """
    p = power_of_two(n)
    folded = 2 * (alpha + size / rate) if p != n else 0.0
    return folded + 2 * math.log2(p) * alpha + lower_bound_s(p, size, rate)


def sharded_master_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time if each rank serves one n-th of the parameters, to all at once: 2α + 2(n-1)/n · S/B."""
    return (2 * alpha if n > 1 else 0.0) + lower_bound_s(n, size, rate)


def power_of_two(n: int) -> int:
    """Return the largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def lower_bound_s(n: int, size: float, rate: float) -> float:
    """Return the least time in which n ranks can all-reduce: 2(n-1)/n · S/B."""
    return 2 * (n - 1) / n * size / rate


def bubble_share(stages: int, microbatches: int) -> float:
    """Return the share of a step in which a pipeline's stage is idle: (p-1)/(m+p-1), in GPipe and 1F1B alike.

    For p stages of equal length, m microbatches, and messages that take no time.
    """
    return (stages - 1) / (microbatches + stages - 1)


TIMES: Mapping[str, tuple[str, Callable[[int, float, float, float], float]]] = {
    "all_reduce": ("ring", ring_s),  # gloo's all-reduce is the segmented ring at every size
    "ring": ("ring", ring_s),
    "naive_ring": ("naive ring", naive_ring_s),
    "master": ("master", master_s),
    "tree": ("tree", tree_s),
    "halving_doubling": ("halving-doubling", halving_doubling_s),
    "sharded_master": ("sharded master", sharded_master_s),
    "hierarchical": ("ring", ring_s),  # a ring, for ranks with a node each
}
"""By a case's `algorithm`: the formula's name, and its time for ranks with a node each."""


def busiest_node_bytes(algorithm: str, nodes: int, ranks_per_node: int, size: float) -> float | None:
    """Return the bytes per step that the busiest node sends; None without a known formula, or if nothing leaves a node.

    A ring over ranks in the order of nodes leaves each node once, with 2(n-1)/n · S, for any number of ranks per node;
    a naive one likewise. A master's node sends (n - r) S, and receives as much: its own r ranks are served within it;
    so does an asynchronous server's. Hierarchically, across m nodes of r ranks each, each of the r has a ring for an
    r-th of the gradient: 2(m-1)/m · S. The other formulas are for ranks with a node each.
    """
    n = nodes * ranks_per_node
    if nodes < 2:
        return None
    if algorithm in ("all_reduce", "ring"):
        return 2 * (n - 1) / n * size
    if algorithm == "naive_ring":
        return (n - 1) * size
    if algorithm in ("master", "async_server"):
        return (n - ranks_per_node) * size
    if algorithm == "hierarchical":
        return 2 * (nodes - 1) / nodes * size
    return busiest_rank_bytes(algorithm, n, size) if ranks_per_node == 1 else None


def busiest_rank_bytes(algorithm: str, n: int, size: float) -> float | None:
    """Return the bytes that the busiest rank sends, for ranks with a node each; None for an unknown algorithm.

    Exact if n divides the gradient's length.
    """
    if n < 2:
        return 0.0
    p = power_of_two(n)
    sent = {
        "all_reduce": 2 * (n - 1) / n * size,
        "ring": 2 * (n - 1) / n * size,
        "hierarchical": 2 * (n - 1) / n * size,
        "sharded_master": 2 * (n - 1) / n * size,
        "naive_ring": (n - 1) * size,
        "master": (n - 1) * size,
        "async_server": (n - 1) * size,  # parameters, to each worker in each of its steps
        "tree": math.ceil(math.log2(n)) * size,
        "halving_doubling": 2 * (p - 1) / p * size + (size if p != n else 0.0),
    }
    return sent.get(algorithm)
