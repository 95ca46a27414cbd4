"""The data types of a model and its batches: their names, and casts between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ddpbench.spec.case import OWN_TYPES
from ddpbench.strategies.trees import cast_type, tensors
from ddpbench.units import series_of


def type_of(case_dtype: str) -> torch.dtype | None:
    """Return the data type of a case's `dtype`, or None if model and batches keep their own."""
    if case_dtype == OWN_TYPES:
        return None
    dtype: torch.dtype = getattr(torch, case_dtype)
    return dtype


def name_of(dtype: torch.dtype) -> str:
    """Return a data type's name without `torch.`, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def types_in(values: Iterable[torch.Tensor]) -> tuple[torch.dtype, ...]:
    """Return the distinct floating-point and complex data types of these tensors, sorted by name."""
    found = {each.dtype for each in values if each.is_floating_point() or each.is_complex()}
    return tuple(sorted(found, key=name_of))


def names_of(types: Iterable[torch.dtype]) -> tuple[str, ...]:
    """Return the names of these data types without `torch.`."""
    return tuple(map(name_of, types))


def cast_model(model: torch.nn.Module, dtype: torch.dtype | None) -> torch.nn.Module:
    """Return the model with parameters and buffers cast by `cast_type`, or unchanged if `dtype` is None."""
    if dtype is None:
        return model
    if not any(each.is_complex() for each in (*model.parameters(), *model.buffers())):
        return model.to(dtype)
    return model._apply(lambda each: each.to(cast_type(each.dtype, dtype)))  # type: ignore[no-untyped-call, no-any-return]


def cast_words(types: Iterable[torch.dtype], dtype: torch.dtype | None) -> str:
    """Describe the casts of `types` to `dtype` in words, such as `bfloat16 to float32`. Empty if nothing changes."""
    changed = {each: cast_type(each, dtype) for each in types}
    return series_of([f"{name_of(old)} to {name_of(new)}" for old, new in changed.items() if old != new])


def mixed_words(model: torch.nn.Module, batch: Any) -> str:
    """Return a hint for an error message if some real data types of the batch are not the model's; otherwise `""`."""
    own = types_in(each for each in model.parameters() if not each.is_complex())
    given = types_in(each for each in tensors(batch) if not each.is_complex())
    if not own or not given or set(given) <= set(own):
        return ""
    return (
        f"; the model's parameters are {series_of(names_of(own))} and its batch holds {series_of(names_of(given))}: "
        'convert one to the other, or set dtype = "float32", which casts both'
    )


def narrowest(types: Iterable[torch.dtype]) -> torch.dtype:
    """Return the real data type with the largest roundoff among `types`, or float32 if there are none.

    A complex type counts as the real type of its parts.
    """
    return max(
        (each.to_real() for each in types), key=lambda one: torch.finfo(one).eps, default=torch.float32
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberTypes:
    """The data types that model and batch have in one comparison of a proof."""

    cast: torch.dtype | None
    """Data type that model and batch are cast to, or None if they keep their own types."""
    given: tuple[torch.dtype, ...]
    """Data types of the model's parameters before the cast."""

    @property
    def types(self) -> tuple[torch.dtype, ...]:
        """Data types of the model's parameters after the cast."""
        return tuple(dict.fromkeys(cast_type(each, self.cast) for each in self.given))

    @property
    def narrowest(self) -> torch.dtype:
        """The data type with the largest roundoff after the cast. It decides which error a proof allows."""
        return self.cast or narrowest(self.given)

    @property
    def is_double(self) -> bool:
        """True if everything is computed in double precision."""
        return self.narrowest == torch.float64

    @property
    def name(self) -> str:
        """The types in words: `float32`, `bfloat16 and float32`, or `float64 (cast from bfloat16 and float32)`.

        Casts of a float32 model are not mentioned.
        """
        name = series_of(names_of(self.types)) or name_of(self.narrowest)
        if self.given in ((), (torch.float32,)) or not cast_words(self.given, self.cast):
            return name
        return f"{name} (cast from {series_of(names_of(self.given))})"


def compared_numbers(dtype: torch.dtype | None, given: tuple[torch.dtype, ...]) -> list[NumberTypes]:
    """Return a proof's data types: float64, which proves the algorithm, and the types used in training.

    `dtype` is the type that the case casts to (then float32 is added), or None if the model keeps its types `given`.
    """
    double = NumberTypes(cast=torch.float64, given=given)
    if dtype is not None:
        others = dict.fromkeys([torch.float32, dtype])
        return [double, *(NumberTypes(cast=each, given=given) for each in others if each != torch.float64)]
    own = NumberTypes(cast=None, given=given)
    return [own] if own.is_double else [double, own]
