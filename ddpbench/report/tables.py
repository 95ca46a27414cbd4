"""The tables that belong to no figure: all cases, data_parallel's phases, failures, proofs, the machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import pandas as pd

from ddpbench.analysis.read.fabrics import FabricRun
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.parts import Cell, Column, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import variant_words
from ddpbench.report.standing import AS_GOOD, BEST, CANNOT_TELL, stands
from ddpbench.report.words import Estimate, series_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import PANEL, cap_order, virtual_words
from ddpbench.spec.links import link_words, short_links
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_bit_rate


def summary_table(summary: RunSummary, rows: Sequence[Row]) -> Table:
    """Return one row a case, failed and skipped ones included; columns for every setting that varies.

    Bucket caps and launches that are alike are told in the caption instead: notes need the room.
    """
    caps = {row.bucket_name for row in rows if row.case.bucket_cap_mb is not None}
    launches = {row.launches for row in rows} or {0}
    cases = [row.case for row in rows]
    names = [name for name in (*PANEL, "nodes") if name not in _TOLD_BESIDE]
    varied = grouping.settings_apart(cases, names)
    room = _MOST_COLUMNS - _ALWAYS - (len(caps) > 1) - (len(launches) > 1)
    most = len(varied) if len(varied) <= room else room - 1
    extra, rest = varied[:most], varied[most:]
    columns = (
        Column("Strategy"),
        Column("Ranks", number=True),
        *([Column("Bucket")] if len(caps) > 1 else []),
        *(Column(setting.title) for setting in extra),
        *([Column("Other settings")] if rest else []),
        Column("Backend, link"),
        Column("Samples/s", number=True),
        Column("Speed-up", number=True),
        Column("Efficiency", number=True),
        Column("Step, ms", number=True),
        Column("Exposed, ms", number=True),
        *([Column("Launches", number=True)] if len(launches) > 1 else []),
        Column("Notes"),
    )
    best = {case_id for case_id, one in stands(summary, "ranks").items() if one.verdict == BEST}
    variants = variant_words(rows)
    ties = _ties(summary)
    shared = (
        [word for word in virtual_words(rows[0].case) if all(word in virtual_words(row.case) for row in rows)]
        if rows
        else []
    )
    fabrics = {row.case.fabric for row in rows if row.case.fabric}
    links = link_words(fabrics.pop()) if len(fabrics) == 1 else ""
    told = [
        f"All cases{f', each with {series_of(shared)}' if shared else ''}",
        f"links, where they are used: {links}" if links and links not in shared else "",
        *(f"buckets, where there are any: {cap}" for cap in caps if len(caps) == 1),
        f"in brackets 95 % t-intervals over launches{f', {max(launches)} each' if len(launches) == 1 else ''}",
    ]
    return Table(
        caption=(
            f"{'; '.join(filter(None, told))}. Bold: best at its number of ranks among cases that exchange gradients, "
            "where every other is shown to be slower."
        ),
        columns=columns,
        rows=tuple(
            (
                Cell(text=row.strategy_name, under=variants[row.case_id]),
                Cell.count(row.case.world_size),
                *([_cap(row)] if len(caps) > 1 else []),
                *(Cell(text=setting.text(row.case)) for setting in extra),
                *([Cell(text=_rest(row, rest))] if rest else []),
                Cell(
                    text=row.case.backend,
                    under=", ".join(
                        "emulated" if word == links else word
                        for word in virtual_words(row.case)
                        if word not in shared
                    ),
                    key=f"{row.case.backend} {short_links(row.case.fabric)}",
                ),
                *_numbers(row, strong=row.case_id in best),
                *([Cell.count(row.launches)] if len(launches) > 1 else []),
                Cell(text="; ".join(word for word in (ties.get(row.case_id, ""), row.flaws) if word)),
            )
            for row in rows
        ),
        row_ids=tuple(f"case-{row.case_id}" for row in rows),
    )


_TOLD_BESIDE = ("fabric", "compute", "dilation", "shrink")
"""Settings that stand with the backend."""
_MOST_COLUMNS = 13
"""More do not fit beside each other at 1280 pixels: settings that vary are then told together in the last one."""
_ALWAYS = 9
"""Columns that every summary has."""


def _rest(row: Row, settings: Sequence[grouping.Setting]) -> str:
    return "; ".join(
        f"{setting.title.lower()} {text}" for setting in settings if (text := setting.text(row.case))
    )


def _cap(row: Row) -> Cell:
    return Cell(
        text=row.bucket_name,
        key=1e9 * cap_order(row.case.bucket_cap_mb)[0] + cap_order(row.case.bucket_cap_mb)[1],
    )


def _numbers(row: Row, *, strong: bool) -> Iterator[Cell]:
    shown = row.ok
    step: Estimate | None = row.step_time_s.scaled(1e3) if row.step_time_s is not None else None
    yield Cell.estimate(row.samples_per_s if shown else None, strong=strong)
    yield Cell.estimate(row.speedup if shown else None)
    yield Cell.estimate(row.efficiency if shown else None)
    yield Cell.estimate(step if shown else None)
    exposed = row.exposed_comm_s.scaled(1e3) if row.exposed_comm_s is not None else None
    yield Cell.estimate(exposed if shown else None)


def _ties(summary: RunSummary) -> dict[str, str]:
    """Words for the best of each compared group, for those shown to be as good, and for what cannot be told."""
    words: dict[str, list[str]] = {}
    for topic, what in _TOPICS.items():
        for case_id, one in stands(summary, topic).items():
            if one.verdict in (BEST, AS_GOOD, CANNOT_TELL) and not (topic == "ranks" and case_id in words):
                words.setdefault(case_id, []).append(one.words(what))
    return {case_id: "; ".join(items) for case_id, items in words.items()}


_TOPICS = {
    "buckets": "bucket cap",
    "strategies": "strategy",
    "layouts": "layout",
    "ranks": "case of its ranks",
}
"""What is compared, the widest group last: it is told of cases that are in no other."""


def data_parallel_section(summary: RunSummary, all_rows: Sequence[Row]) -> Section:
    """Says what data_parallel's phases are, or why there are none."""
    anchor, title = "data-parallel", "DataParallel's phases"
    rows = [row for row in all_rows if traits_of(row.case).one_process]
    if not rows:
        absent = "This sweep has no data_parallel case."
        return Section(anchor=anchor, title=title, absent=absent)
    notes: tuple[str, ...] = ()
    if any(row.case.device == "cpu" for row in rows):
        notes = (
            (
                "On CPU torch.nn.DataParallel would call the bare module. What was measured is a threaded "
                "equivalent of torch.nn.DataParallel: one process, a thread for each replica, and the same phases "
                "(scatter, replicate, parallel forward, gather, backward, reduce to the master)."
            ),
        )
    absent = ""
    if summary.phases.empty:
        absent = "No data_parallel case has instrumented steps: its phases are not known."
    return Section(anchor=anchor, title=title, notes=notes, absent=absent)


