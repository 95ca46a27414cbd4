"""Group rows into panels, whose rows may be compared, and into series, whose points may be joined by a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpbench.naming import Namer
from ddpbench.report.draw.style import Look, look
from ddpbench.report.rows import Row
from ddpbench.report.words import series_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import PANEL, VARIANT, GroupKey, cap_order, cap_words
from ddpbench.strategies.traits import Traits, traits_of

BY_CAP = "Step time by bucket cap"
"""The title of the section on bucket caps, to which notes in other sections refer."""
MOST_SERIES = 8
"""Maximum number of series in one plot, not counting upper bounds. More could not be distinguished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Rows of one strategy at one setting, in order of world size. `name` distinguishes the series within its panel."""

    name: str
    strategy: str
    variant: int
    """Index of the variant among those of the same strategy and algorithm, from 0. Variants have the same colour and
    different markers.
    """
    rows: tuple[Row, ...]
    words: str = ""
    """The part of the name that distinguishes the variant from others of its strategy."""

    @property
    def traits(self) -> Traits:
        """Return the traits of the series' strategy."""
        return traits_of(self.rows[0].case)

    @property
    def look(self) -> Look:
        """Return the series' colour and marker."""
        return look(self.rows[0].case, self.variant)


def _most_ranks(every: Sequence[Series]) -> int:
    rows = [row for series in every for row in series.rows if row.ok and row.samples_per_s is not None]
    shared = {row.case.world_size for row in rows if row.oversubscribed}
    sizes = {row.case.world_size for row in rows}
    return max(sizes - shared or sizes, default=0)


