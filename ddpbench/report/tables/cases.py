"""The summary table of all cases, with a column for each setting that varies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ddpbench.analysis.statistics.estimands import MEDIAN, WITHIN_ROUNDS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import AS_GOOD, BEST, CANNOT_TELL
from ddpbench.analysis.summary import RunSummary
from ddpbench.naming import Setting, columns
from ddpbench.report.captions import claimed_speedups
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import variant_words
from ddpbench.report.standing import stands
from ddpbench.report.words import series_of
from ddpbench.spec.grouping import PANEL, cap_order, virtual_words
from ddpbench.spec.links import link_words


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """The cases' settings: differing ones get columns, and the caption states the shared ones."""

    caps: Collection[str]
    """The bucket caps, in words."""
    tells_caps: bool
    """True if bucket caps have a column, because there are several caps, or other caps make the same buckets."""
    launches: Collection[int]
    """Numbers of launches per case. They have a column if they differ."""
    extra: Sequence[Setting]
    """Settings that vary, with a column each."""
    rest: Sequence[Setting]
    """Settings that vary and share one column."""
    shared: Sequence[str]
    """Words on emulation that hold for all cases."""
    links: str
    """The links, in words, of all cases that use any; empty if these differ."""
    flaws: Sequence[str]
    """Words that must accompany the numbers of all cases."""


def summary_table(summary: RunSummary, rows: Sequence[Row]) -> Table:
    """Return the table of all cases, including failed and skipped ones, with a column for each setting that varies.

    The caption states a common bucket cap and number of launches. The table's `reading` explains columns.
    """
    settings = _settings(rows)
    best = {
        case_id for case_id, one in stands(summary.steps.comparisons, "ranks").items() if one.verdict == BEST
    }
    variants = variant_words(rows)
    ties = _ties(summary, {row.case_id for row in rows if row.oversubscribed})
    return Table(
        caption=_caption(settings),
        reading=" ".join([_reading(bold=bool(best)), *claimed_speedups(summary.conclusions.claims, rows)]),
        columns=_columns(settings),
        rows=tuple(
            (
                Cell(text=row.strategy_name, under=variants[row.case_id]),
                Cell.count(row.case.world_size),
                *([_cap(row)] if settings.tells_caps else []),
                *(Cell(text=setting.text(row.case)) for setting in settings.extra),
                *([Cell(text=_rest(row, settings.rest))] if settings.rest else []),
                _backend(row, settings),
                *_numbers(row, strong=row.case_id in best),
                *([Cell.count(row.launches)] if len(settings.launches) > 1 else []),
                Cell(text=_notes(row, ties.get(row.case_id, ""), settings.flaws)),
            )
            for row in rows
        ),
        row_ids=tuple(f"case-{row.case_id}" for row in rows),
    )


def _settings(rows: Sequence[Row]) -> _Settings:
    caps = {row.bucket_name for row in rows if row.case.bucket_cap_mb is not None}
    launches = {row.launches for row in rows} or {0}
    cases = [row.case for row in rows]
    names = [name for name in (*PANEL, "nodes") if name not in _TOLD_BESIDE]
    varied = columns(cases, names)
    tells_caps = len(caps) > 1 or any(row.same_caps for row in rows)
    room = _MOST_COLUMNS - _ALWAYS - tells_caps - (len(launches) > 1)
    most = len(varied) if len(varied) <= room else room - 1
    shared = (
        [word for word in virtual_words(rows[0].case) if all(word in virtual_words(row.case) for row in rows)]
        if rows
        else []
    )
    fabrics = {row.case.fabric for row in rows if row.case.fabric}
    links = link_words(fabrics.pop()) if len(fabrics) == 1 else ""
    return _Settings(
        caps=caps,
        tells_caps=tells_caps,
        launches=launches,
        extra=varied[:most],
        rest=varied[most:],
        shared=shared,
        links=links,
        flaws=_of_all([row.flaw_words for row in rows]),
    )


def _of_all(words: Sequence[Sequence[str]]) -> list[str]:
    return [word for word in words[0] if all(word in others for others in words)] if len(words) > 1 else []


def _notes(row: Row, tie: str, shared: Collection[str]) -> str:
    return "; ".join(word for word in (tie, *row.flaw_words) if word and word not in shared)


