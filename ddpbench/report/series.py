"""The table of cases as typed rows, sorted into panels that may be compared and series that may be joined.

Nothing is computed from them here; a figure takes its rows from a panel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ddpbench.analysis.findings import BOUNDS, cap_order
from ddpbench.analysis.labels import is_virtual, link_words, short_links, virtual_words
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.style import Look, look
from ddpbench.report.words import Estimate, bucket_name, counted, format_batch, ranks, series_of

MOST_SERIES = 8
"""More than these, beside the bounds, cannot be told apart in one pair of axes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A case as the figures and tables need it; None where something was not measured."""

    case_id: str
    workload: str
    strategy: str
    algorithm: str
    schedule: str
    options_json: str
    backend: str
    device: str
    world_size: int
    nodes: int
    threads_per_rank: int
    loader_workers: int
    bucket: float | str | None
    local_batch: int
    global_batch: int
    scaling: str
    dtype: str
    fabric: str
    compute: str
    dilation: float
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
    precision: str = "full"
    data: str = "loader"
    evaluation_samples_per_s: Estimate | None = None
    shrink: int = 1
    workload_options_json: str = ""
    layout: str = ""
    """`2 x 2` (nodes x ranks) or `on 2 nodes`, where its strategy ran a number of ranks in several layouts."""

    @property
    def ok(self) -> bool:
        """Whether its numbers may be shown."""
        return self.status == "ok"

    @property
    def emulated(self) -> bool:
        """Whether a link was shaped or computation replayed, dilated or shrunk: hollow markers."""
        return is_virtual(self)

    @property
    def ranks_per_node(self) -> int:
        """How many ranks share a node."""
        return self.world_size // max(self.nodes, 1)

    @property
    def needs_no_link(self) -> bool:
        """Whether it would be the same on any fabric: one rank, or ranks that exchange nothing."""
        return not self.fabric and (self.world_size == 1 or self.strategy in BOUNDS)

    @property
    def strategy_name(self) -> str:
        """The strategy as figures name it. On CPU data_parallel is a threaded equivalent, and says so."""
        name = look(self.strategy).name
        return f"{name} (threads)" if self.strategy == "data_parallel" and self.device == "cpu" else name

    @property
    def bucket_name(self) -> str:
        """The bucket cap in words; empty for a strategy without buckets."""
        return bucket_name(self.bucket)

    @property
    def name(self) -> str:
        """Strategy, ranks and bucket cap, in a few words."""
        words = [self.strategy_name, ranks(self.world_size)]
        if self.bucket is not None:
            words.append(f"{self.bucket_name} buckets")
        return ", ".join(words)

    @property
    def loading(self) -> str:
        """Where its batches come from: `data in memory`, `no loader workers`, `2 loader workers`."""
        if self.data == "memory":
            return "data in memory"
        return counted(self.loader_workers, "loader worker") if self.loader_workers else "no loader workers"

    @property
    def badges(self) -> str:
        """What a reader must know beside its numbers, in words."""
        return "; ".join(word for word in (*virtual_words(self), self.flaws) if word)

    @property
    def flaws(self) -> str:
        """The same where it is told elsewhere what was emulated, replayed or dilated."""
        words = [] if self.ok else [self.status]
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
    def batch(self) -> int:
        """The batch that scaling holds fixed."""
        return self.local_batch if self.scaling == "weak" else self.global_batch

    @property
    def panel_key(self) -> tuple[Any, ...]:
        """What two cases must share to be compared in one pair of axes."""
        return tuple(getattr(self, name) for name in _PANEL_FIELDS)

    @property
    def variant(self) -> tuple[str, ...]:
        """What sets apart two cases of one strategy, but for ranks and bucket cap."""
        return (self.algorithm, self.schedule, self.backend, self.options_json, self.layout)


_PANEL_FIELDS = (
    "workload",
    "device",
    "dtype",
    "scaling",
    "batch",
    "threads_per_rank",
    "loader_workers",
    "fabric",
    "compute",
    "dilation",
    "precision",
    "data",
    "shrink",
    "workload_options_json",
)
_LINKS = _PANEL_FIELDS.index("fabric")
_OPTIONS = _PANEL_FIELDS.index("workload_options_json")


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
        return look(self.strategy, self.variant, self.rows[0].algorithm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Rows that differ only in strategy, ranks, bucket cap and options; `name` is what sets them apart."""

    name: str
    rows: tuple[Row, ...]

    @property
    def world_sizes(self) -> list[int]:
        """The numbers of ranks planned, ascending."""
        return sorted({row.world_size for row in self.rows})

    @property
    def oversubscribed_sizes(self) -> list[int]:
        """The numbers of ranks at which a case had fewer cores than ranks."""
        return sorted({row.world_size for row in self.rows if row.oversubscribed})

    def of_strategies(self, most: int = MOST_SERIES) -> tuple[list[Series], list[str]]:
        """One series a strategy and variant, at one bucket cap each, and sentences on what is left out.

        The cap is DDP's default where it was run, otherwise the smallest: a fixed choice, because taking
        each strategy's best cap would favour the strategy with the most caps.
        """
        groups: dict[tuple[Any, ...], dict[float | str | None, list[Row]]] = {}
        for row in self.rows:
            groups.setdefault((row.strategy, *row.variant), {}).setdefault(row.bucket, []).append(row)
        chosen: list[Series] = []
        notes: list[str] = []
        words = variant_words(self.rows)
        seen: dict[tuple[str, str], int] = {}
        for key, by_cap in groups.items():
            cap = min(by_cap, key=cap_order)
            rows = sorted(by_cap[cap], key=lambda row: row.world_size)
            name = " ".join([rows[0].strategy_name, words[rows[0].case_id]]).rstrip()
            kind = (rows[0].strategy, rows[0].algorithm)
            variant = seen[kind] = seen.get(kind, -1) + 1
            chosen.append(Series(name=name, strategy=key[0], variant=variant, rows=tuple(rows)))
            if len(by_cap) > 1:
                others = series_of([bucket_name(other) for other in sorted(by_cap, key=cap_order)[1:]])
                shown = bucket_name(cap) or "no"
                notes.append(f"{name} is shown with {shown} buckets; {others}: see Buckets.")
        chosen.sort(key=lambda series: (series.strategy not in BOUNDS, -sum(row.ok for row in series.rows)))
        bounds = sum(series.strategy in BOUNDS for series in chosen)
        if len(chosen) > most + bounds:
            left = chosen[most + bounds :]
            notes.append(f"Only {most} series fit; omitted: {series_of([item.name for item in left])}.")
            chosen = chosen[: most + bounds]
        order = list(dict.fromkeys(row.strategy for row in self.rows))
        chosen.sort(key=lambda series: (series.strategy in BOUNDS, order.index(series.strategy)))
        return chosen, list(dict.fromkeys(notes))


