"""The page reads the same values of a case as `cases.csv` has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.case_summary import CaseSummary
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from tests.emulated import write_emulated
from tests.report.handmade import READ_FROM_ROWS, values_of
from tests.synthetic import write_everything

OF_ONE_NAME = (
    *("flops_per_sample", "mfu", "gradient_bytes", "peak_memory_bytes", "server_share_s"),
    *("expected_node_bytes", "traffic_ratio"),
)
OTHERS: dict[str, Callable[[CaseSummary], Any]] = {
    "held_parameter_bytes": lambda case: case.held_bytes and case.held_bytes[0],
    "held_optimizer_bytes": lambda case: case.held_bytes and case.held_bytes[2],
    "startup_s": lambda case: case.start and case.start.total.value,
    "startup_model_s": lambda case: case.start and case.start.parts.model_s,
    "node_received_bytes": lambda case: case.traffic and case.traffic.received,
}


@pytest.fixture(scope="module", params=[write_everything, write_emulated])
def summary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    write: Callable[[Path], RunDir] = request.param
    return summarize(write(tmp_path_factory.mktemp("run") / "run"))


def test_a_summary_of_a_case_says_what_its_row_does(summary: RunSummary) -> None:
    of_summary = {name: [getattr(one, name) for one in summary.by_case] for name in OF_ONE_NAME}
    of_summary |= {name: [read(one) for one in summary.by_case] for name, read in OTHERS.items()}
    for name, values in of_summary.items():
        wanted = [None if pd.isna(value) else value for value in summary.cases[name]]
        assert values == wanted, name
    for found, row in zip(summary.by_case, values_of(summary.cases), strict=True):
        for name in READ_FROM_ROWS:
            assert getattr(found, name) == getattr(row, name), (found.case_id, name)


def test_its_numbers_are_pythons_own(summary: RunSummary) -> None:
    """numpy rounds 2.675 to 2.68, Python does not."""

    def plain(value: Any) -> bool:
        if dataclasses.is_dataclass(value):
            return all(plain(getattr(value, one.name)) for one in dataclasses.fields(value))
        return all(map(plain, value)) if isinstance(value, tuple) else not isinstance(value, np.generic)

    assert all(map(plain, summary.by_case))
