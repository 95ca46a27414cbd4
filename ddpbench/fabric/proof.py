"""Decide from the kernel's counts whether a fabric's links reach the requested rates."""

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
"""A link whose rate is wrong by more than this fraction fails the proof."""
TRIES = (1, 4, 8, 8, 8, 8)
"""Number of windows in each try, of which one must show the requested rates. A try may fail because of other work on
the cores. If this work is another virtual machine's, it may end within seconds.
"""
MOST_S = 30.0
"""Time after which no further try begins (s)."""
PAUSE_S = 1.0
"""Pause before each try from the third on (s)."""
SHARED_TOLERANCE = 1 / 3
"""Fraction by which a link may be too slow if the cores are declared shared. Results are then flagged, and the measured
rate is recorded. Links that are too fast fail all the same.
"""
SHARED_TRIES = 3
HOPELESS = 1 / 3
"""Tries end early if all links together carry less than this fraction of the requested rates in the second try or
later. They also end if a link carries too much, because other work cannot cause that.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkProof:
    """The requested and the measured rate of one direction of a link, while the phase's other links were busy too."""

    label: str
    """Name of the link's owner, such as `node 3`."""
    side: CableSide
    """`out` for the direction from the node, rank or rack, `in` for the direction to it."""
    phase: str
    asked_bit_per_s: float
    """The link's rate, or the total rate of its senders, if that is lower."""
    reached_bit_per_s: float
    """Measured rate of Ethernet frames in the window, including headers."""
    dropped: int
    """Number of frames dropped since the link was made."""

    @property
    def off(self) -> float:
        """Return the relative error of the measured rate; negative if the link is too slow."""
        return self.reached_bit_per_s / self.asked_bit_per_s - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricProof:
    """The measured rates of all links, phase by phase, if all rates are acceptable."""

    links: tuple[LinkProof, ...]
    dropped: int
    """Number of frames dropped by all links together."""


Window = Mapping[tuple[int, str], tuple[int, int, int]]
"""Counts by (space, interface): bytes, frames dropped, time of the reading (monotonic ns)."""


def measured(wiring: Wiring, phase: FlowPhase, windows: Sequence[Window]) -> tuple[LinkProof, ...]:
    """Return the links' measured rates in the best time window: the window in which the worst link's error is smallest.

    `windows` has the kernel's counts at the edges of the time windows: n + 1 counts for n windows.
    """
    found = [
        tuple(_link(wiring, phase, key, (before, after)) for key in sorted(phase.expected))
        for before, after in itertools.pairwise(windows)
    ]
    return min(found, key=worst)


def worst(links: Sequence[LinkProof]) -> float:
    """Return the largest relative error of these links' rates, in absolute value; 0 for no links."""
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
    """Return the total rate of these links (bit/s).

    The rates are summed for each direction, `out` and `in`. The larger sum is returned.
    """
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
    """Repeat a proof until all links reach the requested rates or no tries are left; return the best try's links.

    `carry` runs one try with the given number of time windows and returns the links' rates. With `shared_cores` there
    are fewer tries, and links may be too slow by up to a third.

    Raises:
        FabricError: no try was acceptable.
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
    """Return the error for a fabric in which some of these links are too slow or too fast."""
    out = [link for link in links if link.side == "out"]
    fast = [link for link in off(links) if link.off > 0]
    if fast:
        fastest = max(fast, key=lambda link: link.off)
        return FabricError(
            f"the link of {fastest.label} carried {_shown(fastest.reached_bit_per_s)} instead of "
            f"{_shown(fastest.asked_bit_per_s)}: this kernel (tbf) does not limit the rate"
        )
    asked, reached = sum(link.asked_bit_per_s for link in out), carried(links)
    rates = {link.asked_bit_per_s for link in out}
    count = f"{len(out)} link{'s' if len(out) != 1 else ''}"
    what = (
        f"{count} of {format_bit_rate(rates.pop())} need {_shown(asked)} at once"
        if len(rates) == 1 and len(out) > 1
        else f"{count} need {_shown(asked)} at once"
    )
    if reached < (1 - TOLERANCE) * asked:
        return FabricError(
            f"{what}; this machine carried only {_shown(reached)}: lower the bandwidth, use fewer nodes, or "
            f"dilate time (replay) by {max(2, math.ceil(asked / reached))}"
        )
    slowest = min(off(links), key=lambda link: link.off)
    way = "from" if slowest.side == "out" else "to"
    return FabricError(
        f"the link {way} {slowest.label} carried {_shown(slowest.reached_bit_per_s)} of "
        f"{_shown(slowest.asked_bit_per_s)} while all {len(out)} were busy: another program uses this "
        "machine's cores; wait until it ends, or lower the bandwidth"
    )


def _shown(rate: float) -> str:
    return format_bit_rate(float(f"{rate:.3g}"))