def variant_words(rows: Iterable[Row]) -> dict[str, str]:
    """For each case what sets it apart from other variants of its strategy; empty where there is one."""
    rows = list(rows)
    variants: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        known = variants.setdefault(row.strategy, [])
        if row.variant not in known:
            known.append(row.variant)
    words = {
        (strategy, variant): " ".join(_differences(strategy, variant, known))
        for strategy, known in variants.items()
        for variant in known
    }
    return {row.case_id: words[row.strategy, row.variant] for row in rows}


def _differences(strategy: str, variant: Sequence[str], variants: Sequence[Sequence[str]]) -> list[str]:
    if len(variants) < 2:
        return []
    words = [
        value.replace("_", " ")
        for index, value in enumerate(variant[:3])
        if value and value != strategy and len({other[index] for other in variants}) > 1
    ]
    options = [_options(other[3]) for other in variants]
    mine = _options(variant[3])
    words += [
        f"{key}={json.dumps(value)}"
        for key, value in mine.items()
        if any(other.get(key) != value for other in options)
    ]
    if variant[4]:
        words.append(variant[4])
    return words


def _with_layouts(rows: Sequence[Row]) -> list[Row]:
    """The rows, with their layout on nodes told where their strategy ran a number of ranks in several."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.panel_key, row.strategy, *row.variant), []).append(row)
    layouts: dict[str, str] = {}
    for members in groups.values():
        shapes = {(row.world_size, row.nodes) for row in members}
        sizes = {size for size, _ in shapes}
        if len(shapes) > len(sizes):
            # of as many nodes, or of nodes of as many ranks: whichever makes fewer and so longer series
            by_nodes = len({row.nodes for row in members}) <= len({row.ranks_per_node for row in members})
            for row in members:
                shape = f"{row.nodes} x {row.ranks_per_node}"
                several = (
                    f"on {counted(row.nodes, 'node')}" if by_nodes else f"on nodes of {row.ranks_per_node}"
                )
                layouts[row.case_id] = shape if len(sizes) == 1 else several
    return [replace(row, layout=layouts.get(row.case_id, "")) for row in rows]


def _options(text: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text or "{}")
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def rows_of(summary: RunSummary) -> list[Row]:
    """The summary's cases as typed rows, in their order."""
    return _with_layouts([_row(record) for record in summary.cases.to_dict("records")])


