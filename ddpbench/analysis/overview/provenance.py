"""Sentences that say which version of the measuring code made a run, and which fields an old `machine.json` lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ddpbench.own_code import code_digest


def provenance_sentences(machine: Mapping[str, Any]) -> Iterable[str]:
    """Yield a sentence if a different version of the measuring code made the run.

    Yield another sentence if the run's `machine.json` lacks fields.
    """
    identity, context = (machine.get(name) or {} for name in ("identity", "context"))
    if not identity:  # nothing was measured yet
        return
    digest = identity.get("rank_code_digest")
    if digest is None:
        yield (
            "Which measuring code made this run is not known: its machine.json is from before digests of it were kept."
        )
    elif digest != code_digest():
        yield "Other measuring code than this version's made this run (rank_code_digest in Provenance)."
    if "setup" not in context:
        yield (
            "Rule 9 of Hoefler and Belli is not met: this run's machine.json is from before firmware, clock governor "
            "and NUMA nodes were recorded."
        )
