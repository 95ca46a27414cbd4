"""The table of cases as typed rows, sorted into panels that may be compared and series that may be joined.

Nothing is computed from them here; a figure takes its rows from a panel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ddpbench.analysis.summary import RunSummary
from ddpbench.report.draw.style import Look, look
from ddpbench.report.words import Estimate, ranks, series_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import (
    FACETS,
    PANEL,
    VARIANT,
    Key,
    batch_words,
    cap_order,
    cap_words,
    is_virtual,
    loading,
    virtual_words,
)
from ddpbench.spec.links import short_links
from ddpbench.strategies.traits import traits_named, traits_of
from ddpbench.units import counted

MOST_SERIES = 8
"""More than these, beside the bounds, cannot be told apart in one pair of axes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A case as the figures and tables need it; None where something was not measured."""

    case: Case
    case_id: str
    status: str
    error: str
    launches: int
    baseline_case_id: str
    step_time_s: Estimate | None
    samples_per_s: Estimate | None
    speedup: Estimate | None
    efficiency: Estimate | None
    exposed_comm_s: Estimate | None
    oversubscribed: bool
    noise_flag: str
    ci_reached: bool | None
    evaluation_samples_per_s: Estimate | None = None
    layout: str = ""
    """`2 x 2` (nodes x ranks) or `on 2 nodes`, where its strategy ran a number of ranks in several layouts."""

    @property
    def ok(self) -> bool:
        """Whether its numbers may be shown."""
        return self.status == "ok"

    @property
    def emulated(self) -> bool:
        """Whether a link was shaped or computation replayed, dilated or shrunk: hollow markers."""
        return is_virtual(self.case)

    @property
    def needs_no_link(self) -> bool:
        """Whether it would be the same on any fabric: one rank, or ranks that exchange nothing."""
        return not self.case.fabric and (self.case.world_size == 1 or not traits_of(self.case).exchanges)

    @property
    def strategy_name(self) -> str:
        """The strategy as figures name it."""
        return traits_of(self.case).display

    @property
    def bucket_name(self) -> str:
        """The bucket cap in words; empty for a strategy without buckets."""
        return cap_words(self.case.bucket_cap_mb)

    @property
    def name(self) -> str:
        """Strategy, ranks and bucket cap, in a few words."""
        words = [self.strategy_name, ranks(self.case.world_size)]
        if self.case.bucket_cap_mb is not None:
            words.append(f"{self.bucket_name} buckets")
        return ", ".join(words)

    @property
    def badges(self) -> str:
        """What a reader must know beside its numbers, in words."""
        return "; ".join(word for word in (*virtual_words(self.case), self.flaws) if word)

    @property
    def flaws(self) -> str:
        """The same where it is told elsewhere what was emulated, replayed or dilated."""
        words = [] if self.ok else [self.status]
        if not traits_of(self.case).exact:
            known = traits_of(self.case).promise is not None
            words.append("another path of training" if known else "strategy not known here")
        if self.ok and self.samples_per_s is not None and not self.samples_per_s.has_interval:
            words.append("too few rounds for an interval")
        if self.oversubscribed:
            words.append("oversubscribed")
        if self.noise_flag:
            words.append(self.noise_flag)
        if self.ok and self.ci_reached is False:
            words.append("target width not reached")
        return "; ".join(words)

    @property
    def panel(self) -> Key:
        """What two cases must share to be compared in one pair of axes."""
        return grouping.panel(self.case)

    @property
    def variant(self) -> Key:
        """What sets apart two series of one panel, but for the bucket cap."""
        return (*grouping.variant(self.case), self.layout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One strategy's rows at one setting, by world size; `name` tells it from the others of its panel."""

    name: str
    strategy: str
    variant: int
    """Which variant of its strategy and algorithm in the panel this is, from 0: they share a colour, not a marker."""
    rows: tuple[Row, ...]

    @property
    def look(self) -> Look:
        """Its colour and marker."""
        return look(self.strategy, self.variant, self.rows[0].case.algorithm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Rows that differ only in strategy, ranks, bucket cap and options; `name` is what sets them apart."""

    name: str
    rows: tuple[Row, ...]

    @property
    def world_sizes(self) -> list[int]:
        """The numbers of ranks planned, ascending."""
        return sorted({row.case.world_size for row in self.rows})

    @property
    def oversubscribed_sizes(self) -> list[int]:
        """The numbers of ranks at which a case had fewer cores than ranks."""
        return sorted({row.case.world_size for row in self.rows if row.oversubscribed})

    def of_strategies(self, most: int = MOST_SERIES) -> tuple[list[Series], list[str]]:
        """Return one series a strategy and variant, at one bucket cap each, and sentences on what is left out.

        The cap is DDP's default where it was run, otherwise the smallest: a fixed choice, because taking
        each strategy's best cap would favour the strategy with the most caps.
        """
        groups: dict[tuple[Any, ...], dict[float | str | None, list[Row]]] = {}
        for row in self.rows:
            groups.setdefault(row.variant, {}).setdefault(row.case.bucket_cap_mb, []).append(row)
        chosen: list[Series] = []
        notes: list[str] = []
        words = variant_words(self.rows)
        seen: dict[tuple[str, str], int] = {}
        for by_cap in groups.values():
            cap = min(by_cap, key=cap_order)
            rows = sorted(by_cap[cap], key=lambda row: row.case.world_size)
            name = " ".join([rows[0].strategy_name, words[rows[0].case_id]]).rstrip()
            kind = (rows[0].case.strategy, rows[0].case.algorithm)
            variant = seen[kind] = seen.get(kind, -1) + 1
            chosen.append(
                Series(name=name, strategy=rows[0].case.strategy, variant=variant, rows=tuple(rows))
            )
            if len(by_cap) > 1:
                others = series_of([cap_words(other) for other in sorted(by_cap, key=cap_order)[1:]])
                shown = cap_words(cap) or "no"
                notes.append(f"{name} is shown with {shown} buckets; {others}: see Buckets.")
        chosen.sort(
            key=lambda series: (traits_named(series.strategy).exchanges, -sum(row.ok for row in series.rows))
        )
        bounds = sum(not traits_named(series.strategy).exchanges for series in chosen)
        if len(chosen) > most + bounds:
            left = chosen[most + bounds :]
            notes.append(f"Only {most} series fit; omitted: {series_of([item.name for item in left])}.")
            chosen = chosen[: most + bounds]
        order = list(dict.fromkeys(row.case.strategy for row in self.rows))
        chosen.sort(
            key=lambda series: (not traits_named(series.strategy).exchanges, order.index(series.strategy))
        )
        return chosen, list(dict.fromkeys(notes))


def variant_words(rows: Iterable[Row], *, layouts: bool = True) -> dict[str, str]:
    """For each case what sets it apart from other variants of its strategy; empty where there is one.

    Its layout on nodes is told where `layouts` is true.
    """
    by_strategy: dict[str, list[Row]] = {}
    for row in rows:
        by_strategy.setdefault(row.case.strategy, []).append(row)
    found: dict[str, str] = {}
    for members in by_strategy.values():
        cases = [row.case for row in members]
        names = grouping.differing(cases, VARIANT)
        several = layouts and len({row.variant for row in members}) > 1
        for row in members:
            words = grouping.words(row.case, names, cases)
            # a strategy is not told twice: a master's algorithm is called master
            words = [word for word in words if word != row.case.strategy]
            found[row.case_id] = " ".join([*words, *([row.layout] if row.layout and several else [])])
    return found


def _with_layouts(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with their layout on nodes told where their strategy ran a number of ranks in several."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.panel, row.variant), []).append(row)
    layouts: dict[str, str] = {}
    for members in groups.values():
        shapes = {(row.case.world_size, row.case.nodes) for row in members}
        sizes = {size for size, _ in shapes}
        if len(shapes) > len(sizes):
            # of as many nodes, or of nodes of as many ranks: whichever makes fewer and so longer series
            by_nodes = len({row.case.nodes for row in members}) <= len(
                {row.case.ranks_per_node for row in members}
            )
            for row in members:
                shape = f"{row.case.nodes} x {row.case.ranks_per_node}"
                several = (
                    f"on {counted(row.case.nodes, 'node')}"
                    if by_nodes
                    else f"on nodes of {row.case.ranks_per_node}"
                )
                layouts[row.case_id] = shape if len(sizes) == 1 else several
    return [replace(row, layout=layouts.get(row.case_id, "")) for row in rows]


def rows_of(summary: RunSummary) -> list[Row]:
    """Return the summary's cases as typed rows, in their order."""
    return _with_layouts(
        [_row(record, summary.planned[str(record["case_id"])]) for record in summary.cases.to_dict("records")]
    )


def _row(record: Mapping[Any, Any], case: Case) -> Row:
    def text(name: str) -> str:
        return "" if _missing(record[name]) else str(record[name])

    def real(name: str) -> float | None:
        return None if _missing(record[name]) else float(record[name])

    def estimate(name: str, low: str, high: str) -> Estimate | None:
        value = real(name)
        return None if value is None else Estimate(value, real(low), real(high))

    noise = record["noise_flag"]
    reached = record["ci_reached"]
    return Row(
        case=case,
        case_id=text("case_id"),
        status=text("status"),
        error=text("error"),
        launches=0 if _missing(record["launches"]) else int(record["launches"]),
        baseline_case_id=text("baseline_case_id"),
        step_time_s=estimate("step_time_s", "step_time_ci_low_s", "step_time_ci_high_s"),
        samples_per_s=estimate("samples_per_s", "samples_per_s_ci_low", "samples_per_s_ci_high"),
        speedup=estimate("speedup", "speedup_ci_low", "speedup_ci_high"),
        efficiency=estimate("efficiency", "efficiency_ci_low", "efficiency_ci_high"),
        exposed_comm_s=estimate("exposed_comm_s", "exposed_comm_ci_low_s", "exposed_comm_ci_high_s"),
        oversubscribed=_true(record["oversubscribed"]),
        noise_flag="" if _missing(noise) or noise is False else "noisy" if _true(noise) else str(noise),
        ci_reached=None if _missing(reached) else _true(reached),
        evaluation_samples_per_s=estimate(
            "evaluation_samples_per_s", "evaluation_samples_per_s_ci_low", "evaluation_samples_per_s_ci_high"
        ),
    )


def raw_launches(summary: RunSummary, column: str) -> dict[str, list[float]]:
    """Return the ok launches' values of a column, by case and in order of their rounds."""
    values: dict[str, list[float]] = {}
    frame = summary.launches
    if frame.empty:
        return values
    for record in frame.sort_values(["case_id", "round"]).to_dict("records"):
        if record["status"] == "ok" and not _missing(record[column]):
            values.setdefault(str(record["case_id"]), []).append(float(record[column]))
    return values


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value))


