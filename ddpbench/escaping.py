"""Escape texts by other authors for the format of the output file, with one function per format.

Each also replaces control characters. The report's templates (`report/templates.py`) escape HTML.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator

from ddpbench.text_safety import clean

# Markdown

_BLOCK_START = re.compile(r"(\d{1,9})[.)](?=\s|$)|[#=]|:(?=:)|[+-](?!\d)")
"""Start of a heading or list, or, where Markdown is printed, of a command to GitHub Actions (`::NAME::`)."""
_MENTION = re.compile(r"@(?=\w)|(?:#|\bGH-|/issues/|/pull/)(?=\d)", re.IGNORECASE)
_NO_MENTION = r"\g<0>&#8203;"
"""Replacement that puts a zero-width space after the match. Without the space, GitHub would notify a user, or would
link or close an issue. The space is written as a numeric entity, so that it is visible in the file.
"""
_MARKDOWN = {one: f"\\{one}" for one in "\\`*~$|"} | {"<": "&lt;", ">": "&gt;"}


def escape_markdown(text: str, *, cell: bool = False, brackets: bool = False) -> str:
    """Return Markdown (CommonMark and GitHub's) that shows this sentence literally, without tags, links or emphasis.

    The result does not start a heading or a list either. Code between backquotes stays code. Pass `cell` if the text is
    for a table's cell: vertical bars in code are then escaped too. Pass `brackets` if the text describes an image: all
    square brackets are then escaped.
    """
    plain = clean(text).replace("\t", " ").replace("\n", " ").strip()
    parts: list[str] = []
    end = 0
    for start, after in _code_spans(plain):
        parts.append(_markdown_words(plain[end:start], brackets))
        code = plain[start:after]
        parts.append(code.replace("|", "\\|") if cell else code)
        end = after
    parts.append(_markdown_words(plain[end:], brackets))
    whole = "".join(parts)
    block = _BLOCK_START.match(whole)
    if block is None or cell:
        return whole
    return f"{block[1]}\\{whole[block.end() - 1 :]}" if block[1] else f"\\{whole}"


def _code_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each code span, between two equal runs of backquotes.

    Each run is examined at most twice, so that a stranger's long text is parsed quickly.
    """
    runs = [found.span() for found in re.finditer("`++", text)]
    left: dict[int, deque[int]] = {}
    for number, (start, end) in enumerate(runs):
        left.setdefault(end - start, deque()).append(number)
    number = 0
    while number < len(runs):
        start, end = runs[number]
        alike = left[end - start]
        while alike and alike[0] <= number:
            alike.popleft()
        if alike:
            number = alike.popleft()
            yield start, runs[number][1]
        number += 1


def _markdown_words(text: str, brackets: bool) -> str:
    shown = re.sub(r"&(?=#?\w+;)", "&amp;", text)
    shown = "".join(_MARKDOWN.get(one, one) for one in shown)
    shown = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", shown)  # within a word it has no effect
    shown = re.sub(r"[\[\]]", r"\\\g<0>", shown) if brackets else re.sub(r"\](?=[(\[:])", r"\\]", shown)
    return _MENTION.sub(_NO_MENTION, shown)


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table, with its cells escaped."""
    return f"| {' | '.join(escape_markdown(text, cell=True) for text in cells)} |"


def escape_markdown_code(text: str) -> str:
    """Return Markdown that shows a text as code, including any backquotes in it."""
    plain = clean(text).replace("\n", " ")
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{space}{plain}{space}{fence}"


# CSV

_FORMULA = "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
"""Characters that make a spreadsheet read a cell as a formula if the cell begins with one."""
_TEXT_MARK = "'"
_NEXT_CELL = re.compile(r"""([;|\t\n][\s"]*+)('*+)""")
"""The start of a cell within the text, for spreadsheets that separate cells by semicolons, bars or tabs."""


def escape_csv(text: str) -> str:
    """Return a text for a CSV cell that no spreadsheet takes for a formula; `unescape_csv` reverses this.

    An apostrophe is put in front of a leading `=`, `+`, `-` or `@`, also after white space or quotes, and of a leading
    tab, line break or apostrophe. Some spreadsheets start a cell at any `;`, `|`, tab or line break, so formulas there
    get one too. Numbers need no escaping.
    """
    plain = _NEXT_CELL.sub(_marked, clean(text))
    marked = plain.startswith((_TEXT_MARK, "\t", "\n")) or plain.lstrip('" \t\n').startswith(tuple(_FORMULA))
    return f"{_TEXT_MARK}{plain}" if marked else plain


def unescape_csv(text: str) -> str:
    """Return the text that was given to `escape_csv`, except that control characters stay replaced."""
    return _NEXT_CELL.sub(_unmarked, text.removeprefix(_TEXT_MARK))


def _marked(cell: re.Match[str]) -> str:
    return f"{cell[1]}{_TEXT_MARK}{cell[2]}" if _is_formula(cell) else cell[0]


def _unmarked(cell: re.Match[str]) -> str:
    return f"{cell[1]}{cell[2].removeprefix(_TEXT_MARK)}" if _is_formula(cell) else cell[0]


def _is_formula(cell: re.Match[str]) -> bool:
    return cell.string.startswith(tuple(_FORMULA), cell.end())


# OpenMetrics


def escape_openmetrics(text: str) -> str:
    """Return a text escaped for the value of an OpenMetrics label, without the double quotes around it."""
    return clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# LaTeX

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # \textquotedbl is not in every font encoding
    "`": "'",
    "[": r"{[}",
    "]": r"{]}",
    "\N{MINUS SIGN}": "$-$",
    "\N{MICRO SIGN}": r"$\mu$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{DEGREE SIGN}": r"$^\circ$",
    "\N{REGISTERED SIGN}": r"\textregistered{}",
    "\N{TRADE MARK SIGN}": r"\texttrademark{}",
    "\N{NO-BREAK SPACE}": "~",
}
"""LaTeX for the characters that it interprets, and for some signs. Brackets are included because, after a line break,
LaTeX would take a bracket for the start of an optional argument.
"""
_ACCENTS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"


def escape_latex(text: str) -> str:
    """Return LaTeX that shows a text in any engine and font. Characters that are not Latin become question marks."""
    plain = clean(text).replace("\n", " ")
    whole = "".join(_LATEX.get(one) or _latin(one) for one in plain)
    return re.sub(r"-(?=-)", "-{}", whole)  # two hyphens would become a dash


def _latin(character: str) -> str:
    if " " <= character <= "~":
        return character
    parts = unicodedata.normalize("NFD", character)
    accented = len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS
    return character if accented else "?"
