"""Communication over emulated links, per case, and its time by the algorithm's formula.

A case's network time is the time per step in which any rank had a transfer under way (`Breakdown.network_s`), as the
median over launches. The formula uses the limiting link's rate times `formulas.PAYLOAD`, without latency (α = 0), and
holds for one rank per node.
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
"""Algorithms for which `Links.limiting` knows the share of traffic over the uplink between racks."""
PAYLOAD_MOST = 1448 / 1514
"""Largest share of payload in a frame as a shaped link counts it, without preamble and gap; see `formulas.PAYLOAD`."""
_BURSTS = {"master": 2, "tree": 2, "halving_doubling": 4}
"""Number of times per transfer that the busiest link restarts after a pause, in either direction."""
NUMBER_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
"""Bytes of one number in a gradient, by the case's `dtype`."""


def network_results(cases: Sequence[CaseRun]) -> Iterator[NetworkResult]:
    """Yield a result for every case with emulated links, exchanged gradients and instrumented steps.

    `bound_s` assumes full-rate links and bursts that take no time. `sent_bytes` is counted, not computed.
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
    """Return the name of the textbook formula for a case's algorithm, and its time (seconds) for `size` bytes.

    The result is "" and None without emulated links, without a formula, or if ranks share nodes.
    """
    links = links_of(case.fabric)
    if links is None or not size or case.known_algorithm not in TIMES or case.nodes != case.world_size:
        return "", None
    if links.uplink is not None and case.algorithm not in _KNOWN_OVER_UPLINKS:
        return "", None
    name, seconds = TIMES[case.algorithm]
    return name, seconds(case.world_size, size, PAYLOAD * links.limiting(case.algorithm, case.nodes) / 8, 0.0)


def burst_s(case: Case, nominal: float) -> float:
    """Return how many seconds of traffic a link of `nominal` bit/s sends at once after a pause.

    A link is a token bucket that holds at least one frame. The seconds are not divided by a dilation.
    """
    frame_s = 1514 * 8 * case.shrink / nominal
    return max(BURST_S / case.dilation, frame_s)


def bursts_s(run: CaseRun, nominal: float) -> float:
    """Return the seconds of a step's traffic that a link sends as bursts: `burst_s` per restart of a transfer."""
    return pieces_of(run) * _BURSTS.get(run.case.algorithm, 1) * burst_s(run.case, nominal)


def pieces_of(run: CaseRun) -> int:
    """Return the largest number of transfers into which a step's gradients were split."""
    found = [len(launch.bucket_bytes) for launch in run.good if launch.bucket_bytes]
    if found:
        return max(found)
    sizes = run.parts.transfers.values() if run.parts is not None else ()
    return max((Counter(op for op, _ in own).most_common(1)[0][1] for own in sizes if own), default=1)


def beyond_formula_s(run: CaseRun) -> float:
    """Return the seconds of a step's exposed communication that exceed the formula's time for its links.

    This time is spent in the sending library, or in the machine that emulates the links. The result is 0 without a
    formula, for links with latency or losses, and if input data use the same links.
    """
    links = links_of(run.case.fabric)
    if links is None or run.parts is None or not links.rates_alone:
        return 0.0
    _, formula_s = formula_of(run.case, bytes_to_aggregate(run))
    return 0.0 if formula_s is None else max(0.0, run.parts.exposed_s - formula_s)


def network_timings(run: CaseRun) -> list[Timing]:
    """Return the network time of each launch, as timings that can be paired by round like step times."""
    network_s = run.parts.network_s if run.parts is not None else {}
    return [
        replace(timing, time_s=seconds, steps=1, samples=1)
        for timing in run.timings
        if (seconds := network_s.get(timing.round, 0.0)) > 0
    ]


def network_time(times: Sequence[Timing]) -> Interval:
    """Return the median of the launches' network times, in seconds, with its interval."""
    return median_launch([timing.time_s for timing in times])


def busiest_link_bytes(case: Case, algorithm: str, size: float) -> float | None:
    """Return the bytes that an algorithm sends per step over the busiest link; None if unknown.

    A link belongs to a node, or to a rank with its own link, which also carries traffic within the node.
    """
    if local_rate(case.fabric, case.ranks_per_node) is None:
        return busiest_node_bytes(algorithm, case.nodes, case.ranks_per_node, size)
    if algorithm == "hierarchical":
        return None  # its formula is for one rank per node
    return busiest_rank_bytes(algorithm, case.world_size, size)


def bytes_to_aggregate(run: CaseRun) -> float | None:
    """Return the gradient bytes that a step sends (two per number in fp16 and bf16).

    None if the size is unknown, if something else is sent (low-rank products, parameters), or for a workload's own
    step.
    """
    case = run.case
    known = next((launch for launch in run.good if launch.gradient_bytes), None)
    if known is None or known.own_step or traits_of(case).promise in ("delayed", "averaged"):
        return None
    whole = float(known.gradient_bytes or 0)
    if case.options.get("compression", "none") == "none":
        return whole
    if case.dtype == OWN_TYPES:
        is_complex = any(
            name.startswith("complex") for name in known.types
        )  # a complex number is two numbers
        return 2.0 * known.parameters if known.parameters and not is_complex else None
    return whole * 2 / NUMBER_BYTES[case.dtype]
