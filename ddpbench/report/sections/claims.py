"""The section on claims, with the pairs of cases that decide each claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpbench.analysis.summary import DecidedClaim, HeldPair
from ddpbench.report.parts import Cell, Column, Section, Table
from ddpbench.report.rows import Row

MOST_ROWS = 200
"""Maximum number of rows in one claim's table. The embedded JSON has all rows."""


def section(claims: Sequence[DecidedClaim], rows: Sequence[Row]) -> Section | None:
    """Return the section on the experiment's claims, with a table for each claim; None if `claims` is empty."""
    if not claims:
        return None
    tables = tuple(_table(one) for one in claims if one.pairs)
    before = _earlier([one for one in claims if one.history])
    without = [one for one in claims if not one.pairs]
    return Section(
        anchor="claims",
        title="Claims",
        question="What others claim: does it hold here?",
        tables=(*tables, *([before] if before else [])),
        notes=tuple(f"{one.says}: no two cases of this run are its two sides." for one in without),
        absent="" if tables else "No case of this run decides a claim.",
    )


def _table(one: DecidedClaim) -> Table:
    number = "Time of a step" if one.of == "step time" else "Time of a sample"
    shown = one.pairs[:MOST_ROWS]
    more = len(one.pairs) - len(shown)
    return Table(
        caption=" ".join(_caption(one, more)),
        columns=(
            Column("Case"),
            Column("compared with"),
            Column(f"{number}, the first over the other", number=True),
            Column("The claim"),
            Column("Launches each", number=True),
        ),
        rows=tuple(_row(held) for held in shown),
    )


def _earlier(claims: Sequence[DecidedClaim]) -> Table | None:
    if not claims:
        return None
    return Table(
        caption="What was claimed or measured before, oldest first. A claim that was changed after a verdict is weaker "
        "evidence: it was chosen by what had been seen.",
        columns=tuple(map(Column, ("Claim", "Earlier wording", "Settings", "Verdict", "Run", "Then"))),
        rows=tuple(
            (
                Cell(text=_numbered(one.says, one.number)),
                Cell(text=_numbered("same words" if past.says == one.says else past.says, past.number)),
                Cell(text=past.settings),
                Cell(text=past.head, under=past.numbers),
                Cell(text=past.date, under=f"commit {past.commit}" if past.commit else ""),
                Cell(text=past.why),
            )
            for one in claims
            for past in one.history
        ),
        sortable=False,
        fold="Earlier wordings and verdicts",
    )


def _numbered(says: str, number: int | None) -> str:
    return says if number is None else f"{number}. {says}"


def _caption(one: DecidedClaim, more: int) -> Iterator[str]:
    yield f"{one.says}: {one.verdict}."
    if one.source:
        yield f"Claimed in {one.source}."
    if one.margin:
        margin = f"{100 * one.margin:g} %"
        yield (
            f"Asked of each pair: within {margin}."
            if one.kind == "as fast"
            else f"Asked: by {margin} at least."
        )
    yield "Paired within rounds; the intervals hold together, with 95 % confidence."
    if more:
        yield f"{more:,} more pairs are in report.json."


def _row(held: HeldPair) -> tuple[Cell, ...]:
    ratio = held.ratio
    return (
        Cell(text=held.a_name),
        Cell(text=held.b_name),
        Cell.estimate(ratio, null=1),
        Cell(text=held.verdict, under=held.reason),
        Cell.count(held.rounds),
    )
