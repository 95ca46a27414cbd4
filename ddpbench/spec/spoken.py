"""Find the setting that a user means by a word from tables and figures, for messages about unknown names."""

from __future__ import annotations

from collections.abc import Collection

from ddpbench.errors import meant, nearest
from ddpbench.spec.grouping import FACETS


def setting_meant(word: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Return `did you mean 'NAME'? ` with the setting that tables call `word`, or else the most similar known name.

    Empty if no name is similar enough; `cutoff` is the least similarity, from 0 to 1.
    """
    spoken = word.strip().lower().replace("_", " ")
    titles = (name for name, facet in FACETS.items() if facet.title.lower() == spoken)
    name = next(titles, "")
    return f"did you mean {name!r}? " if name in known else meant(word, known, cutoff)


def nearest_setting(word: str, known: Collection[str]) -> str:
    """Return the end of an error message about an unknown setting: the setting probably meant, or known names."""
    return setting_meant(word, known, 1.0).rstrip() or nearest(word, known)
