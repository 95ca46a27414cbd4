"""The settings that words in tables and figures mean, for messages about unknown names."""

from __future__ import annotations

from collections.abc import Collection

from ddpbench.errors import meant, nearest
from ddpbench.spec.grouping import FACETS


def setting_meant(word: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Return `did you mean 'NAME'? ` for the setting that a table calls `word`, or else for the nearest known name.

    It is empty if there is none. `cutoff` is the least similarity of a near name, from 0 to 1.
    """
    spoken = word.strip().lower().replace("_", " ")
    titles = (name for name, facet in FACETS.items() if facet.title.lower() == spoken)
    name = next(titles, "")
    return f"did you mean {name!r}? " if name in known else meant(word, known, cutoff)


def nearest_setting(word: str, known: Collection[str]) -> str:
    """Return the end of an error message about an unknown setting: the one that may be meant, or all known names."""
    return setting_meant(word, known, 1.0).rstrip() or nearest(word, known)
