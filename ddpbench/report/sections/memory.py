"""The section on memory per rank, for runs whose strategies need different amounts of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpbench.report.parts import Cell, Column, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import variant_words
from ddpbench.report.words import number
from ddpbench.spec import grouping
from ddpbench.spec.grouping import GroupKey
from ddpbench.strategies.traits import traits_of

_MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRow:
    """A row of the memory table, for all cases that hold the same amount of model state.

    The amount that a case holds is taken from the rank that has the most model state.
    """

    row: Row
    words: str
    """Words that distinguish the case's variant from others of its strategy."""
    held: tuple[int, int, int]
    """Parameters, gradients and optimizer state, bytes."""
    peak: int | None
    """The highest peak of these cases, bytes."""


def section(rows: Sequence[Row]) -> Section | None:
    """Return the section on memory per rank; None if all cases of each model hold the same amount of model state."""
    kept = _kept(rows)
    models: dict[tuple[Any, ...], set[tuple[int, int, int]]] = {}
    for one in kept:
        models.setdefault(_model(one.row), set()).add(one.held)
    shown = [one for one in kept if len(models[_model(one.row)]) > 1]
    if not shown:
        return None
    several = len({_model(one.row) for one in shown}) > 1
    devices = {one.row.case.device for one in shown}
    peak = (
        "resident" if devices == {"cpu"} else "allocated" if devices == {"cuda"} else "resident or allocated"
    )
    titles = ("Parameters", "Gradients", "Optimizer state", "Sum", f"Peak {peak}")
    columns = (
        *([Column("Workload"), Column("Type")] if several else []),
        Column("Strategy"),
        Column("Ranks", number=True),
        *(Column(f"{title}, MiB", number=True) for title in titles),
    )
    lines = tuple(
        (
            *([Cell(text=one.row.case.workload), Cell(text=one.row.case.dtype)] if several else []),
            Cell(text=one.row.strategy_name, under=one.words),
            Cell.count(one.row.case.world_size),
            *(_mib(size) for size in (*one.held, sum(one.held), one.peak)),
        )
        for one in shown
    )
    note = (
        "Parameters, gradients and optimizer state are the tensors that the rank which holds most of them has between "
        "backward and update, of what is sharded its shard. Activations, buckets, layers gathered for the moment and "
        "the libraries are not in them; in the peak of the timed steps all of it is."
    )
    if "cpu" in devices:
        note += (
            " On the CPU so is what the C library keeps of freed memory, which is much where layers are gathered and "
            "given up in every step; with MALLOC_MMAP_THRESHOLD_=131072 in the environment it gives that back at once."
        )
    left = list(dict.fromkeys(row.strategy_name for row in rows if traits_of(row.case).one_process))
    if left:
        note += f" Left out, for one process holds all replicas: {', '.join(left)}."
    return Section(
        anchor="memory",
        title="Memory per rank",
        question="What does a rank hold of the model's state, and what does sharding it spare?",
        tables=(Table(caption="Memory per rank", columns=columns, rows=lines, fold="Memory per rank"),),
        notes=(note,),
    )


def _kept(rows: Sequence[Row]) -> list[MemoryRow]:
    words = variant_words(rows)
    by_state: dict[tuple[Any, ...], MemoryRow] = {}
    for row in rows:
        held = row.held_bytes
        if not row.ok or traits_of(row.case).one_process or held is None:
            continue
        key = (
            _model(row),
            row.case.strategy,
            words[row.case_id],
            row.case.world_size,
            held,
        )
        before = by_state.get(key)
        peaks = (row.peak_memory_bytes, before.peak if before is not None else None)
        by_state[key] = MemoryRow(
            row=row if before is None else before.row,
            words=words[row.case_id],
            held=held,
            peak=max((peak for peak in peaks if peak is not None), default=None),
        )
    return list(by_state.values())


def _model(row: Row) -> GroupKey:
    return grouping.deciding("state", row.case)


def _mib(size: int | None) -> Cell:
    if size is None:
        return Cell(text="", number=True)
    return Cell(text=number(size / _MIB), key=size, number=True)
