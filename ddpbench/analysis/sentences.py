"""Sentences that keep their conditions separate from their other text, so that a report states each condition once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace


def capital(text: str) -> str:
    """Return a text with its first letter capitalized."""
    return text[:1].upper() + text[1:]


def headline(text: str) -> str:
    """Capitalize the first letter, unless the text begins with a name such as `gpt:nano`."""
    return capital(text) if re.match(r"[^\W\d_]+[:,]*( |$)", text) else text


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, in order. A full stop ends a sentence unless a small letter follows."""
    return re.split(r"(?<=[.!?]) (?![a-z])", text) if text else []


@dataclass(frozen=True, slots=True)
class _Parts:
    start: str
    conditions: tuple[str, ...]
    end: str
    after: str
    joint: str
    raised: bool

    @property
    def clause(self) -> str:
        head = self.joint.join(part for part in (self.start, ", ".join(self.conditions)) if part)
        return f"{head}{self.end}" if head else ""

    def __str__(self) -> str:
        clause = capital(self.clause) if self.raised else self.clause
        return " ".join(part for part in (clause and f"{clause}.", self.after) if part)


class Sentence(str):
    """A sentence with a start, conditions such as the workload, and an end: `DDP at 2 ranks, gpt:nano: speed-up 1.6`.

    The string itself contains all conditions. The method `but` leaves out conditions that the report already shows
    nearby.
    """

    __slots__ = ("_parts",)
    _parts: _Parts

    def __new__(
        cls,
        start: str,
        conditions: Iterable[str] = (),
        end: str = "",
        after: str = "",
        joint: str = ", ",
        raised: bool = False,
    ) -> Sentence:
        """Assemble the sentence.

        Args:
            start: the part that is always kept; may be empty.
            conditions: a few words each; joined with commas.
            end: the part after start and conditions, without its full stop; left out if start and conditions are empty.
            after: further sentences.
            joint: text between the start and the conditions.
            raised: whether the sentence begins with a capital.
        """
        return cls._of(_Parts(start, tuple(conditions), end, after, joint, raised))

    @classmethod
    def _of(cls, parts: _Parts) -> Sentence:
        sentence = super().__new__(cls, str(parts))
        sentence._parts = parts
        return sentence

    def __reduce__(self) -> tuple[Callable[[_Parts], Sentence], tuple[_Parts]]:
        """Return what pickle and copy need to make an equal sentence."""
        return Sentence._of, (self._parts,)

    @property
    def clause(self) -> str:
        """Return the sentence as a clause, without capital, full stop and further sentences."""
        return self._parts.clause

    @property
    def conditions(self) -> tuple[str, ...]:
        """Return all conditions of the sentence."""
        return self._parts.conditions

    def but(self, shown: Collection[str]) -> Sentence:
        """Return the sentence without the conditions in `shown`, which the report shows nearby."""
        kept = tuple(word for word in self.conditions if word not in shown)
        return self._of(replace(self._parts, conditions=kept))

    def qualified(self, tags: Collection[str]) -> Sentence:
        """Return the sentence with these tags in brackets before its full stop."""
        end = f"{self._parts.end} ({'; '.join(tags)})" if tags else self._parts.end
        return self._of(replace(self._parts, end=end))


def sentence(start: str, conditions: Iterable[str] = (), end: str = "") -> Sentence:
    """Return a sentence that begins with a capital."""
    return Sentence(start, conditions, end, raised=True)


def but(text: str, shown: Collection[str]) -> str:
    """Return a text without the conditions in `shown`, which the report shows nearby. A plain string is unchanged."""
    return text.but(shown) if isinstance(text, Sentence) else text
