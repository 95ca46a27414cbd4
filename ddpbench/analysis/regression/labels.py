"""Name the pairs of cases that a comparison compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ddpbench.naming import EVERY, Namer
from ddpbench.spec import Case
from ddpbench.spec.grouping import alike, differing
from ddpbench.text_safety import JOINT

LabelledPair = tuple[Case | None, Case | None]
"""A case of the base and one of the new side; None for a side that lacks it."""


def pair_labels(pairs: Sequence[LabelledPair], name: Callable[[Namer, Case], str] = Namer.full) -> list[str]:
    """Return the pairs' names. A pair of different cases is named by what they have in common.

    A comparison says once in which settings its sides differ. Both cases are named if another pair equals this one in
    all else, or if they have nothing in common.

    Args:
        pairs: pairs of cases, at least one of each pair present.
        name: returns a case's name: `Namer.full` or `Namer.key`.
    """
    both = [(a, b) for a, b in pairs if a is not None and b is not None and alike(a) != alike(b)]
    free = {field for pair in both for field in differing(pair, EVERY)}
    named = [case for a, b in pairs for case in ((a, b) if both else (a or b,)) if case is not None]
    names, counts = Namer(named), Counter(alike(one, but=free) for a, b in pairs if (one := a or b))

    def label(a: Case | None, b: Case | None) -> str:
        if (a, b) not in both or a is None or b is None:
            known = a or b
            return name(names, known) if known is not None else ""
        words, others = (name(names, case).split(JOINT) for case in (a, b))
        common = [word for word in words if word in others]
        if common and counts[alike(a, but=free)] == 1:
            return JOINT.join(common)
        return f"{JOINT.join(words)} against {JOINT.join(others)}"

    return [label(a, b) for a, b in pairs]
