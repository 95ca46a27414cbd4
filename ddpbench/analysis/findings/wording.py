"""Names of cases, and phrases that state ratios, as all sentences use them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ddpbench.analysis.network import beyond_formula_s
from ddpbench.analysis.read.launches import CaseRun, Launch
from ddpbench.analysis.read.pace import host_share, late_s
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    EQUAL,
    MARGIN,
    Judgement,
    fastest_other,
    longer_or_shorter,
)
from ddpbench.analysis.statistics.stats import mean_step_s
from ddpbench.naming import Namer, curve_key, layout_of, ranks_of
from ddpbench.records import ComparedQuantity
from ddpbench.spec import Case
from ddpbench.spec.grouping import SCALE, VARIANT, cap_words
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_at_most

INEXACT: frozenset[ComparedQuantity] = frozenset(
    {
        "sums of gradients, with what is kept",
        "share of gradients kept back",
        "parameters, averaged",
        "parameters, updates in the server's order",
    }
)
"""Quantities that a proof compares if a strategy is inexact by design."""

Text = TypeVar("Text", bound=str)
MOST_WORDS = 30
"""Largest number of words in a sentence."""
MOST_NAMES = 2
"""Largest number of cases that a sentence names. Others are counted."""


def fitting(texts: Iterable[Text], *, also: int = 0) -> Text:
    """Return the longest text that is at most `MOST_WORDS` long, or the shortest if all are longer.

    `texts` must be in order of decreasing length. `also` is the number of words in the rest of the sentence.

    Raises:
        ValueError: `texts` is empty.
    """
    every = list(texts)
    if not every:
        raise ValueError("no text to choose from")
    return next((text for text in every if len(text.split()) + also <= MOST_WORDS), every[-1])


def listed(names: Sequence[str]) -> str:
    """List names in words. If there are many, the list has the first few and the number of the others."""
    if len(names) > MOST_NAMES + 1:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} others"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))


def listed_apart(names: Iterable[Iterable[str]]) -> str:
    """List names in words.

    Each name is a sequence of words, which are joined with dots as in the tables.
    """
    return listed([" · ".join(words) for words in names])


def called(run: CaseRun, family: Iterable[CaseRun], more: Iterable[str] = ()) -> str:
    """Return a case's strategy, followed in brackets by phrases that distinguish the case from its family.

    `more` names further fields from which the phrases may be made.
    """
    # The sentence gives numbers of ranks, and layouts if one number of ranks has several.
    return Namer(other.case for other in family).variant(run.case, (*VARIANT, *SCALE, *more))


def launch_tags(rounds: int, comparisons: int = 1) -> tuple[str, ...]:
    """Return tags with the launches per case and, for several comparisons, their correction."""
    corrected = (f"corrected for {comparisons} comparisons",) if comparisons > 1 else ()
    return (f"{rounds} launch{'es' if rounds != 1 else ''} each", *corrected)


MUCH_OF_A_STEP = 0.1
"""Smallest excess of transfer time over what the links need, as a fraction of a step, that is mentioned."""
LATE = "replayed computation came late"
"""Beginning of the remark on late computation of a replay."""


def conditions(runs: Sequence[CaseRun], *, late: bool = True) -> tuple[str, ...]:
    """Describe conditions of a comparison that its numbers do not show: caps, kernels, disturbances, a busy host.

    With `late`, the late computation of replays is included.
    """
    caps = {run.case.bucket_cap_mb for run in runs} - {None}
    (cap,) = caps if len(caps) == 1 else (None,)
    words = [f"{cap_words(cap)} buckets"] if cap not in (None, "default") else []
    words += [*_other_kernels(runs), *mostly_disturbed(runs)]
    return (*words, *_beyond_links(runs), *_full(runs), *_shared_cores(runs), *(_paced(runs) if late else ()))


def _other_kernels(runs: Sequence[CaseRun]) -> list[str]:
    """Name the cases whose model another library than torch computes; empty if all use the same."""
    others = [run for run in runs if traits_of(run.case).engine != "torch"]
    names = list(dict.fromkeys(called(run, runs) for run in others))
    if not names or len({traits_of(run.case).engine for run in runs}) == 1:
        return []
    return [f"{listed(names)} {'computes' if len(names) == 1 else 'compute'} with other kernels"]


def mostly_disturbed(runs: Sequence[CaseRun], whose: str = "") -> list[str]:
    """State the number of disturbed launches if it is over half; otherwise empty. `whose` names the cases."""
    launches = [launch for run in runs for launch in run.good]
    disturbed = disturbed_launches(launches)
    of = f" of {whose}" if whose else ""
    many = disturbed > len(launches) / 2
    return [f"{disturbed} of {len(launches)} launches{of} disturbed"] if many else []


def _beyond_links(runs: Sequence[CaseRun]) -> list[str]:
    """State the largest share of a step by which transfers took longer than emulated links explain."""
    found = {
        run.case_id: (beyond_formula_s(run) / run.parts.step_s, run)
        for run in runs
        if run.parts is not None and run.parts.step_s > 0
    }
    share, run = max(found.values(), key=lambda one: one[0], default=(0.0, None))
    if run is None or share < MUCH_OF_A_STEP:
        return []
    whose = f" of {_where(run, runs)}" if len(found) > 1 else ""
    return [
        f"{100 * share:.0f} % of a step{whose} is transfers beyond their link's time, the library's or this machine's"
    ]


def _full(runs: Sequence[CaseRun]) -> list[str]:
    busy = {run.case_id: (busy_share(run), run) for run in runs if run.timings}
    share, run = max(busy.values(), key=lambda one: one[0], default=(0.0, None))
    if run is None or share <= FULL_SHARE:
        return []
    return [
        f"{_where(run, runs)} took {100 * share:.0f} % of this machine's cores, so that these set its pace"
    ]


def _shared_cores(runs: Sequence[CaseRun]) -> list[str]:
    shares = [run.shared_cores_share or 0.0 for run in runs]
    share = max((share for share in shares if share < MOST_SHARED), default=0.0)
    if not share:
        return []
    return [f"ranks shared cores: up to {format_at_most(share)} of a step may be waiting for them"]


def _where(run: CaseRun, runs: Sequence[CaseRun]) -> str:
    several = len({one.case.world_size for one in runs}) > 1
    return f"{called(run, runs)} at {ranks_of(run.case)}" if several else called(run, runs)


def _paced(runs: Sequence[CaseRun]) -> list[str]:
    """Say how much late computation lengthens a replay's steps, for the case with the largest effect."""
    late = {run.case_id: (late_share(run), run) for run in runs if run.timings}
    share, run = max(late.values(), key=lambda one: one[0], default=(0.0, None))
    if run is None or share <= MARGIN:
        return []
    several = sum(one.case.world_size > 1 for _, one in late.values()) > 1
    whose = f"steps of {called(run, runs)}" if several else "its steps"
    return [f"{LATE}: {whose} {too_long(share)}"]


