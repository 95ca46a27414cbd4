"""The table of memory per rank: when it is shown, and its contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report.page import build
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import memory
from ddpbench.spec import Budget, Case
from tests.report.reading import read
from tests.synthetic import MS, ORIGIN_NS, RankLaunch, case_of, write_launch, write_plan, write_sessions

MIB = 2**20
STEPS: list[Any] = [(ORIGIN_NS, ORIGIN_NS + 10 * MS, [("forward", ORIGIN_NS, ORIGIN_NS + 4 * MS)], [])]
SINGLE = case_of("single", 1)
DDP = case_of("ddp", 2)
SMALL = case_of("ddp", 2, bucket_cap_mb=1.0)
FSDP = case_of("fsdp", 2, backend="gloo", algorithm="reduce_scatter", schedule="overlapped")
WHOLE = (16 * MIB, 16 * MIB, 32 * MIB)
HALF = (8 * MIB, 8 * MIB, 16 * MIB)


def summary_of(folder: Path, held: dict[Case, tuple[tuple[int, int, int] | None, int]]) -> RunSummary:
    """Return a run whose cases hold this, and have this peak."""
    run = RunDir(folder)
    write_plan(run, list(held), Budget(rounds_min=1, rounds_max=1))
    for case, (bytes_of, peak) in held.items():
        rank = RankLaunch(steps=STEPS, held=bytes_of, peak_memory_bytes=peak)
        write_launch(run, case, 0, [rank] * case.world_size)
    write_sessions(run)
    return summarize(run)


def test_what_is_sharded_stands_beside_what_is_whole(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        {
            SINGLE: (WHOLE, 300 * MIB),
            DDP: (WHOLE, 320 * MIB),
            SMALL: (WHOLE, 321 * MIB),  # holds the same: one line, with the higher peak
            FSDP: (HALF, 280 * MIB),
        },
    )
    section = memory.section(rows_of(summary))
    assert section is not None
    (table,) = section.tables
    assert [column.title for column in table.columns] == [
        "Strategy",
        "Ranks",
        "Parameters, MiB",
        "Gradients, MiB",
        "Optimizer state, MiB",
        "Sum, MiB",
        "Peak resident, MiB",
    ]
    assert [[cell.text for cell in line] for line in table.rows] == [
        ["single", "1", "16.0", "16.0", "32.0", "64.0", "300"],
        ["DDP", "2", "16.0", "16.0", "32.0", "64.0", "321"],
        ["FSDP", "2", "8.00", "8.00", "16.0", "32.0", "280"],
    ]
    assert "Activations" in section.notes[0]
    page = read(build(summary).html)
    assert page.all("h2", id_="memory")
    assert any("FSDP: gloo has no reduce-scatter" in each.text for each in page.all("p"))


def test_it_is_shown_only_where_strategies_differ_in_it(tmp_path: Path) -> None:
    same = summary_of(tmp_path / "same", {SINGLE: (WHOLE, MIB), DDP: (WHOLE, 2 * MIB)})
    assert memory.section(rows_of(same)) is None
    none = summary_of(tmp_path / "none", {SINGLE: (None, MIB), FSDP: (None, MIB)})  # an older run
    assert memory.section(rows_of(none)) is None
    assert "Memory per rank" not in build(same).html
