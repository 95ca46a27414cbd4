"""The rules that decide which figures and tables a page shows at once, and which it folds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.sentences import headline, sentences_of
from ddpbench.report.figure_texts import words_in
from ddpbench.report.parts import Section, Table

DETAILS = frozenset({"communication", "laws", "network", "strategies"})
"""Anchors of sections whose figures are folded unless the answer refers to them.

These sections explain other sections, or repeat numbers of the summary table.
"""
FEW_ROWS = 2
FEW_CELLS = 16
"""A figure with at most FEW_ROWS rows and FEW_CELLS cells of data says no more than its title and the summary table."""
MOST_FINDINGS = 4
"""Number of findings that a page shows at once. It shows more if needed to include all findings on claims."""
MOST_LIMITS = 3
"""Maximum number of texts on validity that are not folded."""
LONGEST_LIMIT = 20
"""Maximum number of words in the part of a text on validity that is not folded, if the text can be divided."""
SHORTEST_LIMIT = 4
"""Minimum number of words in the part that is not folded. `Doubtful` alone, for example, would say nothing."""


def folded(section: Section, answer: Iterable[Finding]) -> list[bool]:
    """Return, for each of a section's figures, whether a page folds it.

    Of figures such as `waterfall`, `waterfall-2` and so on, only the first may be open.
    """
    shut = section.anchor in DETAILS and all(one.evidence != section.anchor for one in answer)
    numbers = range(2, len(section.pictures) + 1)
    further = {f"{picture.file_name}-{number}" for picture in section.pictures for number in numbers}
    return [
        shut or picture.file_name in further or says_little(picture.table) for picture in section.pictures
    ]


def says_little(table: Table) -> bool:
    """Return whether a page folds a figure, which has at most FEW_ROWS rows and FEW_CELLS cells."""
    return len(table.rows) <= FEW_ROWS and len(table.rows) * len(table.columns) <= FEW_CELLS


def open_findings(findings: Sequence[Finding]) -> int:
    """Return how many findings, from the first one, are not folded."""
    claims = [place for place, one in enumerate(findings, start=1) if one.kind == "claim"]
    return max(MOST_FINDINGS, *claims, 0)


def without_repeats(findings: Iterable[Finding], answer: Collection[Finding]) -> list[Finding]:
    """Return the findings that the answer does not repeat.

    The answer repeats a finding if it has an equal one, or one with the same section and all its cases, unless the
    finding compares cases and so has an interval. Findings on claims are always kept.
    """
    return [
        one
        for one in findings
        if one.kind == "claim" or not any(one == other or _within(one, other) for other in answer)
    ]


def _within(one: Finding, answer: Finding) -> bool:
    compares = one.ratio is not None or bool(one.ratios)
    within = bool(one.cases) and {*one.cases} <= {*answer.cases} and not compares
    return one.evidence == answer.evidence and within


def in_short(text: str) -> tuple[str, str]:
    """Divide a text on validity into its first sentence, which a page shows, and the rest, which it folds.

    A first sentence of more than `LONGEST_LIMIT` words is itself divided, at a colon, a semicolon or final brackets.
    """
    first, *others = sentences_of(text)
    if words_in(first) <= LONGEST_LIMIT:
        return first, " ".join(others)
    ends = [end for end in _ends(first) if SHORTEST_LIMIT <= words_in(first[:end]) <= LONGEST_LIMIT]
    if not ends:
        return first, " ".join(others)
    rest = first[ends[-1] :]
    rest = f"{rest[2:-2]}." if rest.startswith(" (") else rest[2:]
    return f"{first[: ends[-1]]}.", " ".join([headline(rest), *others])


def _ends(sentence: str) -> Iterator[int]:
    depth = 0
    for place, letter in enumerate(sentence):
        if letter in "([\N{LEFT DOUBLE QUOTATION MARK}":
            if depth == 0 and sentence[place - 1] == " " and _closes_at_end(sentence[place:]):
                yield place - 1
            depth += 1
        elif letter in ")]\N{RIGHT DOUBLE QUOTATION MARK}":
            depth -= 1
        elif depth == 0 and sentence[place : place + 2] in (": ", "; "):
            yield place


def _closes_at_end(rest: str) -> bool:
    depth = 0
    for place, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return rest[place:] == ")."
    return False
