"""Describe the settings in which two experiments differ."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ddpbench.spec import documents
from ddpbench.spec.selections import dotted
from ddpbench.spec.settings import Budget
from ddpbench.text_safety import shortened
from ddpbench.units import counted

_MOST_SETTINGS = 3
"""Most settings to name; further ones are only counted."""


SEED = "budget.seed"
"""The setting for the order of launches, which each run draws at random unless it is given."""


def settings_apart(
    before: str, now: str, *, words: tuple[str, str] = ("before", "now"), ignored: Container[str] = ()
) -> str:
    """Describe the settings in which the texts of two experiments differ: `budget.total: 60.0 before, 90.0 now`.

    Of many, only the first are named. Empty without a difference outside `ignored`, or if a text cannot be read.
    """
    return in_words(differing_settings(before, now, ignored=ignored), words)


def differing_settings(before: str, now: str, *, ignored: Container[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the texts of two experiments differ, each with both values, None if it is not set.

    Empty without a difference outside `ignored`, or if a text cannot be read. A setting of the budget that an older
    version did not have does not differ from its default.
    """
    if not before or not now:
        return {}
    try:
        old, new = (dotted(documents.parse(text)) for text in (before, now))
    except ValueError:
        return {}
    names = [
        name
        for name in dict.fromkeys([*old, *new])
        if old.get(name, _default(name)) != new.get(name, _default(name)) and name not in ignored
    ]
    names.sort(key=lambda name: name == "name")  # last, because the name follows from the file's name
    return {name: (old.get(name), new.get(name)) for name in names}


def _default(name: str) -> Any:
    """Return the default of a setting of the budget, such as `budget.turns`; None for others, which may be axes."""
    section, _, key = name.partition(".")
    field = Budget.model_fields.get(key) if section == "budget" else None
    return None if field is None else field.get_default(call_default_factory=False)


def in_words(settings: Mapping[str, tuple[Any, Any]], words: tuple[str, str]) -> str:
    """Describe settings with both their values: `base.strategy: ddp in base, master in new`, or `unset` for None.

    `words` follow the first and the second value. Of many settings, only the first are named.
    """
    sentences = [
        f"{name}: {_value(old)} {words[0]}, {_value(new)} {words[1]}"
        for name, (old, new) in list(settings.items())[:_MOST_SETTINGS]
    ]
    more = len(settings) - len(sentences)
    return "; ".join([*sentences, *([f"and {counted(more, 'more setting')}"] if more > 0 else [])])


def _value(value: Any) -> str:
    return "unset" if value is None else shortened(value)
