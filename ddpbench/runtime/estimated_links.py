"""Estimate how long emulated links, without latency, take for what ranks send in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ddpbench.formulas import PAYLOAD, TIMES, busiest_node_bytes, lower_bound_s
from ddpbench.spec import Case, Links
from ddpbench.workloads.work import Work

_FSDP_ALL_REDUCES = 2
"""Bytes that a step of FSDP sends with gloo, as a multiple of the bytes of one all-reduce. Two all-gathers send as much
as one all-reduce. gloo's reduce-scatter is an all-reduce.
"""
_ZERO1_ALL_REDUCES = 1.5
"""Bytes that a step of ZeRO-1 sends, as a multiple of the bytes of one all-reduce: 1 for the gradients, and 0.5 to
broadcast parameters.
"""
_COMPRESSED = {"none": 1.0, "fp16": 0.5, "bf16": 0.5, "powersgd": 0.0}
"""Approximate fraction of the gradients' bytes that DDP sends, by its option `compression`."""


def aggregation_s(case: Case, size: float) -> float:
    """Return the time in which emulated links aggregate `size` bytes of gradients by the case's algorithm (s).

    The time includes the lengthening by time dilation. The time is 0 without emulated links, or if the algorithm is
    unknown.
    """
    # An asynchronous server's link carries as many bytes as a master's.
    algorithm = "master" if case.algorithm == "async_server" else case.algorithm
    if not case.fabric or case.world_size == 1 or algorithm not in TIMES:
        return 0.0
    links, (_, seconds) = Links.parse(case.fabric), TIMES[algorithm]
    if case.nodes == 1:
        return case.dilation * _within_node_s(links, seconds(case.world_size, size, 1.0, 0.0))
    rate = PAYLOAD * links.limiting(algorithm, case.nodes) / 8
    sent = busiest_node_bytes(algorithm, case.nodes, case.ranks_per_node, size)
    if case.ranks_per_node == 1 or sent is None:
        return case.dilation * seconds(case.nodes, size, rate, 0.0)
    # A master receives all gradients before it sends their sum.
    directions = 2 if algorithm == "master" else 1
    return case.dilation * directions * sent / rate


def exchange_s(case: Case, work: Work) -> float:
    """Return the time in which emulated links carry a step's data, for a workload that computes (s).

    It is 0 without emulated links, and for strategies that send nothing or unknown bytes. `work` has the model's size.
    """
    if not case.fabric or case.world_size == 1 or case.strategy not in _TIMES:
        return 0.0
    return _TIMES[case.strategy](case, work.parameters * _width(case), work)


def _width(case: Case) -> float:
    """Return the size of a parameter (bytes)."""
    return 8.0 if case.dtype == "float64" else 4.0


def _gradients_s(case: Case, size: float, work: Work) -> float:
    return aggregation_s(case, size * _COMPRESSED[str(case.options.get("compression", "none"))])


def _local_sgd_s(case: Case, size: float, work: Work) -> float:
    return aggregation_s(case, size) / int(case.options.get("period", 1))


def _zero1_s(case: Case, size: float, work: Work) -> float:
    return _ZERO1_ALL_REDUCES * _ring_s(case, case.world_size, size)


def _fsdp_s(case: Case, size: float, work: Work) -> float:
    shards = case.world_size // _replicas(case)
    return _FSDP_ALL_REDUCES * _ring_s(case, shards, size) + _among_replicas_s(case, size / shards)


def _pipeline_s(case: Case, size: float, work: Work) -> float:
    """Return the time to pass activations and gradients between stages, and to average replicas (s)."""
    stages = case.world_size // _replicas(case)
    passed = case.global_batch / _replicas(case) * work.handed_on * _width(case)
    return 2 * _between_s(case, stages, passed) + _among_replicas_s(case, size / stages)


def _replicas(case: Case) -> int:
    return int(case.options.get("replicas", 1))


def _ring_s(case: Case, ranks: int, size: float) -> float:
    return _between_s(case, ranks, lower_bound_s(ranks, size, 1.0))


def _among_replicas_s(case: Case, size: float) -> float:
    """Return the time in which replicas all-reduce, with a shard of `size` bytes per rank (s).

    All ranks of a replica exchange at once.
    """
    ring, links = lower_bound_s(_replicas(case), size, 1.0), Links.parse(case.fabric)
    if case.nodes == 1:
        return _within_node_s(links, ring)
    return _between_nodes_s(case, ring * min(case.world_size // _replicas(case), case.ranks_per_node))


def _between_s(case: Case, ranks: int, size: float) -> float:
    if ranks > case.ranks_per_node:
        return _between_nodes_s(case, size)
    return _within_node_s(Links.parse(case.fabric), size)


def _between_nodes_s(case: Case, size: float) -> float:
    return size / (PAYLOAD * Links.parse(case.fabric).slowest(case.nodes) / 8)


def _within_node_s(links: Links, size: float) -> float:
    """Return the time to send `size` bytes within a node (s); 0 over a loopback."""
    return 0.0 if links.local_bandwidth is None else size / (PAYLOAD * links.local_bandwidth / 8)


_TIMES: Mapping[str, Callable[[Case, float, Work], float]] = {
    **dict.fromkeys(("ddp", "master", "async_server", "accelerate", "lightning", "hf_trainer"), _gradients_s),
    "post_local_sgd": _local_sgd_s,
    "zero1": _zero1_s,
    "fsdp": _fsdp_s,
    "pipeline": _pipeline_s,
}
"""Functions by strategy, which return the time of a step's transfers (s), given a case, its model's size (bytes) and
its work.
"""
