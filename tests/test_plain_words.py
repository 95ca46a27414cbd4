"""Hold the project's English to phrases that are read once: at most one hit per 1,000 lines in each area."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_PER_1000 = 1.0
AREAS = {"package": ("ddpbench",), "docs": ("README.md", "docs"), "tests": ("tests",)}
KINDS = {".py", ".md", ".html", ".toml", ".js"}
PHRASES = (
    r"\banew\b",
    r"\b(?:is|are) told\b|\btold (?:of|by|to|in|at|with)\b|\btells? (?:of|apart)\b",
    r"\btold\b(?=\s*[:=(,)])",
    r"\b(?:who|what|wher)ever\b",
    r"\bbeside\b",
    r"\b(?:is|are) no (?!longer|more than|way|need|reason)\w+",
    r"\bof (?:its|their|one's|your) own\b",
    r"\bso many\b",
    r"\bfor want of\b|\bnot to be had\b",
    r"\bheld against\b",
    r"\bhas none\b|\bof which none\b",
    r"\bgo(?:es)? on\b",
    r"\bwhat (?:became|becomes|came) of\b|\bcomes? to\b",
    r"\b(?:one|a) (?:column|file|row|point|line|process|thread|launch) an? \w+",
    r"\b(?:ranks|samples|bytes|steps|launches|rounds) an? (?:node|rank|step|launch|second|round)\b",
    r"^\s*(?:\"\"\"|#\s*)(?:Of|What|Whether|Who|Where|Which|As|Those|One|The same|How)\b",
    r"\blies?\b (?=wholly|within|beyond|outside|below|above)",
    r"\bbears?\b(?! arms)",
    r"\btakes? down\b|\bgives? up on\b|\blets? go of\b",
    r"\bwhole\b(?= (?:suite|run|launches|page))",
    r"\bmend(?:ed|s)?\b",
    r"\bthe (?:former|latter)\b|\brespectively\b",
)
"""Phrases that readers had to read twice."""
_PHRASE = re.compile("|".join(f"(?:{each})" for each in PHRASES))


def hits(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line with a phrase of `PHRASES`, and every such phrase on it."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in _PHRASE.finditer(line):
            yield number, found.group().strip()


def files_of(area: str) -> list[Path]:
    """List an area's text files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *AREAS[area]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [
        ROOT / name for name in listed.splitlines() if Path(name).suffix in KINDS and (ROOT / name).exists()
    ]


@pytest.mark.parametrize("area", AREAS)
def test_phrases_that_are_read_twice_are_rare(area: str) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in files_of(area)}
    lines = sum(len(text.splitlines()) for text in texts.values())
    found = [
        f"{path.relative_to(ROOT)}:{n}: {phrase}" for path, text in texts.items() for n, phrase in hits(text)
    ]
    assert lines > 1000
    assert len(found) <= MOST_PER_1000 * lines / 1000, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ('"""Of launches."""', ['"""Of']),
        ('    """Return the variance across launches."""', []),
        ("    # What a pause costs", ["# What"]),
        ("def run(told: Callable) -> None:", ["told"]),
        ("it is no number, and is told of so", ["is no number", "is told"]),
        ("there is no longer a file, and no reason for one", []),
        ("two ranks a node", ["ranks a node"]),
        ("two ranks per node", []),
    ],
)
def test_a_planted_phrase_is_found(text: str, phrases: list[str]) -> None:
    assert [phrase for _, phrase in hits(text)] == phrases
