"""An axis over any field of a case: each case has a separate point, label and column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis.table.columns import COLUMNS
from ddpbench.report.captions import setting_of
from ddpbench.report.rows import Row, rows_of
from ddpbench.report.series import panels_of
from ddpbench.spec import Case
from ddpbench.spec.grouping import FACETS
from tests.report.handmade import case_row, handmade_summary
from tests.spec.test_grouping import AXES, pair


def rows(*cases: Case) -> list[Row]:
    """Return the cases as a report reads them, measured."""
    records = [case_row(case, rate=700.0 + 10 * number) for number, case in enumerate(cases)]
    return rows_of(handmade_summary(cases=pd.DataFrame(records, columns=list(COLUMNS))))


def sized(case: Case, world_size: int) -> Case:
    """Return the case at another number of ranks on one node, with either batch held fixed."""
    batch = {"global_batch": case.local_batch * world_size}
    if case.scaling == "strong":
        batch = {"global_batch": case.global_batch, "local_batch": case.global_batch // world_size}
    changes: dict[str, Any] = {"world_size": world_size, **batch}
    return replace(case, **changes)


@pytest.mark.parametrize("name", AXES)
def test_every_case_has_a_point_of_its_own(name: str) -> None:
    axis = pair(name)
    sizes = (2, 4) if name not in ("world_size", "nodes", "ranks_per_node") else ()
    cases = [sized(case, world) for case in axis for world in sizes] or [*axis]
    found = rows(*cases)
    panels = panels_of(found)
    assert sum(len(panel.rows) for panel in panels) == len(cases)
    assert len({panel.name for panel in panels}) == len(panels)
    points: list[tuple[str, str, int, object]] = []
    for panel in panels:
        lines, _ = panel.of_strategies()
        assert len({line.name for line in lines}) == len(lines)
        for line in lines:
            assert len({row.case.world_size for row in line.rows}) == len(line.rows)
            points += [
                (panel.name, line.name, row.case.world_size, row.case.bucket_cap_mb) for row in line.rows
            ]
    assert len(set(points)) == len(points)
    if name != "bucket_cap_mb":  # a curve is drawn at one cap
        assert len(points) == len(cases)


@pytest.mark.parametrize("name", [name for name, facet in FACETS.items() if facet.role != "bookkeeping"])
def test_every_field_has_a_column(name: str) -> None:
    assert name in COLUMNS


def test_a_caption_tells_the_setting_of_its_panel() -> None:
    one, other = pair("precision")
    first, second = rows(one, other)
    assert setting_of(first) != setting_of(second)
