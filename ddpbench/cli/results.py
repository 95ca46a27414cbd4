"""Print the results of a sweep at its end, as a table of cases and sentences, or as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.finding import each_tag_once
from ddpbench.analysis.invariants.checked import IMPOSSIBLE
from ddpbench.analysis.statistics.estimands import MEDIAN, WITHIN_ROUNDS
from ddpbench.cli.lines import aligned, columns_here, say, show
from ddpbench.naming import Namer, columns
from ddpbench.records import RunDir
from ddpbench.records.archive import outdated
from ddpbench.report.captions import shared_words
from ddpbench.report.rows import rows_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import Label
from ddpbench.strategies.traits import traits_of
from ddpbench.text_safety import JOINT, on_one_line
from ddpbench.units import format_number

if TYPE_CHECKING:
    import pandas as pd

    from ddpbench.analysis.summary import RunSummary
    from ddpbench.naming import Setting
    from ddpbench.spec import Case

MOST_FAILED = 5
_OVERSUBSCRIBED = "* oversubscribed: the ranks have more threads than there are cores"


_ESTIMANDS = f"samples/s: {MEDIAN}; speed-up: {WITHIN_ROUNDS}"


def exit_code(summary: RunSummary) -> int:
    """Return 0 if at least one case is ok and all others are ok or skipped; otherwise 1."""
    statuses = {one.status for one in summary.by_case}
    return 0 if statuses <= {"ok", "skipped"} and "ok" in statuses else 1


def print_results(summary: RunSummary, *, quiet: bool = False) -> None:
    """Print a run's table of cases and the sentences about it; if `quiet`, only failures, the answer and warnings."""
    if not quiet:
        show(*table(_marked(summary), summary.planned, columns_here()))
    for sentence in [*answered(summary), *doubts(summary)] if quiet else sentences(summary):
        say(sentence)


def _marked(summary: RunSummary) -> pd.DataFrame:
    """Return the cases without numbers that must be wrong, and without speed-ups over another framework."""
    frame = summary.cases.copy()
    wrong = frame["case_id"].isin(list(summary.conclusions.checks.withheld)) & (frame["status"] == "ok")
    foreign = frame["case_id"].map(lambda one: traits_of(summary.planned[one]).engine != "torch").astype(bool)
    frame.loc[wrong, "status"] = IMPOSSIBLE
    frame.loc[wrong | foreign, ["speedup", "efficiency"]] = math.nan
    frame.loc[wrong, ["samples_per_s", "samples_per_s_ci_low", "samples_per_s_ci_high"]] = math.nan
    return frame


def as_json(summary: RunSummary, run: RunDir, **more: Any) -> str:
    """Return a run's cases, findings, answer and checks as JSON; fields in `more` are added or replace these."""
    course, conclusions = summary.course, summary.conclusions
    result = {
        "run_dir": str(run.path),
        "report": str(run.report) if run.report.exists() else None,
        "stop_reason": course.stop_reason,
        "measured_share": course.measured_share,
        "findings": [finding.line for finding in conclusions.findings],
        "answer": [one.line for one in conclusions.answer],
        "claims": [asdict(one) for one in conclusions.claims],
        "violations": [violation.to_json() for violation in conclusions.checks.violations],
        "cases": json.loads(summary.cases.to_json(orient="records")),
    }
    return json.dumps({**result, **more}, indent=1)


def table(frame: pd.DataFrame, planned: Mapping[str, Case], width: int) -> list[str]:
    """Return the lines of a table with a row for each case: the settings that distinguish it, and its results.

    Settings have columns or, if these are too wide, a single column with the cases' full names.
    """
    cases = [planned[case_id] for case_id in frame["case_id"]]
    records: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[assignment]
    targets = sorted(frame["target_loss"].dropna().unique())
    results = [_head(targets), *(_results(record, to_loss=bool(targets)) for record in records)]
    settings = settings_of(cases)
    heads = ["strategy", "ranks", "bucket", *(setting.title.lower() for setting in settings)]
    rows = [heads + results[0]]
    for case, record, values in zip(cases, records, results[1:], strict=True):
        caps = [record[name] for name in ("bucket_cap_mb", "same_buckets_mb") if record[name] is not None]
        cap = " = ".join(map(str, caps))
        own = [case.strategy, str(case.world_size), cap, *(setting.text(case) for setting in settings)]
        rows.append(own + values)
    texts = range(3, 3 + len(settings))
    lines = aligned(rows, width, left=(0, *texts, len(rows[0]) - 1), breakable=texts)
    if max(map(len, lines)) > width:
        names = Namer(cases)
        shared = names.shared()
        rows = [["case", *results[0]]]
        rows += [
            [names.full(case, but=shared), *values] for case, values in zip(cases, results[1:], strict=True)
        ]
        lines = [f"all cases: {JOINT.join(shared)}"] if shared else []
        lines += aligned(rows, width, left=(0, len(rows[0]) - 1), gaps=(" ",))
    return [*lines, _OVERSUBSCRIBED] if any(record["oversubscribed"] for record in records) else lines


