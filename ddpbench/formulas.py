"""Textbook formulas for the time and the bytes of aggregating gradients. Pure functions; nothing is fitted.

Throughout, n ranks hold S bytes of gradient each, a rank's link carries B bytes/s in each direction at once, and a
message's first byte arrives after α seconds. In the signatures S is `size`, B is `rate` and α is `alpha`. Times are
seconds for the whole operation. Bytes are counted on one link in one direction. Sources:

- Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
  Comput. 69 (2009): the ring, and the least that any algorithm moves.
- Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
  Comput. Appl. 19 (2005): the cost model α + S/B, the binomial tree (section 3), halving-doubling (section 4.5).
- Jiang et al., "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU clusters"
  (BytePS), OSDI'20, section 3: parameter servers.
- Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019, section
  2.3, and Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC'21,
  section 2.2: the pipeline's bubble, which is the same in GPipe and 1F1B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

PAYLOAD = 0.95
"""Share of a link's rate that is left for gradients. A frame takes 1,538 bytes on the wire, and 1,448 of them (94.1 %)
are TCP's payload. Shaping here counts 1,514 bytes per frame, without preamble and gap (95.6 %).
"""


def ring_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of a ring all-reduce (a reduce-scatter, then an all-gather): 2(n-1) α + 2(n-1)/n · S/B."""
    return 2 * (n - 1) * alpha + lower_bound_s(n, size, rate)


def naive_ring_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of passing whole gradients round a ring n-1 times: (n-1)(α + S/B)."""
    return (n - 1) * (alpha + size / rate)


def master_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of gathering on a master rank, which then sends the sum to each rank: 2α + 2(n-1) S/B."""
    return (2 * alpha if n > 1 else 0.0) + 2 * (n - 1) * size / rate


def tree_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of reducing up a binomial tree and broadcasting down it, unpipelined: 2 ⌈log2 n⌉ (α + S/B)."""
    return 2 * math.ceil(math.log2(n)) * (alpha + size / rate)


def halving_doubling_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time of halving-doubling: 2 log2 p · α + 2(p-1)/p · S/B, with p the largest power of two up to n.

    Other n take 2(α + S/B) more: ranks beyond p first send their gradients away, and get the result at the end.
    """
    p = power_of_two(n)
    folded = 2 * (alpha + size / rate) if p != n else 0.0
    return folded + 2 * math.log2(p) * alpha + lower_bound_s(p, size, rate)


def sharded_master_s(n: int, size: float, rate: float, alpha: float = 0.0) -> float:
    """Return the time if each rank is the server of an n-th of the parameters: 2α + 2(n-1)/n · S/B."""
    return (2 * alpha if n > 1 else 0.0) + lower_bound_s(n, size, rate)


def power_of_two(n: int) -> int:
    """Return the largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


def lower_bound_s(n: int, size: float, rate: float) -> float:
    """Return the least time in which n ranks can all-reduce: 2(n-1)/n · S/B."""
    return 2 * (n - 1) / n * size / rate


def bubble_share(stages: int, microbatches: int) -> float:
    """Return the share of a step in which a pipeline's stage is idle: (p-1)/(m+p-1), both in GPipe and in 1F1B.

    The p stages take equal time, and messages of the m microbatches none.
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
    "hierarchical": ("ring", ring_s),  # with one rank per node it is a ring
}
"""Formulas by a case's `algorithm`: the name, and the function that returns the time with one rank per node."""


def busiest_node_bytes(algorithm: str, nodes: int, ranks_per_node: int, size: float) -> float | None:
    """Return the bytes per step that the busiest node sends, with m nodes of r ranks each, n = m r.

    None for a single node, or without a formula.

    - A ring visits ranks in the order of their nodes: 2(n-1)/n · S, for any r. For the naive ring it is (n-1) S.
    - The node of a master or an asynchronous server sends (n - r) S.
    - A hierarchical all-reduce has r rings across the nodes, each for an r-th of the gradient: 2(m-1)/m · S.

    The formulas of all other algorithms hold only for one rank per node.
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
    """Return the bytes that the busiest of n ranks sends, with one rank per node; None for an unknown algorithm.

    The number is exact if n divides the gradient's length.
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
        "async_server": (n - 1) * size,  # it sends parameters to each worker in each of the worker's steps
        "tree": math.ceil(math.log2(n)) * size,
        "halving_doubling": 2 * (p - 1) / p * size + (size if p != n else 0.0),
    }
    return sent.get(algorithm)
