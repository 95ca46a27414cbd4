"""The section on the time and bus bandwidth of transfers by size, and on the limits set by latency and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.results import TransferResult
from ddpbench.analysis.steps.communication import MIN_SIZES
from ddpbench.report.drawn import split
from ddpbench.report.parts import Picture, Section
from ddpbench.report.rows import Row
from ddpbench.report.sections.communication.curves import bound_by, curves_of
from ddpbench.report.sections.communication.figure import names_of, picture
from ddpbench.report.series import alike_but, panel_by_case, panels_of, variant_words
from ddpbench.report.words import not_drawn
from ddpbench.spec.grouping import GroupKey

_QUESTION = "Is communication bound by latency or by bandwidth?"


def section(transfers: Sequence[TransferResult], rows: Sequence[Row]) -> Section:
    """Return the section on transfers, with a figure for each of the first strategies that have enough sizes."""
    by_id = {row.case_id: row for row in rows}
    groups: dict[int, list[TransferResult]] = {}
    for one in transfers:
        if one.case_id in by_id:
            groups.setdefault(one.group, []).append(one)
    pictures: list[Picture] = []
    bound: list[str] = []
    drawn, others = split(_ends_first([(by_id[results[0].case_id], results) for results in groups.values()]))
    panels, words = panel_by_case(panels_of(rows)), variant_words(rows)
    for row, results in drawn:
        curves = curves_of(results)
        cases = [by_id[case_id] for case_id in dict.fromkeys(one.case_id for one in results)]
        of = " · ".join(filter(None, names_of(row, panels, words)))
        pictures.append(picture(row, cases, rows, curves, len(pictures)))
        bound += [sentence for curve in curves if (sentence := bound_by(of, curve))]
    rest = []
    for row, _ in others:
        panel, name = names_of(row, panels, words)
        rest.append(f"{name}, {panel or row.case.workload}")
    absent = ""
    if not pictures:
        absent = (
            f"No strategy has instrumented transfers of {MIN_SIZES} or more sizes on one number of ranks above one, "
            "on separate cores: too few to tell latency from bandwidth. A sweep over bucket_cap_mb gives them."
        )
    return Section(
        anchor="communication",
        title="Communication",
        question=_QUESTION,
        pictures=tuple(pictures),
        notes=(*bound, *not_drawn(rest)),
        absent=absent,
    )


_Drawable = tuple[Row, list[TransferResult]]


def _ends_first(groups: Sequence[_Drawable]) -> list[_Drawable]:
    layouts: dict[GroupKey, list[int]] = {}
    for row, _ in groups:
        layouts.setdefault(_but_layout(row), []).append(row.case.nodes)

    def between(group: _Drawable) -> bool:
        nodes = layouts[_but_layout(group[0])]
        return min(nodes) < group[0].case.nodes < max(nodes)

    return sorted(groups, key=between)


def _but_layout(row: Row) -> GroupKey:
    return alike_but(row, "nodes", "ranks_per_node", "world_size", "bucket_cap_mb")
