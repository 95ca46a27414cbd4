"""Sentences that know which of their words are conditions, so that a page need not tell those twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def capital(text: str) -> str:
    """Return a text with a capital."""
    return text[:1].upper() + text[1:]


class Sentence(str):
    """A start, conditions such as the workload, and an end, as in `DDP at 2 ranks, gpt:nano: speed-up 1.6`.

    As a string it has all conditions. `but` leaves out those that something beside it tells.
    """

    __slots__ = ("_parts",)
    _parts: tuple[str, tuple[str, ...], str, str, str]

    def __new__(
        cls, start: str, conditions: Iterable[str] = (), end: str = "", after: str = "", joint: str = ", "
    ) -> Sentence:
        """Put it together.

        Args:
            start: what is told in any case; may be empty.
            conditions: each a few words; commas divide them.
            end: follows start and conditions, without its full stop. Where nothing is left of them it is left out.
            after: further sentences.
            joint: between the start and the conditions.
        """
        parts = (start, tuple(conditions), end, after, joint)
        sentence = super().__new__(cls, _joined(*parts))
        sentence._parts = parts
        return sentence

    def __reduce__(self) -> tuple[type[Sentence], tuple[str, tuple[str, ...], str, str, str]]:
        """Return what a copy is made of."""
        return Sentence, self._parts

    @property
    def conditions(self) -> tuple[str, ...]:
        """All its conditions."""
        return self._parts[1]

    def but(self, told: Collection[str]) -> Sentence:
        """Return it without the conditions that are told beside it."""
        start, conditions, *rest = self._parts
        return Sentence(start, [word for word in conditions if word not in told], *rest)

    def qualified(self, tags: Collection[str]) -> Sentence:
        """Return it with these in brackets before its full stop."""
        start, conditions, end, *rest = self._parts
        return Sentence(start, conditions, f"{end} ({'; '.join(tags)})" if tags else end, *rest)


def _joined(start: str, conditions: Iterable[str], end: str, after: str, joint: str) -> str:
    head = joint.join(part for part in (start, ", ".join(conditions)) if part)
    return " ".join(part for part in (f"{head}{end}." if head else "", after) if part)


def but(text: str, told: Collection[str]) -> str:
    """Return a text without the conditions that are told beside it, if it knows any."""
    return text.but(told) if isinstance(text, Sentence) else text