def phases_table(summary: RunSummary, rows: Sequence[Row]) -> Table | None:
    """Mean time of each named span, one column a case, in the order in which they occur."""
    frame = summary.phases
    if frame.empty:
        return None
    by_id = {row.case_id: row for row in rows}
    cases = [case for case in dict.fromkeys(map(str, frame["case_id"])) if case in by_id][:8]
    spans = list(dict.fromkeys(map(str, frame.sort_values("order", kind="stable")["span"])))
    means = {
        (str(record["case_id"]), str(record["span"])): float(record["mean_s"])
        for record in frame.to_dict("records")
    }
    left = frame["case_id"].nunique() - len(cases)
    more = f" {left} further cases are in the embedded JSON." if left else ""
    return Table(
        caption=f"Mean time of each phase of an instrumented step, ms.{more}",
        columns=(Column("Phase"), *(Column(f"{by_id[case].name}, ms", number=True) for case in cases)),
        rows=tuple(
            (Cell(text=span), *(Cell.ms(means.get((case, span))) for case in cases)) for span in spans
        ),
        sortable=False,
    )


def failures_table(
    summary: RunSummary, rows: Sequence[Row], affected: Mapping[str, Sequence[int]]
) -> Table | None:
    """Return what is not ok, and the figures from which it is missing (`affected`, by case)."""
    if not summary.failures:
        return None
    status = {row.case_id: row for row in rows}
    lines = []
    for failure in summary.failures:
        row = status.get(failure.case_id)
        if row is not None and row.ok:
            effect = f"one of its launches is left out; {row.launches} remain"
        else:
            figures = affected.get(failure.case_id, ())
            listed = series_of([str(number) for number in figures])
            effect = f"figure{'s' if len(figures) > 1 else ''} {listed}" if figures else "no figure"
        lines.append(
            (
                Cell(text=failure.label, link=f"#case-{failure.case_id}" if row is not None else ""),
                Cell(
                    text="all" if failure.round is None else str(failure.round + 1),
                    key=float(failure.round or -1),
                ),
                Cell(text=failure.status),
                Cell(text=failure.phase),
                Cell(text=failure.reason),
                Cell(text=failure.last_log_line),
                Cell(text=effect),
            )
        )
    columns = ("Configuration", "Round", "Status", "Phase", "Reason", "Last log line", "Missing from")
    return Table(
        caption="Failures and exclusions",
        columns=tuple(Column(title) for title in columns),
        rows=tuple(lines),
    )


