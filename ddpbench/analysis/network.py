"""Communication over emulated links, case by case, and what the algorithm's formula says of it.

A case's network time is how long a step's transfers were under way on any rank (`Breakdown.network_s`): one mean a
round, and of these the median and its interval. The formula is given the gradients' bytes, the rate of the link that
limits it times the share that payload gets (`formulas.PAYLOAD`), and no latency: α = 0. It holds for ranks that have a
node each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.results import NetworkResult
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import median_launch
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.formulas import PAYLOAD, TIMES, busiest_node_bytes, busiest_rank_bytes, lower_bound_s
from ddpbench.spec import OWN_TYPES, Case
from ddpbench.spec.fabric import BURST_S
from ddpbench.spec.links import links_of, local_rate
from ddpbench.strategies.traits import traits_of

_KNOWN_OVER_UPLINKS = ("all_reduce", "ring", "naive_ring", "hierarchical", "master")
"""How much of what these send passes the uplink between racks, `Links.limiting` knows."""
PAYLOAD_MOST = 1448 / 1514
"""Of the frame that a shaped link counts, as no preamble and gap are, this is TCP's payload: see `formulas.PAYLOAD`."""
_BURSTS = {"master": 2, "tree": 2, "halving_doubling": 4}
"""How many times the busiest link restarts, in one direction after the other, for one transfer."""
NUMBER_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
"""Of a gradient's number, by the case's type."""


def network_results(cases: Sequence[CaseRun]) -> Iterator[NetworkResult]:
    """Yield every case that exchanges gradients over emulated links and was instrumented.

    `bound_s` is at the links' whole rate, less a burst a transfer; `sent_bytes` is counted.
    """
    for run in cases:
        if (
            run.status != "ok"
            or run.parts is None
            or not run.case.fabric
            or not traits_of(run.case).exchanges
        ):
            continue
        times = network_timings(run)
        if not times:
            continue
        found = network_time(times)
        size = bytes_to_aggregate(run)
        name, formula_s = formula_of(run.case, size)
        bound_s, sent = None, run.parts.sent_bytes
        links, n = links_of(run.case.fabric), run.case.world_size
        alike = links is not None and links.uplink is None and len(set(links.bandwidth)) == 1
        if formula_s is not None and size and links is not None and alike:
            rate = links.slowest(run.case.nodes)
            least_s = lower_bound_s(n, size, PAYLOAD_MOST * rate / 8) - bursts_s(run, rate)
            bound_s = least_s if least_s > 0 else None
        expected = (
            busiest_rank_bytes(run.case.known_algorithm, n, size) if size and sent is not None else None
        )
        yield NetworkResult(
            case_id=run.case_id,
            network_s=found,
            rounds=len(times),
            formula=name,
            formula_s=formula_s,
            bound_s=bound_s,
            gradient_bytes=size,
            sent_bytes=sent,
            formula_bytes=expected,
        )


def formula_of(case: Case, size: float | None) -> tuple[str, float | None]:
    """The textbook's name and time of a case's algorithm for gradients of `size` bytes; none across shared nodes."""
    links = links_of(case.fabric)
    if links is None or not size or case.known_algorithm not in TIMES or case.nodes != case.world_size:
        return "", None
    if links.uplink is not None and case.algorithm not in _KNOWN_OVER_UPLINKS:
        return "", None
    name, seconds = TIMES[case.algorithm]
    return name, seconds(case.world_size, size, PAYLOAD * links.limiting(case.algorithm, case.nodes) / 8, 0.0)


def burst_s(case: Case, nominal: float) -> float:
    """Return seconds of a link's rate, bit/s, that it lets pass at once after a pause, of the job's time.

    It is a token bucket, which holds one frame at the least.
    """
    frame_s = 1514 * 8 * case.shrink / nominal
    return max(BURST_S / case.dilation, frame_s)


def bursts_s(run: CaseRun, nominal: float) -> float:
    """Return the same for all transfers of a step, each of which begins after a pause, or as often as its algorithm."""
    return pieces_of(run) * _BURSTS.get(run.case.algorithm, 1) * burst_s(run.case, nominal)


def pieces_of(run: CaseRun) -> int:
    """Return how many transfers share a step's gradients, at most."""
    found = [len(launch.bucket_bytes) for launch in run.good if launch.bucket_bytes]
    if found:
        return max(found)
    sizes = run.parts.transfers.values() if run.parts is not None else ()
    return max((Counter(op for op, _ in own).most_common(1)[0][1] for own in sizes if own), default=1)


def beyond_formula_s(run: CaseRun) -> float:
    """Return how much of a step's exposed communication its links do not explain, even if they hid nothing, seconds.

    It is the work of the library that sends, or of the machine that emulates the links. 0 where there is no formula,
    and where links have more than a rate: latency, losses, storage that shares them.
    """
    links = links_of(run.case.fabric)
    if links is None or run.parts is None or not links.rates_alone:
        return 0.0
    _, formula_s = formula_of(run.case, bytes_to_aggregate(run))
    return 0.0 if formula_s is None else max(0.0, run.parts.exposed_s - formula_s)


def network_timings(run: CaseRun) -> list[Timing]:
    """Return how long a step's transfers were under way in each launch, seconds: to be paired as step times are."""
    network_s = run.parts.network_s if run.parts is not None else {}
    return [
        replace(timing, time_s=seconds, steps=1, samples=1)
        for timing in run.timings
        if (seconds := network_s.get(timing.round, 0.0)) > 0
    ]


def network_time(times: Sequence[Timing]) -> Interval:
    """Return the median of `network_timings`, seconds, with its interval over launches."""
    return median_launch([timing.time_s for timing in times])


def busiest_link_bytes(case: Case, algorithm: str, size: float) -> float | None:
    """Return what an algorithm sends a step over the busiest of the links whose bytes are counted; None: not known.

    They are nodes', or where ranks have links of their own ranks': those carry what stays within the node as well.
    """
    if local_rate(case.fabric, case.ranks_per_node) is None:
        return busiest_node_bytes(algorithm, case.nodes, case.ranks_per_node, size)
    if algorithm == "hierarchical":
        return None  # its formula is for ranks that have a node each
    return busiest_rank_bytes(algorithm, case.world_size, size)


def bytes_to_aggregate(run: CaseRun) -> float | None:
    """Return the gradient as a step sends it: two bytes a number where it is compressed to fp16 or bf16.

    None where something else is sent, or not once in every step: products of low rank, parameters now and then, what
    a workload's own step makes of it; and where it is not known.
    """
    case = run.case
    known = next((launch for launch in run.good if launch.gradient_bytes), None)
    if known is None or known.own_step or traits_of(case).promise in ("delayed", "averaged"):
        return None
    whole = float(known.gradient_bytes or 0)
    if case.options.get("compression", "none") == "none":
        return whole
    if case.dtype == OWN_TYPES:
        is_complex = any(name.startswith("complex") for name in known.types)  # two numbers in one
        return 2.0 * known.parameters if known.parameters and not is_complex else None
    return whole * 2 / NUMBER_BYTES[case.dtype]
