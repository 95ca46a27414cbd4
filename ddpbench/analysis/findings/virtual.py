"""Sentences on the limits of numbers from emulated, replayed, dilated and shrunk cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import late_share, too_long
from ddpbench.analysis.names import Names
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.pace import MOST_SHARE
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.analysis.table.result import CaseResult
from ddpbench.spec.links import links_of, without_latency
from ddpbench.strategies.traits import traits_of


def virtual_sentences(results: Sequence[CaseResult]) -> Iterable[str]:
    """Yield the sentences for the report's section Validity.

    Effects that change the meaning of numbers most come first.
    """
    measured = [one.run for one in results if one.timings]
    names = Names(measured)
    yield from _kinds(measured, names)
    yield from _dilated(measured, names)
    shrunk = [run for run in measured if run.case.shrink != 1]
    for (m,), members in grouped(shrunk, lambda run: (run.case.shrink,)).items():
        who, listed = names.count(members), names.listed(members)
        yield (
            f"{who} ran shrunk: gradients, bucket caps and links were all divided by {m}, and the "
            f"sizes told here are multiplied by it again; memory is the shrunk job's{listed}."
        )
    yield from _loopback(measured, names)
    yield from _unhidden([one for one in results if one.timings], names)


def _kinds(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    emulated = [run for run in measured if run.case.fabric]
    if emulated:
        linked = [run for run in measured if run.case.world_size > 1 and traits_of(run.case).exchanges]
        who, listed = names.count(emulated), names.listed(emulated)
        if len(emulated) == len(linked) > 1:  # one rank and independent ones use no link
            who, listed = "All cases that use links", ""
        yield (
            f"{who} ran over emulated links: network namespaces of this one machine behind links held to a rate"
            f"{', with no latency added' if without_latency({run.case.fabric for run in emulated}) else ''}. "
            f"Their numbers are not the machine's own{listed}."
        )
    for kind, how in (
        ("replayed", "as long as a measured profile says"),
        (
            "synthetic",
            "as long as a profile says that was made from published step times, and not measured",
        ),
    ):
        replays = [run for run in measured if run.case.compute == kind]
        if replays:
            who, listed = names.count(replays), names.listed(replays)
            yield (
                f"{who} had {kind} computation: ranks slept {how}, and handed the reducer real "
                "gradients of no meaning. They have no loss, and a GPU's interference between its computation and "
                f"its transfers is absent{listed}."
            )


def _dilated(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    dilated = [run for run in measured if run.case.dilation != 1]
    for (k,), members in grouped(dilated, lambda run: (run.case.dilation,)).items():
        who, listed = names.count(members), names.listed(members)
        yield (
            f"{who} ran in virtual time, dilated x{k:g}: computation and links were {k:g} times "
            f"slower, and every time of training told here is the clock's divided by {k:g} (1 s is {k:g} s of wall "
            "time). TCP's timers, the bursts that links let pass, disks and the host's own work (the reducer's copies, "
            "the optimizer, sockets) do not dilate: in virtual time they look that much "
            f"shorter{listed}."
        )


def _loopback(measured: Sequence[CaseRun], names: Names) -> Iterable[str]:
    using = [run for run in measured if _uses_loopback(run)]
    for (faster,), members in grouped(using, lambda run: (run.case.dilation * run.case.shrink,)).items():
        if faster == 1:
            continue
        who, listed = names.count(members), names.listed(members)
        yield (
            f"{who} had ranks of one node talk over its loopback, which was not slowed as the links were: in the "
            f"numbers told here it seems {faster:g} times as fast as it is. local_bandwidth gives such ranks links "
            f"of a known rate{listed}."
        )


def _uses_loopback(run: CaseRun) -> bool:
    if not traits_of(run.case).exchanges or max(launch.processes for launch in run.good) <= run.case.nodes:
        return False
    links = links_of(run.case.fabric)
    return links is None or links.local_bandwidth is None


def _unhidden(measured: Sequence[CaseResult], names: Names) -> Iterable[str]:
    needed = [(one.dilation_needed or 0.0, one) for one in measured]
    short = [(k, one) for k, one in needed if k > one.case.dilation * (1 + 1e-9)]
    if not short:
        return
    k, worst = max(short, key=lambda found: found[0])
    used = worst.case.dilation
    share = statistics.median(pace.cpu_s / pace.cores_s for pace in worst.paced or ())
    members = [one.run for _, one in short]
    why = (
        f"its ranks used {100 * share:.0f} % of their cores' time, and above {100 * MOST_SHARE:.0f} % they wait for "
        "each other"
        if used * share / MOST_SHARE >= 0.99 * k
        else "its optimizer takes longer here than the profiled one"
    )
    late = max(members, key=late_share)
    share = late_share(late)
    by = f"; steps of {names.of(late)} {too_long(share)}" if share > MARGIN else ""
    yield (
        f"{names.count(members)} {'holds' if len(members) == 1 else 'hold'} some of the host's own work, which a "
        f"larger dilation would hide{by}. To hide it in {names.of(worst.run)}, set dilation = {_round_up(k):g}: "
        f"{why}{names.listed(members)}."
    )


def _round_up(value: float) -> float:
    """Round up to two significant digits."""
    scale = 10.0 ** (1 - math.floor(math.log10(value)))
    return math.ceil(value * scale * (1 - 1e-9)) / scale