def sentences(summary: RunSummary) -> list[str]:
    """Return sentences about a run: its failed cases, answer, findings, omissions and failed checks."""
    lines = [_ESTIMANDS] if any(one.samples_per_s is not None for one in summary.by_case) else []
    lines += [summary.course.alone] if summary.course.alone else []
    lines += answered(summary)
    lines += [
        f"- {finding.line}"
        for finding in summary.conclusions.findings
        if finding not in summary.conclusions.answer
    ]
    return [*lines, *doubts(summary)]


def doubts(summary: RunSummary) -> list[str]:
    """Return sentences about omitted records and failed checks, both of which cast doubt on the answer."""
    conclusions = summary.conclusions
    return [*conclusions.left_out, *([conclusions.checks.line] if conclusions.checks.line else [])]


def answered(summary: RunSummary) -> list[str]:
    """Return a line for each failed case, then the answer's sentences, each with its qualifications.

    Labels that all cases share have a line before the answer.
    """
    answer, words = each_tag_once(summary.conclusions.answer), shared_words(rows_of(summary))
    shared = [tag for one in answer for tag in one.tags if tag in words]
    shared = shared if any(isinstance(tag, Label) for tag in shared) else []
    lines = [*failed(summary), *([f"all cases: {JOINT.join(shared)}"] if shared else [])]
    for one in answer:
        rest = replace(one, tags=tuple(tag for tag in one.tags if tag not in shared)).beneath
        lines += [one.text, *([f"  {'; '.join(rest)}"] if rest else [])]
    return lines


def failed(summary: RunSummary) -> list[str]:
    """Return a line with the reason for each case that is not ok: at most `MOST_FAILED`, then the number of the rest.

    Cases skipped by the plan are left out, but not cases skipped during their proof.
    """
    refused = {one.case_id for one in summary.course.failures if one.status == "skipped" and one.phase}
    names = Namer(summary.planned.values())
    lines = [
        f"{names.full(summary.planned[one.case_id])}: {one.status}: {on_one_line(one.error)}"
        for one in summary.by_case
        if one.status not in ("ok", "skipped") or one.case_id in refused
    ]
    more = len(lines) - MOST_FAILED
    return (
        [*lines[:MOST_FAILED], f"{more} more: see the report, Failures and exclusions"] if more > 0 else lines
    )


def say_outdated(summary: RunSummary) -> None:
    """Print a sentence on standard error if a run's archive lacks some of its launches."""
    if line := outdated(RunDir(Path(summary.about.run_path))):
        say(line, sys.stderr)


def _head(targets: Sequence[float]) -> list[str]:
    losses = [f"s to a loss of {', '.join(f'{target:g}' for target in targets)}"] if targets else []
    return ["samples/s", "95 % interval", "speed-up", "efficiency", *losses, "status"]


def _results(record: Mapping[str, Any], *, to_loss: bool) -> list[str]:
    low, high = record["samples_per_s_ci_low"], record["samples_per_s_ci_high"]
    return [
        _number(record["samples_per_s"]),
        f"{format_number(low)} to {format_number(high)}" if _known(low) and _known(high) else "",
        *(f"{record[name]:.2f}" if _known(record[name]) else "" for name in ("speedup", "efficiency")),
        *([_number(record["time_to_loss_s"])] if to_loss else []),
        f"{record['status']}{' *' if record['oversubscribed'] else ''}",
    ]


def _number(value: float | None) -> str:
    return "" if value is None or not _known(value) else format_number(value)


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def settings_of(cases: Sequence[Case]) -> list[Setting]:
    """Return the settings other than strategy, ranks and bucket that distinguish these cases.

    Options are compared within a strategy and number of ranks, links within the cases that have them.
    """
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.strategy, case.world_size), []).append(case)
    within = {name for group in groups.values() for name in grouping.differing(group)}
    linked = grouping.differing([case for case in cases if case.fabric], ("fabric",))
    names = [
        name
        for name, facet in grouping.FACETS.items()
        if (facet.role == "panel" and name != "fabric")
        or name in linked
        or (name in within and (name == "nodes" or facet.role == "variant"))
    ]
    return columns(cases, names)