def _true(value: Any) -> bool:
    return not _missing(value) and str(value).lower() in ("true", "1", "1.0")


def panels_of(rows: Iterable[Row]) -> list[Panel]:
    """Return the rows in groups that may be compared, the largest first; groups of base cases alone are left out."""
    rows = list(rows)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.panel, []).append(row)
    linked = {_but_links(group[0]) for group in groups.values() if group[0].case.fabric}
    keys = [
        key
        for key, group in groups.items()  # what only joins the groups of fabrics is not a group of its own
        if not (_but_links(group[0]) in linked and all(row.needs_no_link for row in group))
    ]
    worth = [key for key in keys if any(traits_of(row.case).exchanges for row in groups[key])]
    kept = worth or keys
    kept.sort(key=lambda key: -sum(row.ok for row in groups[key]))
    of = [groups[key][0].case for key in keys]
    return [Panel(name=_panel_name(groups[key][0].case, of), rows=joined(groups[key], rows)) for key in kept]


def joined(members: Sequence[Row], rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one fabric, with those of all `rows` before them that use no link and share every other setting."""
    if not members[0].case.fabric:
        return tuple(members)
    found = [row for row in rows if row.needs_no_link and _but_links(row) == _but_links(members[0])]
    layouts = {
        grouping.variant(row.case): row.layout
        for row in sorted(members, key=lambda row: sum(other.layout == row.layout for other in members))
    }  # of several layouts one rank starts the longest series
    free = [replace(row, layout=layouts.get(grouping.variant(row.case), "")) for row in found]
    return (*free, *members)


def _but_links(row: Row) -> Key:
    return grouping.panel(row.case, but=("fabric",))


def _panel_name(case: Case, among: Sequence[Case]) -> str:
    """Return what sets this panel apart from the run's others; empty where there is only one."""
    return ", ".join(grouping.words(case, grouping.differing(among, PANEL), among))


def settings_apart(rows: Sequence[Row]) -> dict[str, str]:
    """For each case the links and options that tell these rows apart, by its id."""
    among = [row.case for row in rows]
    linked = len({case.fabric for case in among}) > 1
    return {
        row.case_id: ", ".join(
            [
                *([short_links(row.case.fabric)] if linked and row.case.fabric else []),
                *grouping.words(row.case, ("workload_options_json",), among),
            ]
        )
        for row in rows
    }


def label_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """What must stand beside a figure's numbers: the labels of the rows in it that have most; empty if none has."""
    return max((tuple(virtual_words(row.case)) for row in rows), key=_count, default=())


def _count(words: tuple[str, ...]) -> int:
    return len(words)


def fullest(rows: Sequence[Row]) -> Row:
    """Return the one whose setting holds for a figure: on emulated links not the one rank, which uses none."""
    return max(rows, key=lambda row: len(virtual_words(row.case)))


def setting_of(row: Row, *, but: Collection[str] = ()) -> str:
    """A panel's fixed setting in words, for captions, without the fields `but`: workload, scaling, batch, link, ..."""
    case = row.case
    kind = case.dtype if case.precision == "full" else f"{case.dtype} with {case.precision} autocast"
    found = {
        "workload": case.workload,
        "scaling": f"{case.scaling} scaling with a {batch_words(case)}",
        "threads_per_rank": FACETS["threads_per_rank"].word(case),
        "dtype": kind,
        "device": FACETS["device"].word(case),
        "data": loading(case) if case.data == "memory" or case.loader_workers else "",
    }
    words = [word for name, word in found.items() if word and name not in but]
    words += virtual_words(case, but=but)
    return ", ".join([*words, *(["times virtual"] if case.dilation != 1 else [])])


def setting_but_links(rows: Sequence[Row]) -> str:
    """Return the setting of rows that differ in their links: without those."""
    return setting_of(fullest(rows), but=("fabric",))


def label_but_links(row: Row) -> tuple[str, ...]:
    """Return a figure's label where links differ from point to point."""
    return ("emulated links", *virtual_words(row.case, but=("fabric",)))


def alike_but(row: Row, *but: str) -> Key:
    """Return what cases must share that differ in these fields alone, such as links and options of the workload."""
    return grouping.alike(row.case, but=but)
