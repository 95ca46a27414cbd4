"""One word for one thing: no text, column or name of ddpbench has a synonym of a word of the glossary."""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_BREAKS = frozenset(
    getattr(tokenize, name, tokenize.NL)
    for name in ("NL", "NEWLINE", "INDENT", "DEDENT", "FSTRING_START", "FSTRING_END")
)
_TEXTS = frozenset({tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)})
"""Types of tokens; those of f-strings are new in Python 3.12."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """A word of the glossary, and what must not stand for it."""

    word: str
    rejected: Sequence[str]
    only: Sequence[str] = ()
    """Beginnings of the paths to search; all, if empty."""
    allowed: Mapping[str, str] = field(default_factory=dict)
    """Reasons by the beginning of a path that may say it."""

    def searches(self, path: str) -> bool:
        """Return whether a path is searched."""
        return path.startswith(tuple(self.only) or "") and not path.startswith(tuple(self.allowed) or ("\0",))

    def found_in(self, text: str) -> list[str]:
        """Return the rejected words in a text."""
        return [found.group() for each in self.rejected for found in re.finditer(each, text, re.IGNORECASE)]


def read_words() -> list[Words]:
    """Return the table in `synonyms.toml`."""
    table = tomllib.loads((ROOT / "tests/synonyms.toml").read_text(encoding="utf-8"))["words"]
    return [Words(allowed=row.pop("except", {}), **row) for row in table]


WORDS = read_words()


def spoken(name: str) -> str:
    """Return a name's words: `SavePoint` and `save_point` are "save point"."""
    return " ".join(_WORD.findall(name)).lower()


def texts_of(source: str) -> Iterator[str]:
    """Yield a module's texts and, as words, its names. Neighbouring comments and parts of a string are one text."""
    parts: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXTS:
            text = re.sub(r'^[rRbBuUfF]*("""|\'\'\'|"|\')|("""|\'\'\'|"|\')$', "", token.string)
            parts.append(text.lstrip("#"))
        elif token.type not in _BREAKS:
            if parts:
                yield " ".join(" ".join(parts).split())
            parts = []
            if token.type == tokenize.NAME:
                yield spoken(token.string)
    if parts:
        yield " ".join(" ".join(parts).split())


@cache
def texts() -> Mapping[str, frozenset[str]]:
    """Return all texts to search, by path."""
    found: dict[str, frozenset[str]] = {}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "ddpbench").rglob("*.html")]
    for path in pages:
        text = " ".join(path.read_text(encoding="utf-8").split())
        found[str(path.relative_to(ROOT))] = frozenset({text})
    for path in (ROOT / "ddpbench").rglob("*.py"):
        found[str(path.relative_to(ROOT))] = frozenset(texts_of(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.word)
def test_a_word_of_the_glossary_has_no_synonym(words: Words) -> None:
    hits = {
        f"{path}: {hit!r}"
        for path, each in texts().items()
        if words.searches(path)
        for text in each
        for hit in words.found_in(text)
    }
    assert not hits, f"say {words.word!r}:\n" + "\n".join(sorted(hits))


def test_each_preferred_word_is_in_the_glossary() -> None:
    rows = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
    terms = {
        term for row in rows if row.startswith("| ") for term in row.split(" | ")[0].strip("| ").split(", ")
    }
    assert {words.word for words in WORDS} <= terms


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.word)
def test_each_path_exists_and_each_exception_is_needed(words: Words) -> None:
    for prefix in (*words.only, *words.allowed):
        assert any(path.startswith(prefix) for path in texts()), prefix
    for prefix, reason in words.allowed.items():
        assert reason
        within = (text for path, each in texts().items() if path.startswith(prefix) for text in each)
        assert any(words.found_in(text) for text in within), prefix


@pytest.mark.parametrize(
    ("source", "word", "hit"),
    [
        (
            '"""Return the unhidden communication of a step."""',
            "exposed communication",
            "unhidden communication",
        ),
        ('print("share of visible "\n      f"transfers: {x}")', "exposed communication", "visible transfers"),
        ("def hidden_comm_s() -> float: ...", "overlapped communication", "hidden comm"),
        ("class SavePoint: ...", "snapshot", "Save point"),
        ("# The median\n# run of all.", "launch", "median run"),
        ("median_launch = launch", "launch", None),
        ('help="measure both sides in turn"', "interleaved", "sides in turn"),
        ('"ranks take the cores in turn"', "interleaved", None),
    ],
)
def test_a_planted_synonym_is_found(source: str, word: str, hit: str | None) -> None:
    rows = [words for words in WORDS if words.word == word and not words.only]
    found = [each for text in texts_of(source) for words in rows for each in words.found_in(text)]
    assert [each.lower() for each in found] == ([hit.lower()] if hit else [])
