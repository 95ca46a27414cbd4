"""Texts that others wrote, made fit to be shown, and command lines fit to be pasted. Nothing is printed here."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePath

JOINT = " \N{MIDDLE DOT} "
"""Separator of the words in a case's full name."""
_NO_CHARACTERS = "".join(f"\\U{plane:04x}fffe\\U{plane:04x}ffff" for plane in range(17))
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef"
    + _NO_CHARACTERS
    + "]"
)
"""Control and direction characters, and what Unicode calls noncharacters; XML, and so SVG, takes neither."""
_COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PER_CENT = re.compile(r"(?<=\d) %")
_SPACES = {ord(one): " " for one in "\t\n\r"}
_LONGEST = 72
"""Most characters of a value in a message."""
_KEY_PART = r"""(?:[\w-]++|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'[^'\n]*+')"""
_MOST_PARTS = 64
_LONG_KEY = re.compile(rf"(?<![\w\\-]){_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{_MOST_PARTS}}}")
_COMMENT_TEXT_OR_LONG_KEY = re.compile(
    r"""#[^\n]*+|\"{3}(?:[^"\\]|\\.|"(?!""))*+(?:\"{3,5})?|'{3}(?:[^']|'(?!''))*+(?:'{3,5})?"""
    rf"""|(?P<key>{_LONG_KEY.pattern})|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?|'[^'\n]*+'?""",
    re.DOTALL,
)
MOST_TOML_BYTES = 1 << 20
"""Largest size of an experiment's file, bytes."""
TOO_LARGE_TOML = f"is too large; it must be {MOST_TOML_BYTES >> 20} MiB at most"
_BITS_SHOWN = 192
"""Bits from which a whole number is shown by its digits."""


def clean(text: str) -> str:
    """Return a text from a log, a host or an exception, fit for a page and for a terminal.

    It has no terminal colours, control or direction characters, nothing that UTF-8 cannot write, and nothing that XML
    forbids.
    """
    if text.isascii() and text.isprintable():
        return text
    plain = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR_CODE.sub("", text))
    return plain.encode("utf-8", "replace").decode("utf-8")


def on_one_line(text: str) -> str:
    """Return a text that others wrote for a place within a line: its line breaks start no line of ours."""
    return text.translate(_SPACES)


def on_page(text: str) -> str:
    """Return a text fit for a page, in which no line ends between a number and its per cent sign."""
    return _PER_CENT.sub("\N{NO-BREAK SPACE}%", clean(text))


def unprintable(text: str) -> str:
    """Return the first character that `clean` would not leave as it is, in Python's form; empty if there is none."""
    control = _CONTROL.search(text)
    if control is not None:
        return repr(control[0])
    return next((repr(one) for one in text if "\ud800" <= one <= "\udfff"), "")


def shortened(value: object) -> str:
    """Return a value in Python's form, without its middle if it is long; a huge whole number by its digits."""
    if isinstance(value, int) and value.bit_length() > _BITS_SHOWN:
        return f"a whole number of about {round(value.bit_length() * math.log10(2)):,} digits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or with a whole number of too many digits in it
        return with_article(type(value).__name__)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 15]}...{text[-12:]}"


def with_article(name: str) -> str:
    """Return a class's name after `a` or `an`, by its first letter."""
    return f"{'an' if name.lstrip('_')[:1].lower() in set('aeiou') else 'a'} {name}"


def and_words(names: Iterable[str]) -> str:
    """Return names in the form of a sentence: `a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def whole_number(digits: str) -> int:
    """Return the whole number of these decimal digits; for more than 400, another number of about as many.

    A longer one is wrong in every place, and converting it takes a time that grows with its square.
    """
    sign = -1 if digits.startswith("-") else 1
    bare = digits.lstrip("+-").replace("_", "")
    return sign * (int(bare) if len(bare) <= 400 else 1 << int(len(bare) / math.log10(2)) - 1)


def within(text: str, most: int = 3_000) -> str:
    """Return a text, without its middle if it has more characters: nobody reads them."""
    if len(text) <= most:
        return text
    return f"{text[: 2 * most // 3]} ... {text[-most // 3 :]}"


def has_long_key(text: str) -> bool:
    """Return whether a text of TOML has a key of more than 64 parts: reading it takes memory that grows with their
    square. Comments and texts are passed over."""
    if not _LONG_KEY.search(text):
        return False
    return any(found.lastgroup == "key" for found in _COMMENT_TEXT_OR_LONG_KEY.finditer(text))


def why_not_read(text: str) -> str:
    """Return why an experiment's TOML is not read at all: a clause without its subject; empty if it is read."""
    if len(text) > MOST_TOML_BYTES:
        return TOO_LARGE_TOML
    return (
        f"has a key of too many parts: at most {_MOST_PARTS} may stand in one" if has_long_key(text) else ""
    )


def toml_text(text: str) -> str:
    """Return a text in TOML's form: JSON's escape of a character above U+FFFF is invalid there."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def given_twice(before: object, now: object, hint: str = "give it once") -> str:
    """Return the refusal of a key with two values: it is unknown which of the two was meant."""
    return f"given twice, as {shortened(str(before))} and {shortened(str(now))}; {hint}"


def command(*words: object) -> str:
    """Return a command line to paste into a shell, or its flags, with words quoted if they must be."""
    return " ".join(map(quoted, words))


def quoted(word: object) -> str:
    r"""Return one word of a command line as a shell reads it back, on one line and as `clean` leaves it.

    What a page or a terminal would not show as it is, such as a line break, is escaped: `$'a\012b'` is read by bash,
    zsh and every shell of POSIX's issue 8. A path that begins as a flag does gets `./` in front.
    """
    text = str(word)
    if isinstance(word, PurePath) and text.startswith("-"):
        text = f"./{text}"
    if text.isprintable():  # no space other than the plain one is
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    try:
        parts = character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, which no name has
        parts = character.encode("utf-8", "replace")
    return "".join(f"\\{part:03o}" for part in parts)