def _rate_at(series: Series, size: int) -> float:
    rates = (row.samples_per_s for row in series.rows if row.ok and row.case.world_size == size)
    return next((rate.value for rate in rates if rate is not None), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Rows that differ only in strategy, ranks, bucket cap and options.

    `name` distinguishes the panel from other panels.
    """

    name: str
    rows: tuple[Row, ...]

    @property
    def world_sizes(self) -> list[int]:
        """Return the planned numbers of ranks, ascending."""
        return sorted({row.case.world_size for row in self.rows})

    @property
    def oversubscribed_sizes(self) -> list[int]:
        """Return the numbers of ranks at which a case was oversubscribed, ascending."""
        return sorted({row.case.world_size for row in self.rows if row.oversubscribed})

    def of_strategies(self, most: int = MOST_SERIES) -> tuple[list[Series], list[str]]:
        """Return one series per strategy and variant, each at one bucket cap, and sentences on what is left out.

        The cap is DDP's default or, if not measured, the smallest: the best cap would favour the strategy with the most
        caps.
        """
        groups: dict[tuple[Any, ...], dict[float | str | None, list[Row]]] = {}
        for row in self.rows:
            groups.setdefault(row.variant, {}).setdefault(row.case.bucket_cap_mb, []).append(row)
        chosen: list[Series] = []
        notes: list[str] = []
        words = variant_words(self.rows)
        seen: dict[tuple[str, str], int] = {}
        for by_cap in groups.values():
            cap = min(by_cap, key=lambda cap: (not any(row.ok for row in by_cap[cap]), cap_order(cap)))
            rows = sorted(by_cap[cap], key=lambda row: row.case.world_size)
            own = words[rows[0].case_id]
            name = " ".join(filter(None, [rows[0].strategy_name, own]))
            kind = (rows[0].case.strategy, rows[0].case.algorithm)
            variant = seen[kind] = seen.get(kind, -1) + 1
            chosen.append(
                Series(
                    name=name, words=own, strategy=rows[0].case.strategy, variant=variant, rows=tuple(rows)
                )
            )
            if len(by_cap) > 1:
                others = series_of(
                    [cap_words(other) for other in sorted(by_cap, key=cap_order) if other != cap]
                )
                shown = cap_words(cap) or "no"
                notes.append(f"{name} is shown with {shown} buckets; {others}: see {BY_CAP}.")
        # If series do not fit, those with the least throughput at the most ranks are left out, so that no heading
        # names a series that is not drawn.
        most_ranks = _most_ranks([series for series in chosen if series.traits.exchanges])
        chosen.sort(
            key=lambda series: (
                series.traits.exchanges,
                -_rate_at(series, most_ranks),
                -sum(row.ok for row in series.rows),
            )
        )
        bounds = sum(not series.traits.exchanges for series in chosen)
        if len(chosen) > most + bounds:
            left = chosen[most + bounds :]
            notes.append(f"Only {most} series fit; omitted: {series_of([item.name for item in left])}.")
            chosen = chosen[: most + bounds]
        order = list(dict.fromkeys(row.case.strategy for row in self.rows))
        chosen.sort(key=lambda series: (not series.traits.exchanges, order.index(series.strategy)))
        return chosen, list(dict.fromkeys(notes))


def panels_of(rows: Iterable[Row]) -> list[Panel]:
    """Return the rows grouped into panels, those with the most successful cases first.

    Panels whose cases exchange nothing are left out. If this would leave no panel, all panels are kept.
    """
    rows = list(rows)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.panel, []).append(row)
    linked = {_but_links(group[0]) for group in groups.values() if group[0].case.fabric}
    keys = [
        key
        for key, group in groups.items()  # cases without links join the panels of fabrics; they need no panel
        if not (_but_links(group[0]) in linked and all(row.needs_no_link for row in group))
    ]
    worth = [key for key in keys if any(traits_of(row.case).exchanges for row in groups[key])]
    kept = worth or keys
    kept.sort(key=lambda key: -sum(row.ok for row in groups[key]))
    names = Namer(groups[key][0].case for key in keys)  # empty if there is only one
    return [
        Panel(name=", ".join(names.apart(groups[key][0].case, PANEL)), rows=joined(groups[key], rows))
        for key in kept
    ]


def panel_by_case(panels: Iterable[Panel]) -> dict[str, Panel]:
    """Return the first panel that contains each case, by case id."""
    found: dict[str, Panel] = {}
    for panel in panels:
        for row in panel.rows:
            found.setdefault(row.case_id, panel)
    return found


def joined(members: Sequence[Row], rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows without links that share all other settings with `members`, followed by `members`.

    `members` are rows of one fabric. The rows without links are taken from `rows`. If the members have no fabric,
    return them alone.
    """
    if not members[0].case.fabric:
        return tuple(members)
    linkless = [row for row in rows if row.needs_no_link and _but_links(row) == _but_links(members[0])]
    layouts = {
        grouping.variant(row.case): row.layout
        for row in sorted(members, key=lambda row: sum(other.layout == row.layout for other in members))
    }  # with several layouts, a case of one rank starts the series with the most points
    free = [replace(row, layout=layouts.get(grouping.variant(row.case), "")) for row in linkless]
    return (*free, *members)


def _but_links(row: Row) -> GroupKey:
    return grouping.panel(row.case, but=("fabric",))


def variant_words(rows: Iterable[Row], *, layouts: bool = True) -> dict[str, str]:
    """Return, by case id, phrases that distinguish a case from other variants of its strategy.

    They are empty if there is only one variant. With `layouts`, they include the case's layout on nodes.
    """
    every = list(rows)
    names = every[0].names.of(row.case for row in every) if every else Namer(())
    several = Counter(kind for kind, _ in {(row.case.strategy, row.variant) for row in every})
    by_case: dict[str, str] = {}
    for row in every:
        layout = row.layout if layouts and several[row.case.strategy] > 1 else ""
        words = [*names.details(row.case, VARIANT, layouts=False), layout]
        by_case[row.case_id] = " ".join(filter(None, words))
    return by_case


def alike_but(row: Row, *but: str) -> GroupKey:
    """Return a grouping key that a row shares with all rows that differ from it only in the fields `but`."""
    return grouping.alike(row.case, but=but)
