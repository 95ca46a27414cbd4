"""Warnings for the top of a report, which are reasons to doubt everything below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench.analysis.findings.wording import disturbed_launches
from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.read.launches import CaseRun, Launch
from ddpbench.analysis.read.measurement import FOREIGN_LIMIT, STEAL_LIMIT

_BOUNDS = {
    "at_most_the_ranks": "more than linear: its speed-up is above its number of ranks",
    "under_the_bound": "faster than independent ranks, which exchange nothing",
}
"""Words for each invariant that only a disturbed or wrong measurement breaks."""


def warning_sentences(cases: Sequence[CaseRun], checks: Checked) -> Iterable[str]:
    """Yield a warning if most launches were disturbed, and one for each upper bound that a case is shown to exceed."""
    launches = [launch for run in cases for launch in run.good]
    disturbed = disturbed_launches(launches)
    if disturbed > len(launches) / 2:
        yield (
            f"Most launches were disturbed ({disturbed} of {len(launches)}): {_who(launches)} of the cores' time. "
            "Repeat on a quiet machine before you rely on small differences."
        )
    for rule, what in _BOUNDS.items():
        found = checks.of(rule)
        if found:
            worst = max(found, key=lambda one: one.broken.excess)
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            yield f"A case beats its upper bound: {worst.label} is {what} ({worst.broken.text}){more}."


def _who(launches: Sequence[Launch]) -> str:
    flags = {flag for launch in launches for flag in launch.flags}
    who = {
        "steal": f"other guests of the host took over {100 * STEAL_LIMIT:g} %",
        "foreign load": f"other processes took over {100 * FOREIGN_LIMIT:g} %",
    }
    return " and ".join(words for flag, words in who.items() if flag in flags)