def _row(record: Mapping[Any, Any]) -> Row:
    def text(name: str) -> str:
        return "" if _missing(record[name]) else str(record[name])

    def whole(name: str) -> int:
        return 0 if _missing(record[name]) else int(record[name])

    def real(name: str) -> float | None:
        return None if _missing(record[name]) else float(record[name])

    def estimate(name: str, low: str, high: str) -> Estimate | None:
        value = real(name)
        return None if value is None else Estimate(value, real(low), real(high))

    noise = record["noise_flag"]
    reached = record["ci_reached"]
    return Row(
        case_id=text("case_id"),
        workload=text("workload"),
        strategy=text("strategy"),
        algorithm=text("algorithm"),
        schedule=text("schedule"),
        options_json=text("options_json"),
        backend=text("backend"),
        device=text("device"),
        world_size=whole("world_size"),
        nodes=whole("nodes"),
        threads_per_rank=whole("threads_per_rank"),
        loader_workers=whole("loader_workers"),
        bucket=_bucket(record["bucket_cap_mb"]),
        local_batch=whole("local_batch"),
        global_batch=whole("global_batch"),
        scaling=text("scaling"),
        dtype=text("dtype"),
        fabric=text("fabric"),
        compute=text("compute") or "real",
        dilation=real("dilation") or 1.0,
        status=text("status"),
        error=text("error"),
        launches=whole("launches"),
        baseline_case_id=text("baseline_case_id"),
        step_time_s=estimate("step_time_s", "step_time_ci_low_s", "step_time_ci_high_s"),
        samples_per_s=estimate("samples_per_s", "samples_per_s_ci_low", "samples_per_s_ci_high"),
        speedup=estimate("speedup", "speedup_ci_low", "speedup_ci_high"),
        efficiency=estimate("efficiency", "efficiency_ci_low", "efficiency_ci_high"),
        exposed_comm_s=estimate("exposed_comm_s", "exposed_comm_ci_low_s", "exposed_comm_ci_high_s"),
        oversubscribed=_true(record["oversubscribed"]),
        noise_flag="" if _missing(noise) or noise is False else "noisy" if _true(noise) else str(noise),
        ci_reached=None if _missing(reached) else _true(reached),
        precision=text("precision") or "full",
        shrink=whole("shrink") or 1,
        workload_options_json=text("workload_options_json"),
        data=text("data") or "loader",
        evaluation_samples_per_s=estimate(
            "evaluation_samples_per_s", "evaluation_samples_per_s_ci_low", "evaluation_samples_per_s_ci_high"
        ),
    )


def raw_launches(summary: RunSummary, column: str) -> dict[str, list[float]]:
    """The ok launches' values of a column, by case and in order of their rounds."""
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


def _bucket(value: Any) -> float | str | None:
    if _missing(value):
        return None
    try:
        return float(value)
    except ValueError:
        return str(value)


def panels_of(rows: Iterable[Row]) -> list[Panel]:
    """The rows in groups that may be compared, the largest first; groups of base cases alone are left out."""
    rows = list(rows)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.panel_key, []).append(row)
    linked = {_but_links(group[0]) for group in groups.values() if group[0].fabric}
    keys = [
        key
        for key, group in groups.items()  # what only joins the groups of fabrics is no group of its own
        if not (_but_links(group[0]) in linked and all(row.needs_no_link for row in group))
    ]
    worth = [key for key in keys if any(row.strategy not in BOUNDS for row in groups[key])]
    kept = worth or keys
    kept.sort(key=lambda key: -sum(row.ok for row in groups[key]))
    return [Panel(name=_panel_name(groups[key][0], keys), rows=joined(groups[key], rows)) for key in kept]


