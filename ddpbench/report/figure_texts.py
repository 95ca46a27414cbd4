"""The rule for the texts of a figure: a short finding as its title, and at most two lines beneath.

The rest stands on the page under "How to read this".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpbench.analysis.sentences import sentences_of
from ddpbench.report.draw.canvas import note_characters, wrapped
from ddpbench.report.parts import Picture

MOST_WORDS = 14
"""Maximum number of words in a title. Numbers such as `16`, `5.3` or `1,024` are not counted as words."""
MOST_LINES = 2
"""Maximum number of lines of the text beneath a picture."""

_PAGE = 0.9
"""Number of characters in a line of a caption on the page, divided by the number in the picture's file. It is below 1
because the letters in the file are narrower.
"""
_AROUND = "Figure 10. Open SVG"
"""Example of the text that shares a caption's lines on the page: the figure's number and a link."""


def words_in(title: str) -> int:
    """Return the number of words in a title, without numbers and signs."""
    return sum(any(map(str.isalpha, word)) for word in title.split())


def short_enough(title: str) -> bool:
    """Return whether a title has at most MOST_WORDS words."""
    return words_in(title) <= MOST_WORDS


def first_short(*titles: str) -> str:
    """Return the first of the titles that is short enough, or else the last.

    A section passes its titles from the most to the least informative. So if names of cases are long, a less
    informative title is used.
    """
    return next(filter(short_enough, titles), titles[-1])


def fitted(picture: Picture) -> Picture:
    """Return the picture with a title and a caption that follow the rule.

    `reading` gets a title that had to be cut, and the caption's sentences that do not fit beneath.
    """
    heading, whole = cut(picture.heading)
    caption, rest = beneath(picture.caption, picture.width_in)
    return replace(picture, heading=heading, caption=caption, reading=joined([whole, rest, picture.reading]))


def cut(title: str) -> tuple[str, str]:
    """Return a title that is short enough, and the whole title as a sentence if it was cut."""
    if short_enough(title):
        return title, ""
    kept = title.split()
    while words_in(" ".join(kept)) > MOST_WORDS:
        kept.pop()
    return f"{' '.join(kept)} \N{HORIZONTAL ELLIPSIS}", f"{title}."


def beneath(caption: str, width_in: float) -> tuple[str, str]:
    """Split a caption into the sentences that fit beneath a picture of `width_in` inches, and the rest.

    The most important sentences come first.
    """
    width = int(_PAGE * note_characters(width_in))
    sentences = sentences_of(caption)
    shown: list[str] = []
    while sentences and len(wrapped(" ".join([_AROUND, *shown, sentences[0]]), width)) <= MOST_LINES:
        shown.append(sentences.pop(0))
    return " ".join(shown), " ".join(sentences)


def joined(texts: Iterable[str]) -> str:
    """Return the texts that are not empty, with spaces between them."""
    return " ".join(filter(None, texts))