def _caption(settings: _Settings) -> str:
    caps, launches, shared, links = settings.caps, settings.launches, settings.shared, settings.links
    parts = [
        f"All cases{f', each with {series_of(shared)}' if shared else ''}",
        f"links, where they are used: {links}" if links and links not in shared else "",
        *(f"buckets, where there are any: {cap}" for cap in caps if not settings.tells_caps),
        f"samples/s and step: {MEDIAN}{f', {max(launches)} each' if len(launches) == 1 else ''}",
        "in brackets 95 % intervals",
    ]
    flaws = f" All: {series_of(settings.flaws)}." if settings.flaws else ""
    return f"{'; '.join(filter(None, parts))}.{flaws}"


def _reading(*, bold: bool) -> str:
    best = (
        "Bold: best at its number of ranks among cases that exchange gradients, "
        "where every other is shown to be slower. "
    )
    return (
        f"{best if bold else ''}"
        f"Speed-up: {WITHIN_ROUNDS}, so not quite the quotient of two cells. "
        "Exposed: from instrumented steps, not a part of the timed step next to it."
    )


def _columns(settings: _Settings) -> tuple[Column, ...]:
    return (
        Column("Strategy"),
        Column("Ranks", number=True),
        *([Column("Bucket")] if settings.tells_caps else []),
        *(Column(setting.title) for setting in settings.extra),
        *([Column("Other settings")] if settings.rest else []),
        Column("Backend, link"),
        Column("Samples/s", number=True),
        Column("Speed-up", number=True),
        Column("Efficiency", number=True),
        Column("Step, ms", number=True),
        Column("Exposed, ms", number=True),
        *([Column("Launches", number=True)] if len(settings.launches) > 1 else []),
        Column("Notes"),
    )


def _backend(row: Row, settings: _Settings) -> Cell:
    emulated = virtual_words(row.case)
    under = [
        "emulated" if word == settings.links else word for word in emulated if word not in settings.shared
    ]
    return Cell(text=row.case.backend, under=", ".join(under), key=" ".join([row.case.backend, *emulated]))


_TOLD_BESIDE = ("fabric", "compute", "dilation", "shrink")
"""Settings that are shown with the backend."""
_MOST_COLUMNS = 13
"""Maximum number of columns, which fit a width of 1280 pixels. If more settings vary, the last ones share a column."""
_ALWAYS = 9
"""Number of columns that every summary table has."""


def _rest(row: Row, settings: Sequence[Setting]) -> str:
    return "; ".join(
        f"{setting.title.lower()} {text}" for setting in settings if (text := setting.text(row.case))
    )


def _cap(row: Row) -> Cell:
    return Cell(
        text=row.bucket_name,
        under=f"as {row.same_buckets}" if row.same_caps else "",
        key=1e9 * cap_order(row.case.bucket_cap_mb)[0] + cap_order(row.case.bucket_cap_mb)[1],
    )


def _numbers(row: Row, *, strong: bool) -> Iterator[Cell]:
    shown = row.ok
    step: Interval | None = row.step_time_s.scaled(1e3) if row.step_time_s is not None else None
    yield Cell.estimate(row.samples_per_s if shown else None, strong=strong)
    yield Cell.estimate(row.speedup if shown else None)
    yield Cell.estimate(row.efficiency if shown else None)
    yield Cell.estimate(step if shown else None)
    exposed = row.exposed_comm_s.scaled(1e3) if row.exposed_comm_s is not None else None
    yield Cell.estimate(exposed if shown else None)


def _ties(summary: RunSummary, oversubscribed: Collection[str]) -> dict[str, str]:
    words: dict[str, list[str]] = {}
    for topic, what in _TOPICS.items():
        for case_id, one in stands(summary.steps.comparisons, topic).items():
            if case_id in oversubscribed or one.against in oversubscribed:
                continue
            if one.verdict in (BEST, AS_GOOD, CANNOT_TELL) and not (topic == "ranks" and case_id in words):
                words.setdefault(case_id, []).append(one.cell(what))
    return {case_id: "; ".join(items) for case_id, items in words.items()}


_TOPICS = {
    "buckets": "bucket cap",
    "strategies": "strategy",
    "layouts": "layout",
    "ranks": "case of its ranks",
}
"""Topics of comparisons, in words. The last topic is used only for cases that no other topic compares."""
