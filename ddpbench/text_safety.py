"""Make texts that others wrote safe to show, and command lines safe to paste."""

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
"""Control and direction characters, and what Unicode calls noncharacters. XML, and so SVG, forbids some of them."""
_COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BUILD_COMMAND = re.compile(r"##(?=\w*\[)")
"""Start of a command to the service that runs a build, such as `##vso[task.setvariable ...]`.

Azure Pipelines, GitHub Actions and TeamCity carry out such commands from any place in a line of a build's output.
"""
_PER_CENT = re.compile(r"(?<=\d) %")
_SPACES = {ord(one): " " for one in "\t\n\r"}
_LONGEST = 72
"""Most characters of a value that is quoted in a message."""
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
"""Most bits of an integer that is quoted in full; for a larger integer, messages give the number of digits."""


def clean(text: str) -> str:
    """Return a text from a log, a host or an exception, made safe for a page and for a terminal.

    Terminal colours are removed. Control characters, direction characters, and characters that UTF-8 cannot encode or
    XML forbids are replaced. A space is put into what a build service would carry out as a command.
    """
    if text.isascii() and text.isprintable() and "##" not in text:
        return text
    plain = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR_CODE.sub("", text))
    return _BUILD_COMMAND.sub("# #", plain).encode("utf-8", "replace").decode("utf-8")


def on_one_line(text: str) -> str:
    """Return a text with its tabs and line breaks replaced by spaces."""
    return text.translate(_SPACES)


def on_page(text: str) -> str:
    """Return a text made safe for a page, with no line break between a number and its per cent sign."""
    return _PER_CENT.sub("\N{NO-BREAK SPACE}%", clean(text))


def unprintable(text: str) -> str:
    """Return the `repr` of the first character that `clean` would replace; empty if there is none."""
    control = _CONTROL.search(text)
    if control is not None:
        return repr(control[0])
    return next((repr(one) for one in text if "\ud800" <= one <= "\udfff"), "")


def shortened(value: object) -> str:
    """Return a value's `repr`, without its middle if it is long; for a huge integer, only its number of digits."""
    if isinstance(value, int) and value.bit_length() > _BITS_SHOWN:
        return f"a whole number of about {round(value.bit_length() * math.log10(2)):,} digits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or contains an integer of too many digits
        return with_article(type(value).__name__)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 15]}...{text[-12:]}"


def with_article(name: str) -> str:
    """Return a class's name with `a` or `an` in front, depending on the first letter."""
    return f"{'an' if name.lstrip('_')[:1].lower() in set('aeiou') else 'a'} {name}"


def and_words(names: Iterable[str]) -> str:
    """Return names, at least one, as a sentence lists them: `a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def whole_number(digits: str) -> int:
    """Return the integer with these decimal digits; for more than 400, some integer of about that length.

    So long an integer is out of range in every use, and converting it takes time quadratic in the length.
    """
    sign = -1 if digits.startswith("-") else 1
    bare = digits.lstrip("+-").replace("_", "")
    return sign * (int(bare) if len(bare) <= 400 else 1 << int(len(bare) / math.log10(2)) - 1)


def within(text: str, most: int = 3_000) -> str:
    """Return a text, without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: 2 * most // 3]} ... {text[-most // 3 :]}"


def has_long_key(text: str) -> bool:
    """Return whether a TOML text has a key of more than 64 parts, outside comments and strings.

    Parsing takes memory quadratic in their number.
    """
    if not _LONG_KEY.search(text):
        return False
    return any(found.lastgroup == "key" for found in _COMMENT_TEXT_OR_LONG_KEY.finditer(text))


def why_not_read(text: str) -> str:
    """Return a clause that says why an experiment's TOML is too large to parse; empty if it is not."""
    if len(text) > MOST_TOML_BYTES:
        return TOO_LARGE_TOML
    return (
        f"has a key with too many parts; a key must have {_MOST_PARTS} at most" if has_long_key(text) else ""
    )


def toml_text(text: str) -> str:
    """Return a text as a TOML string, without the escaped surrogate pairs of JSON, which are invalid in TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def given_twice(before: object, now: object, hint: str = "give it once") -> str:
    """Return the error message for a key that was given two values."""
    return f"given twice, as {shortened(str(before))} and {shortened(str(now))}; {hint}"


def command(*words: object) -> str:
    """Return a command line, or part of one, to paste into a shell, with words quoted where necessary."""
    return " ".join(map(quoted, words))


def quoted(word: object) -> str:
    r"""Return one word of a command line, quoted for a shell if necessary, on one line.

    Unprintable characters are escaped in the form `$'a\012b'` (bash, zsh, POSIX issue 8). A path that begins with a
    hyphen gets `./` in front.
    """
    text = str(word)
    if isinstance(word, PurePath) and text.startswith("-"):
        text = f"./{text}"
    if text.isprintable():  # the plain space is the only space that is printable
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    try:
        parts = character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, which no file's name has
        parts = character.encode("utf-8", "replace")
    return "".join(f"\\{part:03o}" for part in parts)
