"""Judge from the kernel's counts whether a fabric's links carry what was asked for. Starts nothing."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddpbench.errors import FabricError
from ddpbench.fabric.wiring import CableSide, FlowPhase, Wiring
from ddpbench.units import format_bit_rate

TOLERANCE = 0.05
"""A link whose rate is off by more than this fraction fails the proof."""
TRIES = (1, 4, 8, 8, 8, 8)
"""Number of windows in each try. The links must show their rates in one window. A failed try may be due to other work
on the cores, which starts and stops within seconds if it is another machine's.
"""
MOST_S = 30.0
"""No further try begins after this many seconds."""
PAUSE_S = 1.0
"""Seconds before each try from the third on."""
SHARED_TOLERANCE = 1 / 3
"""Fraction by which a link may be too slow if the cores are declared shared. Results are then flagged, and the rate
that was reached is recorded. A link must never be too fast.
"""
SHARED_TRIES = 3
HOPELESS = 1 / 3
"""Links that together carry less than this fraction of what was asked for, in the second try or later, are not tried
again. Nor are links that carry too much, because other work cannot cause that.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkProof:
    """A direction of a link: the rate asked of it, and the rate it carried while the others were busy as well."""

    label: str
    """Such as `node 3`."""
    side: CableSide
    """`out`: from the node, rank or rack; `in`: to it."""
    phase: str
    asked_bit_per_s: float
    """The link's rate, or the most that its senders can send, if that is less."""
    reached_bit_per_s: float
    """Rate of Ethernet frames, headers included, over the window."""
    dropped: int
    """Frames dropped since the link was made."""

    @property
    def off(self) -> float:
        """Return the fraction by which the link misses its rate, negative if it is too slow."""
        return self.reached_bit_per_s / self.asked_bit_per_s - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricProof:
    """The rates that all links carried, phase by phase. It exists only if no link was off."""

    links: tuple[LinkProof, ...]
    dropped: int
    """Frames dropped by all links together."""


Window = Mapping[tuple[int, str], tuple[int, int, int]]
"""Counts by space and interface: bytes, frames dropped, monotonic ns."""


def measured(wiring: Wiring, phase: FlowPhase, windows: Sequence[Window]) -> tuple[LinkProof, ...]:
    """Return the links' rates in the best window: the one whose worst link is least off.

    `windows` holds the counts at the windows' edges, n + 1 of them for n windows.
    """
    found = [
        tuple(_link(wiring, phase, key, (before, after)) for key in sorted(phase.expected))
        for before, after in itertools.pairwise(windows)
    ]
    return min(found, key=worst)


def worst(links: Sequence[LinkProof]) -> float:
    """Return the largest fraction by which one of these links is off, in either direction."""
    return max((abs(link.off) for link in links), default=0.0)


def _link(
    wiring: Wiring, phase: FlowPhase, key: tuple[int, CableSide], edges: tuple[Window, Window]
) -> LinkProof:
    (number, side), (before, after) = key, edges
    cable = wiring.cables[number]
    port = cable.near if side == "out" else cable.far
    where = (port.space, port.name)
    sent = after[where][0] - before[where][0]
    seconds = (after[where][2] - before[where][2]) / 1e9
    return LinkProof(
        label=cable.label,
        side=side,
        phase=phase.name,
        asked_bit_per_s=phase.expected[key],
        reached_bit_per_s=8 * sent / seconds,
        dropped=after[where][1],
    )


def carried(links: Sequence[LinkProof]) -> float:
    """Return the rate that these links carried together, bit/s: the larger of the sums over `out` and over `in`."""
    return max(sum(link.reached_bit_per_s for link in links if link.side == side) for side in ("out", "in"))


def off(links: Sequence[LinkProof], slower: float = TOLERANCE) -> tuple[LinkProof, ...]:
    """Return the links that are too fast by more than `TOLERANCE`, or too slow by more than the fraction `slower`."""
    return tuple(link for link in links if not -slower <= link.off <= TOLERANCE)


def held(
    carry: Callable[[int], tuple[LinkProof, ...]],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    *,
    shared_cores: bool = False,
) -> tuple[LinkProof, ...]:
    """Repeat a proof until all links carry what was asked for, or tries run out; return the links of the best try.

    `carry` makes a try with a given number of windows. With `shared_cores` there are fewer tries, and links that are
    too slow by less than a third are accepted.

    Raises:
        FabricError: in no try did all links carry what was asked for.
    """
    tries: list[tuple[LinkProof, ...]] = []
    began = clock()
    for number, windows in enumerate(TRIES[:SHARED_TRIES] if shared_cores else TRIES):
        if number > 1:
            if clock() - began > MOST_S:
                break
            sleep(PAUSE_S)
        tries.append(carry(windows))
        asked = sum(link.asked_bit_per_s for link in tries[-1] if link.side == "out")
        hopeless = carried(tries[-1]) < HOPELESS * asked or any(link.off > TOLERANCE for link in tries[-1])
        if not off(tries[-1]) or (number and hopeless):
            break
    slower = SHARED_TOLERANCE if shared_cores else TOLERANCE
    best = min(tries, key=lambda links: (bool(off(links, slower)), worst(links)))
    if off(best, slower):
        raise refusal(best)
    return best


def refusal(links: Sequence[LinkProof]) -> FabricError:
    """Return the error for a fabric with these links, some of which are off."""
    out = [link for link in links if link.side == "out"]
    fast = [link for link in off(links) if link.off > 0]
    if fast:
        fastest = max(fast, key=lambda link: link.off)
        return FabricError(
            f"the link of {fastest.label} let {_shown(fastest.reached_bit_per_s)} pass where "
            f"{_shown(fastest.asked_bit_per_s)} was asked for: this kernel's shaping (tbf) does not hold here"
        )
    asked, reached = sum(link.asked_bit_per_s for link in out), carried(links)
    rates = {link.asked_bit_per_s for link in out}
    count = f"{len(out)} link{'s' if len(out) != 1 else ''}"
    what = (
        f"{count} of {format_bit_rate(rates.pop())} are {_shown(asked)} at once"
        if len(rates) == 1 and len(out) > 1
        else f"{count} ask for {_shown(asked)} at once"
    )
    if reached < (1 - TOLERANCE) * asked:
        return FabricError(
            f"{what}; this machine carried {_shown(reached)}: lower the bandwidth, use fewer nodes, or dilate "
            f"time (replay) by {max(2, math.ceil(asked / reached))}"
        )
    slowest = min(off(links), key=lambda link: link.off)
    way = "from" if slowest.side == "out" else "to"
    return FabricError(
        f"the link {way} {slowest.label} carried {_shown(slowest.reached_bit_per_s)} of "
        f"{_shown(slowest.asked_bit_per_s)} while all {len(out)} were busy: something else has this machine's cores; "
        "wait for it, or lower the bandwidth"
    )


def _shown(rate: float) -> str:
    return format_bit_rate(float(f"{rate:.3g}"))
