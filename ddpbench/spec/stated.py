"""Traits of a user's own strategy, stored in a run's plan so that reading the run does not import the user's file."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from ddpbench.spec.catalog import Promise
from ddpbench.text_safety import unprintable

NAME = r"^\w[\w .,:+()/'-]*$"
"""Pattern of a name in figures and sentences, without characters that have a meaning in a page, a table or a shell."""


def _one_line(text: str) -> str:
    if unprintable(text) or "\n" in text:
        raise ValueError("must be one line without control characters")
    return text


_Name = Annotated[str, Field(pattern=NAME, max_length=60)]
Marker = Literal["", "o", "s", "D", "d", "^", "v", "<", ">", "p", "P", "*", "h", "H", "X", "8"]


class StatedTraits(BaseModel, strict=True, frozen=True):
    """The traits of a strategy that are stored in plans; `ddpbench.strategies.traits.Traits` explains them."""

    display: _Name
    spoken: _Name
    promise: Promise
    one_process: bool
    uses_buckets: bool
    whole_state: bool
    shows_transfers_on_gpus: bool
    note: Annotated[str, Field(max_length=1000), AfterValidator(_one_line)]
    colour: Annotated[str, Field(pattern=r"^(#[0-9A-Fa-f]{6})?$")]
    marker: Marker

    def to_text(self) -> str:
        """Return the traits as JSON, for `Case.strategy_traits`."""
        return json.dumps(self.model_dump(), sort_keys=True)
