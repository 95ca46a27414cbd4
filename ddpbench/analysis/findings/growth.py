"""Growth of network time with the number of emulated nodes, as a sentence for the top of a report.

Strategies with the same three or more numbers of nodes are compared, by the formulas in `network.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import called, conditions, launch_tags
from ddpbench.analysis.network import formula_of, network_time, network_timings
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import Judgement, plain
from ddpbench.analysis.statistics.stats import compare, judge_all
from ddpbench.spec import grouping
from ddpbench.spec.grouping import cap_order
from ddpbench.strategies.traits import traits_of

FEWEST_SIZES = 3
_ByNodes = dict[int, CaseRun]


def growth_finding(cases: Sequence[CaseRun]) -> Finding | None:
    """Return the finding on the growth of network time with the number of nodes.

    It names the strategies with the least and the most network time. None without two strategies that are shown to
    differ.
    """
    able = [
        run
        for run in cases
        if run.status == "ok"
        and run.case.fabric
        and run.case.nodes > 1
        and traits_of(run.case).exchanges
        and not run.oversubscribed
        and network_timings(run)
    ]
    for members in grouped(able, lambda run: (*grouping.panel(run.case), run.case.ranks_per_node)).values():
        series: list[_ByNodes] = []
        for variant in grouped(members, lambda run: grouping.variant(run.case)).values():
            cap = min((run.case.bucket_cap_mb for run in variant), key=cap_order)
            series.append({run.case.nodes: run for run in variant if run.case.bucket_cap_mb == cap})
        long = [one for one in series if len(one) >= FEWEST_SIZES]
        sizes = sorted(set[int].intersection(*map(set, long))) if len(long) > 1 else []
        if len(sizes) >= FEWEST_SIZES:
            return _finding(long, sizes)
    return None


def _finding(series: Sequence[_ByNodes], sizes: Sequence[int]) -> Finding | None:
    few, most = sizes[0], sizes[-1]
    ordered = sorted(series, key=lambda one: _network_s(one[most]))
    least, worst = ordered[0], ordered[-1]
    judged = _judged([one[most] for one in ordered])
    if judged is None or judged.verdict != "slower":
        return None
    family = [one[most] for one in series]
    pair = (least, worst)
    names = [called(one[most], family) for one in pair]
    factors = [_times(_network_s(one[most]) / _network_s(one[few])) for one in pair]
    spans = [
        f"from {1e3 * _network_s(one[few]):,.0f} to {1e3 * _network_s(one[most]):,.0f} ms" for one in pair
    ]
    text = (
        f"{' and '.join(f'{factor} with {name}' for factor, name in zip(factors, names, strict=True))}: "
        f"from {few} to {most} nodes a step's network time goes {' and '.join(spans)}"
    )
    runs = [least[most], worst[most]]
    return Finding(
        kind="growth",
        text=sentence(text),
        tags=(
            f"at {most} nodes {names[1]} has {plain(judged.ratio)} times the network time",
            "network time: while any rank transfers, computing or not",
            *_theory(pair, few, most),
            *grouping.qualifiers(worst[most].case),
            *conditions(runs, late=False),
            *launch_tags(judged.rounds, judged.comparisons),
        ),
        evidence="network",
        verdict="slower",
        cases=(worst[most].case_id, least[most].case_id),
    )


def _network_s(run: CaseRun) -> float:
    return network_time(network_timings(run)).value


def _theory(pair: Sequence[_ByNodes], few: int, most: int) -> list[str]:
    times = [(formula_of(one[few].case, 1.0)[1], formula_of(one[most].case, 1.0)[1]) for one in pair]
    if not all(least and longest for least, longest in times):
        return []
    return [
        f"theory: {' and '.join(_times(longest / least) for least, longest in times if least and longest)}"
    ]


def _times(factor: float) -> str:
    return f"×{factor:.{0 if factor >= 9.95 else 1}f}"


def _judged(ordered: Sequence[CaseRun]) -> Judgement | None:
    """Judge the last case against the first, corrected for all pairs since these two are extremes."""
    times = [network_timings(run) for run in ordered]
    compared = {
        f"{slow} {fast}": found
        for slow in range(len(times))
        for fast in range(slow)
        if (found := compare(times[slow], times[fast])) is not None
    }
    return judge_all(compared).get(f"{len(times) - 1} 0")