def too_long(share: float) -> str:
    """Say by how much steps may be too long. `share` is a fraction, as `late_share` returns it."""
    return (
        f"read up to {format_at_most(share)} too long by this alone"
        if share <= 1
        else "may read more than twice too long by this alone"
    )


MOST_SHARED = 1.0
"""Share of a step. If ranks may have waited for shared cores this long or longer, the wait is not mentioned."""
FULL_SHARE = 0.9
"""Share of the cores' time above which the work of replaying sets a replay's pace, on any emulated network."""


def busy_share(run: CaseRun) -> float:
    """Return the share of the cores' time that the work of replaying takes; 0 if the case is not a replay."""
    paced = [launch.pace for launch in run.good if launch.pace is not None]
    return host_share(paced) if paced else 0.0


def late_share(run: CaseRun) -> float:
    """Return the largest fraction by which a replay's steps may be too long because its computation was late."""
    paced = [launch.pace for launch in run.good if launch.pace is not None]
    late = late_s(paced) if paced else 0.0
    step = mean_step_s(run.timings)
    return late / (step - late) if late < step else math.inf


def disturbed_launches(launches: Iterable[Launch]) -> int:
    """Return the number of launches whose cores were taken by other guests or processes."""
    return sum(any(flag in launch.flags for flag in ("steal", "foreign load")) for launch in launches)


