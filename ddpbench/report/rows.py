"""The table of cases as typed rows. Nothing is computed from them here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.words import ranks
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import Key, cap_words, is_virtual, virtual_words
from ddpbench.strategies.traits import as_ring, is_ring, rings_among, traits_of
from ddpbench.units import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A case as the figures and tables need it; None where something was not measured."""

    case: Case
    case_id: str
    status: str
    error: str
    launches: int
    baseline_case_id: str
    step_time_s: Interval | None
    samples_per_s: Interval | None
    speedup: Interval | None
    speedup_rounds: int
    """Rounds with a launch of both; 0 where there is no base case beside it."""
    efficiency: Interval | None
    exposed_comm_s: Interval | None
    oversubscribed: bool
    noise_flag: str
    ci_reached: bool | None
    evaluation_samples_per_s: Interval | None = None
    same_caps: str = ""
    """Other bucket caps that make the same buckets, which it stands for: `1 MiB, 2 MiB`."""
    numbers: str = ""
    """The type of its parameters, and what autocast computes in."""
    ring: bool = False
    """Whether its strategy is called the ring that it is."""
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
        display = traits_of(self.case).display
        return as_ring(display) if self.ring else display

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
        return "; ".join(self.flaw_words)

    @property
    def flaw_words(self) -> tuple[str, ...]:
        """Each of them."""
        words = [] if self.ok else [self.status]
        if not traits_of(self.case).exact:
            known = traits_of(self.case).promise is not None
            words.append("another path of training" if known else "strategy not known here")
        if self.ok and self.samples_per_s is not None and not self.samples_per_s.has_ends:
            words.append("too few rounds for an interval")
        if self.oversubscribed:
            words.append("oversubscribed")
        if self.noise_flag:
            words.append(self.noise_flag)
        if self.ok and self.ci_reached is False:
            words.append("target width not reached")
        return tuple(words)

    @property
    def panel(self) -> Key:
        """What two cases must share to be compared in one pair of axes."""
        return grouping.panel(self.case)

    @property
    def variant(self) -> Key:
        """What sets apart two series of one panel, but for the bucket cap."""
        return (*grouping.variant(self.case), self.layout)


def rows_of(summary: RunSummary) -> list[Row]:
    """Return the summary's cases as typed rows, in their order."""
    found = [
        _row(record, summary.planned[str(record["case_id"])]) for record in summary.cases.to_dict("records")
    ]
    found = [replace(row, numbers=grouping.number_words(row.case, summary.machine)) for row in found]
    if rings_among(row.case for row in found):
        found = [replace(row, ring=is_ring(row.case)) for row in found]
    return _with_layouts(found)


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


def _row(record: Mapping[Any, Any], case: Case) -> Row:
    def text(name: str) -> str:
        return "" if _missing(record[name]) else str(record[name])

    def real(name: str) -> float | None:
        return None if _missing(record[name]) else float(record[name])

    def estimate(name: str, low: str, high: str) -> Interval | None:
        value = real(name)
        return None if value is None else Interval(value, real(low), real(high))

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
        speedup_rounds=0 if _missing(record["speedup_rounds"]) else int(record["speedup_rounds"]),
        efficiency=estimate("efficiency", "efficiency_ci_low", "efficiency_ci_high"),
        exposed_comm_s=estimate("exposed_comm_s", "exposed_comm_ci_low_s", "exposed_comm_ci_high_s"),
        oversubscribed=_true(record["oversubscribed"]),
        noise_flag="" if _missing(noise) or noise is False else "noisy" if _true(noise) else str(noise),
        ci_reached=None if _missing(reached) else _true(reached),
        same_caps=", ".join(f"{cap} MiB" for cap in text("same_buckets_mb").split("; ") if cap),
        evaluation_samples_per_s=estimate(
            "evaluation_samples_per_s", "evaluation_samples_per_s_ci_low", "evaluation_samples_per_s_ci_high"
        ),
    )


def raw_launches(
    summary: RunSummary, of: Literal["step_time_s", "samples_per_s"] = "step_time_s"
) -> dict[str, list[float]]:
    """Return what the ok launches measured, by case and in order of their rounds."""
    values: dict[str, list[float]] = {}
    for one in sorted(summary.launches, key=lambda one: (one.case_id, one.round)):
        value = one.step_time_s if of == "step_time_s" else one.samples_per_s
        if one.status == "ok" and value is not None:
            values.setdefault(one.case_id, []).append(value)
    return values


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value))


def _true(value: Any) -> bool:
    return not _missing(value) and str(value).lower() in ("true", "1", "1.0")
