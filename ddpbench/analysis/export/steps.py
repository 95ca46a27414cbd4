"""Steps and transfers of a run as tables, from the records of successful launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ddpbench.records import Address, Block, CommRecord, RankStart, RunDir, StepRecord, read_launch
from ddpbench.records.plan import read_plan
from ddpbench.records.reader import RankRecords

STEP_COLUMNS = {
    "case_id": ("string", "the case, as in cases.csv"),
    "round": ("int64", "its round, from 0"),
    "rank": ("int64", "the rank whose step it is"),
    "phase": ("string", "`timed`, `instrumented` or `evaluation`"),
    "block": ("int64", "number of the block of steps between two barriers"),
    "step": ("int64", "number of the step in its block"),
    "step_time_s": ("float64", "this rank's own time of the step, seconds"),
}
"""Columns of `load_steps`: dtype and meaning."""
TRANSFER_COLUMNS = {
    "case_id": ("string", "the case, as in cases.csv"),
    "round": ("int64", "its round, from 0"),
    "rank": ("int64", "the rank whose part in the transfer it is"),
    "step": ("int64", "number of the instrumented step"),
    "bucket": ("int64", "number of the bucket or message"),
    "op": ("string", "`all_reduce`, `gather`, `send` ..."),
    "bytes": ("int64", "of the transfer, as trained with"),
    "sent_bytes": ("Int64", "that this rank handed to the network, where it was counted"),
    "handed_over_s": ("float64", "seconds from the beginning of this rank's step until it was handed over"),
    "duration_s": ("float64", "seconds from there until this rank had its result; time in a queue is in it"),
}
"""Columns of `load_transfers`: dtype and meaning."""


def _launches(run: RunDir) -> Iterator[tuple[str, int, RankRecords]]:
    from ddpbench.analysis.read.cases import read_cases

    plan = read_plan(run)
    good: dict[str, set[int]] = {
        case.case_id: {launch.round for launch in case.good} for case in read_cases(run, plan)
    }
    for planned, case_id in zip(plan.cases, plan.ids, strict=True):
        for number in sorted(good.get(case_id, ())):
            address = Address(planned.case, case_id, "measure", number, plan.run_id)
            for rank in read_launch(run.launch(case_id, "measure", number), address).ranks:
                yield case_id, number, rank


def load_steps(run: RunDir) -> pd.DataFrame:
    """Return a table with one row per rank and step, without the warm-up. Its columns are `STEP_COLUMNS`.

    Raises:
        IdentityError: `run` is not a run directory, or has another schema.
    """
    parts: list[dict[str, Any]] = []
    for case_id, number, rank in _launches(run):
        own = next((start.rank for start in rank.of(RankStart)), rank.rank)
        for block in rank.of(Block):
            if block.phase == "warmup" or not block.step_ns:
                continue
            count = len(block.step_ns)
            parts.append(
                {
                    "case_id": np.repeat(case_id, count),
                    "round": np.repeat(number, count),
                    "rank": np.repeat(own, count),
                    "phase": np.repeat(block.phase, count),
                    "block": np.repeat(block.index, count),
                    "step": np.arange(count),
                    "step_time_s": np.asarray(block.step_ns, dtype=float) / 1e9,
                }
            )
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) if parts else [] for name in STEP_COLUMNS
    }
    return pd.DataFrame(columns).astype({name: dtype for name, (dtype, _) in STEP_COLUMNS.items()})


def load_transfers(run: RunDir) -> pd.DataFrame:
    """Return a table with one row per rank and transfer of an instrumented step. Its columns are `TRANSFER_COLUMNS`.

    Raises:
        IdentityError: `run` is not a run directory, or has another schema.
    """
    rows: list[tuple[Any, ...]] = []
    for case_id, number, rank in _launches(run):
        own = next((start.rank for start in rank.of(RankStart)), rank.rank)
        begins = {step.step: step.start_ns for step in rank.of(StepRecord)}
        rows += [
            (
                *(case_id, number, own, each.step, each.bucket, each.op, each.bytes, each.sent_bytes),
                (each.start_ns - begins[each.step]) / 1e9,
                (each.end_ns - each.start_ns) / 1e9,
            )
            for each in rank.of(CommRecord)
            if each.step in begins
        ]
    frame = pd.DataFrame(rows, columns=list(TRANSFER_COLUMNS))
    return frame.astype({name: dtype for name, (dtype, _) in TRANSFER_COLUMNS.items()})