def proofs_table(summary: RunSummary, rows: Sequence[Row]) -> Table | None:
    """Return the worst error of each comparison by strategy, what was allowed, and how many cases were held to it."""
    frame = summary.proofs
    if frame.empty:
        return None
    names = {row.case_id: row.strategy_name for row in rows}
    groups: dict[tuple[str, str, str], list[Mapping[Any, Any]]] = {}
    for record in frame.to_dict("records"):
        key = (names.get(str(record["case_id"]), str(record["case_id"])), record["compared"], record["dtype"])
        groups.setdefault(key, []).append(record)
    lines = []
    for (strategy, compared, dtype), records in groups.items():
        worst = max(records, key=lambda record: (not record["passed"], _error(record["error"])))
        failed = sum(not record["passed"] for record in records)
        lines.append(
            (
                Cell(text=strategy),
                Cell(text=compared),
                Cell(text=dtype),
                Cell(text=_scientific(worst["error"]), key=_error(worst["error"]), number=True),
                Cell(text=_scientific(worst["tolerance"]), key=float(worst["tolerance"]), number=True),
                Cell.count(len(records)),
                Cell(text=f"{failed} failed" if failed else "all passed", strong=failed > 0),
                Cell(text="; ".join(dict.fromkeys(str(r["note"]) for r in records if r["note"]))),
            )
        )
    columns = (
        Column("Strategy"),
        Column("Compared with one process"),
        Column("Type"),
        Column("Worst relative error", number=True),
        Column("Allowed", number=True),
        Column("Comparisons", number=True),
        Column("Verdict"),
        Column("Note"),
    )
    return Table(caption="Proofs, done before anything was timed", columns=columns, rows=tuple(lines))


def _error(value: Any) -> float:
    return float("inf") if pd.isna(value) else float(value)


def _scientific(value: Any) -> str:
    if pd.isna(value):
        return "not a number"
    return "0" if value == 0 else f"{float(value):.1e}"


def machine_table(machine: Mapping[str, object], part: str, caption: str) -> Table:
    """`identity` or `context` of machine.json, flattened."""
    found = machine.get(part)
    pairs = list(_flat(found)) if isinstance(found, Mapping) else []
    rows = tuple((Cell(text=name), Cell(text=value)) for name, value in pairs)
    return Table(caption=caption, columns=(Column("What"), Column("Found")), rows=rows, sortable=False)


