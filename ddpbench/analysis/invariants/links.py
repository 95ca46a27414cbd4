"""Check bytes against the capacity of links in the measured time, and against what algorithms must send.

An emulated link is a token bucket: in t seconds it lets at most rate * t + burst bytes pass. The burst is what the rate
carries in `spec.fabric.BURST_S` of the host's clock (`network.burst_s`). Gradients are the payload of frames.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddpbench.analysis.invariants.checked import Bounded, CheckedCase
from ddpbench.analysis.network import (
    PAYLOAD_MOST,
    burst_s,
    bursts_s,
    bytes_to_aggregate,
    formula_of,
    pieces_of,
)
from ddpbench.analysis.read.traffic import FEWEST, MOST
from ddpbench.collectives import TABLE as COLLECTIVES
from ddpbench.formulas import PAYLOAD, TIMES, busiest_node_bytes, busiest_rank_bytes
from ddpbench.records.operations import flow_of
from ddpbench.spec import Case, Links
from ddpbench.spec.links import links_of, local_rate
from ddpbench.strategies.traits import traits_of

RATE_TOLERANCE = 0.02
"""Relative tolerance of a link's rate, because its proof before a sweep reads counters for less than a second."""
STEP_TOLERANCE = 0.02
"""Relative tolerance of a step's network time, compared with its window from the first rank's start to the last's end.
"""
_AT_THE_SLOWEST = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "ring", "naive_ring", "hierarchical"}
)
"""Operations that send equally many bytes over every node's link."""


