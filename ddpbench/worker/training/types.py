"""The number types of a model and its batches: their names, and the casts between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ddpbench.spec.case import OWN_TYPES
from ddpbench.strategies.trees import cast_type, tensors
from ddpbench.units import series_of


def type_of(case_dtype: str) -> torch.dtype | None:
    """Return the type that a case's `dtype` casts model and batches to; None if they keep their own types."""
    if case_dtype == OWN_TYPES:
        return None
    dtype: torch.dtype = getattr(torch, case_dtype)
    return dtype


def name_of(dtype: torch.dtype) -> str:
    """Return a type's name, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def types_in(values: Iterable[torch.Tensor]) -> tuple[torch.dtype, ...]:
    """Return the floating-point and complex types among tensors, each once, sorted by name."""
    found = {each.dtype for each in values if each.is_floating_point() or each.is_complex()}
    return tuple(sorted(found, key=name_of))


def names_of(types: Iterable[torch.dtype]) -> tuple[str, ...]:
    """Return these types' names."""
    return tuple(map(name_of, types))


def cast_model(model: torch.nn.Module, dtype: torch.dtype | None) -> torch.nn.Module:
    """Return the model with parameters and buffers cast by `cast_type`; unchanged if `dtype` is None."""
    if dtype is None:
        return model
    if not any(each.is_complex() for each in (*model.parameters(), *model.buffers())):
        return model.to(dtype)
    return model._apply(lambda each: each.to(cast_type(each.dtype, dtype)))  # type: ignore[no-untyped-call, no-any-return]


def cast_words(types: Iterable[torch.dtype], dtype: torch.dtype | None) -> str:
    """Return words for what a cast changes, such as `bfloat16 to float32`; empty if it changes nothing."""
    changed = {each: cast_type(each, dtype) for each in types}
    return series_of([f"{name_of(old)} to {name_of(new)}" for old, new in changed.items() if old != new])


def mixed_words(model: torch.nn.Module, batch: Any) -> str:
    """Return a hint for a failed step if model and batch have different types of real numbers; else empty."""
    own = types_in(each for each in model.parameters() if not each.is_complex())
    given = types_in(each for each in tensors(batch) if not each.is_complex())
    if not own or not given or set(given) <= set(own):
        return ""
    return (
        f"; the model's parameters are {series_of(names_of(own))} and its batch holds {series_of(names_of(given))}: "
        'convert one to the other, or set dtype = "float32", which casts both'
    )


def narrowest(types: Iterable[torch.dtype]) -> torch.dtype:
    """Return the coarsest real type among these; a complex type counts as its parts, and no types at all as float32."""
    return max(
        (each.to_real() for each in types), key=lambda one: torch.finfo(one).eps, default=torch.float32
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberTypes:
    """The types that model and batch have in a proof's comparison."""

    cast: torch.dtype | None
    """Type that both are cast to; None if they keep their own types."""
    given: tuple[torch.dtype, ...]
    """Types of the model's parameters before the cast."""

    @property
    def types(self) -> tuple[torch.dtype, ...]:
        """Return the types of the model's parameters as they are compared."""
        return tuple(dict.fromkeys(cast_type(each, self.cast) for each in self.given))

    @property
    def narrowest(self) -> torch.dtype:
        """Return the compared type with the fewest digits, which decides the allowed error."""
        return self.cast or narrowest(self.given)

    @property
    def is_double(self) -> bool:
        """Return whether everything is computed in double precision."""
        return self.narrowest == torch.float64

    @property
    def name(self) -> str:
        """Return words for the types: `float32`, `bfloat16 and float32`, `float64 (cast from bfloat16 and float32)`.

        Casts of a float32 model to float64 and float32 are not mentioned.
        """
        name = series_of(names_of(self.types)) or name_of(self.narrowest)
        if self.given in ((), (torch.float32,)) or not cast_words(self.given, self.cast):
            return name
        return f"{name} (cast from {series_of(names_of(self.given))})"


def compared_numbers(dtype: torch.dtype | None, given: tuple[torch.dtype, ...]) -> list[NumberTypes]:
    """Return the types to prove in: float64, which proves the algorithm, and the type used in training.

    `dtype` is the type that the case casts to, or None if the model keeps the types `given`. A case that casts is also
    proved in float32.
    """
    double = NumberTypes(cast=torch.float64, given=given)
    if dtype is not None:
        others = dict.fromkeys([torch.float32, dtype])
        return [double, *(NumberTypes(cast=each, given=given) for each in others if each != torch.float64)]
    own = NumberTypes(cast=None, given=given)
    return [own] if own.is_double else [double, own]