def fabrics_table(fabrics: Sequence[FabricRun]) -> Table | None:
    """How the emulated networks were made and what their links reached in the proof; None where there are none."""
    if not fabrics:
        return None
    rows = tuple(
        (
            Cell(text=short_links(one.links)),
            Cell(text="" if one.nodes is None else f"{one.nodes} x {one.ranks_per_node or 1}", key=one.nodes),
            Cell(text="" if one.dilation is None else f"{one.dilation:g}", key=one.dilation, number=True),
            Cell(text="" if one.shrink is None else f"{one.shrink:g}", key=one.shrink, number=True),
            Cell(
                text="not recorded"
                if one.privileged is None
                else "root"
                if one.privileged
                else "an unprivileged user namespace"
            ),
            Cell(text=one.kernel),
            Cell(text=_rates(one.asked_bit_per_s)),
            Cell(text=_rates(one.reached_bit_per_s)),
            Cell(
                text=""
                if one.widest_gap is None
                else f"{100 * one.widest_gap:+.1f}".replace("-", "\N{MINUS SIGN}"),
                key=one.widest_gap,
                number=True,
            ),
            Cell(text="" if one.dropped is None else f"{one.dropped:,}", key=one.dropped, number=True),
        )
        for one in fabrics
    )
    columns = (
        Column("Links, nominal"),
        Column("Nodes x ranks"),
        Column("Dilated by", number=True),
        Column("Shrunk by", number=True),
        Column("Made by"),
        Column("Kernel"),
        Column("Asked"),
        Column("Reached"),
        Column("Widest gap, %", number=True),
        Column("Packets dropped", number=True),
    )
    return Table(
        caption=(
            "Emulated networks, as made: dilation and shrinking slow links by their product. Before measuring all "
            "links carried traffic at once, and the kernel counted it."
        ),
        columns=columns,
        rows=rows,
    )


def _rates(rates: Sequence[float]) -> str:
    """`100 Mbit/s`, or the lowest and the highest where they differ, to three digits."""
    if not rates:
        return ""
    low, high = (format_bit_rate(float(f"{value:.3g}")) for value in (min(rates), max(rates)))
    return low if low == high else f"{low} to {high}"


def _flat(data: Mapping[Any, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(str(item) for item in value) or "none"
        else:
            yield name, "none" if value is None or value == "" else str(value)


def embedded_json(summary: RunSummary) -> str:
    """Return the whole summary as JSON: every number of the page, and those it has no room for."""
    frames = {
        name: json.loads(_json(getattr(summary, name)))
        for name in (
            *("cases", "launches", "breakdown", "phases", "proofs", "comparisons"),
            *("inputs", "snapshots", "waterfall", "transfers", "network", "curves", "goals"),
        )
    }
    data = {
        "name": summary.name,
        "question": summary.question,
        "counts": {name: getattr(summary.counts, name) for name in _COUNTS},
        "stop_reason": summary.stop_reason,
        "findings": [
            {
                "text": item.text,
                "evidence": item.evidence,
                "verdict": item.verdict,
                "kind": item.kind,
                "cases": item.cases,
                "ratio": None if item.ratio is None else asdict(item.ratio),
            }
            for item in summary.findings
        ],
        "validity": list(summary.validity),
        "checks": {
            "outcome": summary.checks.outcome,
            "rules": [asdict(rule) for rule in summary.checks.rules],
            "violations": [violation.to_json() for violation in summary.checks.violations],
        },
        "fabrics": [asdict(one) for one in summary.fabrics],
        "failures": [{name: getattr(item, name) for name in _FAILURE} for item in summary.failures],
        "machine": summary.machine,
        "experiment_toml": summary.experiment_toml,
        "laws": [_plain(curve) for curve in summary.laws],
        "one_step": asdict(summary.one_step) if summary.one_step is not None else None,
        **frames,
    }
    return json.dumps(data, default=str, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """`asdict` without its deep copies: JSON is made of it at once."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_COUNTS = ("planned", "succeeded", "failed", "skipped_cases", "cases", "rounds")
_FAILURE = ("case_id", "label", "round", "status", "phase", "reason", "last_log_line")


def _json(frame: pd.DataFrame) -> str:
    text: str = frame.to_json(orient="split", index=False, double_precision=15)
    return text
