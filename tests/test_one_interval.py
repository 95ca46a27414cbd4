"""Two cases have one interval on a page, in every part that mentions them: over all kept runs."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

from ddpbench.analysis import RunSummary, summarize
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.records import RunDir
from ddpbench.report.rows import rows_of
from ddpbench.report.tables.cases import summary_table
from tests.kept import KEPT, REPORTS

Said = tuple[tuple[str, str], str, Interval]
"""Two cases in the order of their ids, where it is stated, and the first one's time per sample over the second's."""


def of_pair(a: str, b: str, where: str, ratio: Interval) -> Iterator[Said]:
    if ratio.low is not None and a != b:
        yield ((a, b), where, ratio) if a < b else ((b, a), where, ratio.reciprocal())


def ends(record: pd.Series, name: str, low: str, high: str) -> Interval:
    if pd.isna(record[name]) or pd.isna(record[low]):
        return Interval(value=1.0)
    return Interval(value=record[name], low=record[low], high=record[high])


def of_comparisons(summary: RunSummary) -> Iterator[Said]:
    # On other topics the ends are bounds of a case over the best of the others, and are called that.
    for held in summary.steps.comparisons:
        if held.topic in ("data", "precision"):
            yield from of_pair(held.case_id, held.best_case_id, f"comparison {held.topic}", held.ratio)
    memory = {one.group: one.case_id for one in summary.inputs if one.data == "memory"}
    for one in summary.inputs:
        if one.group in memory and one.ratio is not None:
            yield from of_pair(one.case_id, memory[one.group], "inputs", one.ratio)


def said(summary: RunSummary) -> Iterator[Said]:
    """Return what a page states about the throughput of two cases, everywhere."""
    cases = summary.cases.set_index("case_id")
    batch = cases["global_batch"]
    for claim in summary.conclusions.claims:
        for pair in claim.pairs:
            if pair.ratio is not None and (claim.of == "throughput" or batch[pair.a] == batch[pair.b]):
                yield from of_pair(pair.a, pair.b, "claims", pair.ratio)
    for finding in summary.conclusions.findings:
        if len(finding.cases) == 2 and finding.ratio is not None:
            yield from of_pair(*finding.cases, f"finding {finding.kind}", finding.ratio)
    yield from of_comparisons(summary)
    for case_id, record in cases.iterrows():
        base, speedup = record["baseline_case_id"], ends(record, *columns("speedup"))
        if not pd.isna(base):
            yield from of_pair(base, str(case_id), "speed-up", speedup)
    for loss in summary.steps.waterfall:
        if loss.item == "efficiency":
            own = cases.loc[loss.case_id]
            yield from of_pair(
                own["baseline_case_id"], loss.case_id, "waterfall", loss.share.scaled(own["world_size"])
            )
    for curve in summary.steps.laws:
        for point in curve.laws.points:
            case_id = curve.case_ids[point.world_size]
            yield from of_pair(cases.loc[case_id, "baseline_case_id"], case_id, "law", point.speedup)


def columns(name: str) -> tuple[str, str, str]:
    return name, f"{name}_ci_low", f"{name}_ci_high"


@pytest.mark.parametrize("name", KEPT)
def test_no_pair_of_a_page_has_two_intervals(name: str) -> None:
    summary = summarize(RunDir(REPORTS / name))
    found: dict[tuple[str, str], list[tuple[str, Interval]]] = {}
    for pair, where, ratio in said(summary):
        found.setdefault(pair, []).append((where, ratio))
    assert found
    for pair, intervals in found.items():
        (first, one), *others = intervals
        for where, other in others:
            assert (other.low, other.high) == pytest.approx((one.low, one.high)), (
                pair,
                first,
                where,
                one,
                other,
            )


def test_a_page_names_the_interval_of_a_speed_up_that_a_claim_is_about() -> None:
    summary = summarize(RunDir(REPORTS / "claim_model_parallel"))
    words = "A speed-up that a claim names has the claims' interval: simultaneous over"
    assert words in summary_table(summary, rows_of(summary)).reading
    other = summarize(RunDir(REPORTS / "claim_one_node_or_many"))
    assert words not in summary_table(other, rows_of(other)).reading