def joined(members: Sequence[Row], rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one fabric, with those of all `rows` before them that use no link and share every other setting."""
    if not members[0].fabric:
        return tuple(members)
    found = [row for row in rows if row.needs_no_link and _but_links(row) == _but_links(members[0])]
    layouts = {
        (row.strategy, *row.variant[:-1]): row.layout
        for row in sorted(members, key=lambda row: sum(other.layout == row.layout for other in members))
    }  # of several layouts one rank starts the longest series
    free = [replace(row, layout=layouts.get((row.strategy, *row.variant[:-1]), "")) for row in found]
    return (*free, *members)


def _but_links(row: Row) -> tuple[Any, ...]:
    key = row.panel_key
    return (*key[:_LINKS], *key[_LINKS + 1 :])


def _panel_name(row: Row, keys: Sequence[tuple[Any, ...]]) -> str:
    """What sets this panel apart from the run's others; empty where there is only one."""
    words = {
        "workload": row.workload,
        "device": row.device,
        "dtype": row.dtype,
        "scaling": f"{row.scaling} scaling",
        "batch": format_batch(row.scaling, row.batch),
        "threads_per_rank": f"{row.threads_per_rank} threads per rank",
        "loader_workers": row.loading if row.data == "loader" else "",
        "fabric": link_words(row.fabric) or "the machine's own links",
        "compute": f"{row.compute} computation",
        "dilation": f"dilated x{row.dilation:g}",
        "precision": "full precision" if row.precision == "full" else f"{row.precision} autocast",
        "data": row.loading,
        "shrink": f"shrunk /{row.shrink}" if row.shrink != 1 else "not shrunk",
        "workload_options_json": _apart(row.workload_options_json, [str(key[_OPTIONS]) for key in keys]),
    }
    differing = [name for index, name in enumerate(_PANEL_FIELDS) if len({key[index] for key in keys}) > 1]
    return ", ".join(word for word in dict.fromkeys(words[name] for name in differing) if word)


def _apart(mine: str, every: Sequence[str]) -> str:
    """Those of a workload's options that are not the same everywhere, such as `slow_factor=1.5`."""
    others = [_options(text) for text in dict.fromkeys(every)]
    return ", ".join(
        f"{key}={json.dumps(value)}"
        for key, value in _options(mine).items()
        if any(other.get(key) != value for other in others)
    )


def settings_apart(rows: Sequence[Row]) -> dict[str, str]:
    """For each case the links and options that tell these rows apart, by its id."""
    every = [row.workload_options_json for row in rows]
    linked = len({row.fabric for row in rows}) > 1
    return {
        row.case_id: ", ".join(
            word
            for word in (short_links(row.fabric) if linked else "", _apart(row.workload_options_json, every))
            if word
        )
        for row in rows
    }


def label_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """What must stand beside a figure's numbers: the labels of the rows in it that have most; empty if none has."""
    return max((tuple(virtual_words(row)) for row in rows), key=_count, default=())


def _count(words: tuple[str, ...]) -> int:
    return len(words)


def fullest(rows: Sequence[Row]) -> Row:
    """The one whose setting holds for a figure: on emulated links not the one rank, which uses none."""
    return max(rows, key=lambda row: len(virtual_words(row)))


def setting_of(row: Row) -> str:
    """A panel's fixed setting in words, for captions: workload, scaling and batch, threads, link."""
    words = [
        row.workload,
        f"{row.scaling} scaling with a {format_batch(row.scaling, row.batch)}",
        f"{row.threads_per_rank} thread{'s' if row.threads_per_rank != 1 else ''} per rank",
        row.dtype if row.precision == "full" else f"{row.dtype} with {row.precision} autocast",
        row.device.upper() if row.device == "cpu" else "GPU",
    ]
    if row.data == "memory" or row.loader_workers:
        words.append(row.loading)
    words += virtual_words(row)
    if row.dilation != 1:
        words.append("times virtual")
    return ", ".join(words)


def setting_but_links(rows: Sequence[Row]) -> str:
    """The setting of rows that differ in their links: without those."""
    row = fullest(rows)
    link = virtual_words(row)[0] if row.fabric else ""
    return ", ".join(part for part in setting_of(row).replace(link, "").split(", ") if part)


def label_but_links(row: Row) -> tuple[str, ...]:
    """A figure's label where links differ from point to point."""
    return ("emulated links", *(word for word in virtual_words(row) if not word.startswith("emulated")))


_SHARED = (
    *("workload", "device", "dtype", "scaling", "batch", "threads_per_rank", "loader_workers", "compute"),
    *("dilation", "precision", "data", "shrink", "world_size", "nodes"),
)


def place_of(row: Row) -> tuple[Any, ...]:
    """What cases must share that are told apart by links or options alone, strategy and cap left out."""
    return tuple(getattr(row, name) for name in _SHARED)


def variant_of(row: Row) -> tuple[Any, ...]:
    """A case's strategy with its options and bucket cap, whatever its layout."""
    return (row.strategy, *row.variant[:-1], row.bucket)