def undecided_all(ratios: Sequence[Interval]) -> str:
    """State the range that covers the intervals of several undecided ratios to one reference.

    The two ends of the range may be from different ratios.
    """
    lows, highs = zip(*((one.low, one.high) for one in ratios if one.low and one.high), strict=True)
    return (
        f"at the widest {longer_or_shorter(Interval(value=ratios[0].value, low=min(lows), high=max(highs)))}"
    )


def tied_words(
    judged: Iterable[Judgement | None], apart: str, of: str = "", equal: str = ""
) -> Iterator[str]:
    """Yield phrases, of decreasing length, that say that cases are tied.

    If all judgements are `equivalent`, the phrase says so. Otherwise the phrases say that no difference is shown. The
    longest also says how large the difference may be.

    Args:
        judged: the judgements; None for two cases that are not compared.
        apart: the chosen case's `Standing.apart`.
        of: words that follow `no difference`, such as ` from master`.
        equal: words that follow `equivalent within 2 %`, such as ` to master`.
    """
    found = [one for one in judged if one is not None]
    if found and all(one.verdict == "equivalent" for one in found):
        yield f"{EQUAL}{equal}"
        return
    tie = f"no difference{f'{of} is' if of else ''} shown"
    if apart:
        yield f"{tie}: {fastest_other(apart)}"
        yield f"{tie}: within {apart}"
    yield tie


def takes_another_path(run: CaseRun) -> bool:
    """Return whether a strategy may end with other parameters than synchronous training.

    An unknown promise is judged by the quantities that the proof compares.
    """
    traits = traits_of(run.case)
    if traits.promise is not None or run.proof is None:
        return not traits.exact
    return any(proof.compared in INEXACT for proof in run.proof.proofs)


def name_of(run: CaseRun, other: CaseRun | None = None, family: Iterable[CaseRun] = ()) -> str:
    """Return a strategy's name for a sentence, with phrases that distinguish the case from others of the same strategy.

    Args:
        run: the case.
        other: the case that it is compared with.
        family: cases that the same text names.
    """
    among, more = _family_and_words(run, other, family)
    return Namer(among).variant(run.case, VARIANT, layouts=False, more=more)


def key_of(run: CaseRun, other: CaseRun | None = None, family: Iterable[CaseRun] = ()) -> str:
    """Return a case's name like `name_of`, but in the stable wording that data files use."""
    among, more = _family_and_words(run, other, family)
    return curve_key(
        run.case, among, more=[f"({words})" if words == _ANOTHER_PATH else words for words in more]
    )


_ANOTHER_PATH = "another path of training"


def _family_and_words(
    run: CaseRun, other: CaseRun | None, family: Iterable[CaseRun]
) -> tuple[list[Case], list[str]]:
    case = run.case
    more: list[str] = []
    linked = other is not None and traits_of(case).exchanges and traits_of(other.case).exchanges
    if other is not None and linked and case.nodes != other.case.nodes:
        more.append(layout_of(case))
    if other is not None and takes_another_path(run) and not takes_another_path(other):
        more.append(_ANOTHER_PATH)
    others = [*([other] if other is not None else []), *family]
    return [case, *(one.case for one in others)], more


def one_bucket(run: CaseRun) -> list[str]:
    """Say that nothing overlaps because the case has a single bucket; otherwise empty.

    A single bucket is sent once all gradients are computed.
    """
    buckets = [launch.bucket_bytes for launch in run.good if launch.bucket_bytes]
    if run.case.bucket_cap_mb is None or not buckets or any(len(one) > 1 for one in buckets):
        return []
    return ["without overlap: one bucket holds all gradients, and is ready when backward ends"]