def links_carry(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the rate at which bytes passed each link in timed blocks, which is at most the link's rate.

    Bytes are from the kernel's counters.
    """
    links = links_of(case.run.case.fabric)
    if links is None:
        return
    local = local_rate(case.run.case.fabric, case.run.case.ranks_per_node)
    for launch in case.run.good:
        if launch.traffic is None or launch.timing is None:
            continue
        for rank, carried in launch.traffic.by_rank.items():
            node = rank // case.run.case.ranks_per_node
            if node >= case.run.case.nodes or rank >= len(launch.own_step_s):  # its launch is damaged
                continue
            nominal = links.of_node(node) if local is None else local
            # The bytes belong to this rank's own steps, because ranks may differ in pace (asynchronous servers).
            seconds = launch.own_step_s[rank]
            whose = f"node {node}" if local is None else f"rank {rank}"
            for way, count in zip(("sent", "received"), carried, strict=True):
                yield Bounded(
                    what=f"what {whose} {way} over its link",
                    seen=count / (seconds + burst_s(case.run.case, nominal) / launch.traffic.steps),
                    most=_rate(case, nominal),
                    unit="bytes/s",
                    round=launch.round,
                )


def bus_bandwidth(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the rate at which an operation's payload passes a node's link, which is at most the link's rate.

    The rate is per launch and operation, over all sizes, because overlapping transfers divide their time only by
    estimate.
    """
    job, parts = case.run.case, case.run.parts
    links = links_of(job.fabric)
    if links is None or parts is None or job.nodes < 2:
        return
    for number, sizes in parts.transfers.items():
        for op in dict.fromkeys(op for op, _ in sizes):
            nominal = _slowest(links, job) if op in _AT_THE_SLOWEST else _fastest(links, job)
            needed = seconds = 0.0
            for (name, size), moved in sizes.items():
                if name == op and (own := bytes_over_a_link(job, op, size, moved.ranks)):
                    needed += own * moved.count
                    seconds += moved.time_ns / 1e9 + moved.count * burst_s(job, nominal)
            if not needed:
                continue
            yield Bounded(
                what=f"the bus bandwidth of its {op.replace('_', '-')}",
                seen=needed / seconds,
                most=PAYLOAD_MOST * _rate(case, nominal),
                unit="bytes/s",
                round=number,
            )


def bytes_over_a_link(case: Case, op: str, size: float, ranks: int) -> float | None:
    """Return the fewest bytes that the busiest node's link carries in one direction for an operation.

    `size` is the recorded size: the whole buffer or, for a gather or scatter, one rank's. `ranks` is the number of
    ranks that take part. If these are not all ranks, their nodes are unknown, and only a transfer between two ranks has
    a result.
    """
    m, r = case.nodes, case.ranks_per_node
    if ranks < case.world_size and flow_of(op) != "pair":
        return None
    if op == "all_reduce" and not case.known_algorithm:
        return 2 * (m - 1) / m * size  # the algorithm may sum within a node first
    if op in TIMES:
        return busiest_node_bytes(op, m, r, size)
    shares = {
        **dict.fromkeys(("reduce_scatter", "all_gather"), (m - 1) / m),
        **dict.fromkeys(("gather", "scatter"), (m - 1) * r),
        **(dict.fromkeys(("send", "broadcast"), 1) if r == 1 else {}),
    }
    return shares[op] * size if op in shares else None


def network_time(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the network time of a step, with the least time that its bytes need and the step's window as bounds.

    The window lasts from the first rank's entry to the last rank's exit.
    """
    job, parts = case.run.case, case.run.parts
    links = links_of(job.fabric)
    if links is None or parts is None:
        return
    needed = _least_network_s(case, links)
    for number, seconds in parts.network_s.items():
        there_was_s = parts.window_s.get(number, parts.step_s)
        yield Bounded(
            what="the network time of its step",
            seen=seconds,
            least=needed,
            most=there_was_s * (1 + STEP_TOLERANCE),
            unit="s",
            round=number,
        )


def _least_network_s(case: CheckedCase, links: Links) -> float | None:
    """Return the least time (seconds) that the links need for a step's bytes; None if the busiest link is unknown.

    It assumes no latency, the largest share of payload, and a burst after every pause. Several transfers may overlap,
    so their bound is the busiest link's bytes in one direction.
    """
    job, size, pieces = case.run.case, _aggregated(case), pieces_of(case.run)
    if not size or (len(links.bandwidth) > 1 and job.algorithm not in (*_AT_THE_SLOWEST, "master")):
        return None
    _, needed_s = formula_of(job, size)
    if needed_s is None:
        return None
    nominal = links.limiting(job.algorithm, job.nodes)
    if pieces > 1:
        needed_s = min(
            needed_s, 8 * (busiest_rank_bytes(job.algorithm, job.nodes, size) or 0) / nominal / PAYLOAD
        )
    fastest = PAYLOAD_MOST * max(1.0, case.reached) * (1 + RATE_TOLERANCE)
    return needed_s * PAYLOAD / fastest - bursts_s(case.run, nominal)


def sent_as_by_formula(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the bytes that the busiest rank sent by ddpbench's own algorithms, which must equal the formula's.

    The tolerance allows for chunks rounded up to whole numbers of up to 8 bytes, in each message.
    """
    job, parts, size = case.run.case, case.run.parts, _aggregated(case)
    if parts is None or parts.sent_bytes is None or not size or job.algorithm not in COLLECTIVES:
        return
    if job.algorithm == "hierarchical" and job.nodes > 1 and job.ranks_per_node > 1:
        return  # the formula is for one rank per node
    expected = busiest_rank_bytes(job.algorithm, job.world_size, size)
    if expected is None:
        return
    slack = 16.0 * job.world_size * pieces_of(case.run) * job.shrink
    yield Bounded(
        what="what its busiest rank sent in a step",
        seen=parts.sent_bytes,
        least=expected - slack,
        most=expected + slack,
        unit="bytes",
    )


def counted_as_by_formula(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the ratio of the bytes counted on the busiest link to the formula's bytes.

    Protocols add a little to the count.
    """
    ratio = case.result.traffic_ratio
    if ratio is not None:
        what = "what its busiest link carried over what the formula says"
        yield Bounded(what=what, seen=ratio, least=FEWEST, most=MOST)


def buckets_hold_gradients(case: CheckedCase) -> Iterable[Bounded]:
    """Yield the total bytes of the buckets, which must equal the bytes of the gradients."""
    if not traits_of(case.run.case).uses_buckets:
        return
    for launch in case.run.good:
        if launch.bucket_bytes and launch.gradient_bytes and not launch.own_step:
            yield Bounded(
                what="the size of its buckets together",
                seen=sum(launch.bucket_bytes),
                least=launch.gradient_bytes,
                most=launch.gradient_bytes,
                unit="bytes",
                round=launch.round,
            )


def _aggregated(case: CheckedCase) -> float | None:
    return bytes_to_aggregate(case.run)


def _rate(case: CheckedCase, nominal: float) -> float:
    """Return the largest rate (bytes/s) that may be measured on a link of `nominal` bit/s."""
    return nominal / 8 * max(1.0, case.reached) * (1 + RATE_TOLERANCE)


def _slowest(links: Links, case: Case) -> float:
    return min(links.of_node(node) for node in range(case.nodes))


def _fastest(links: Links, case: Case) -> float:
    return max(links.of_node(node) for node in range(case.nodes))
