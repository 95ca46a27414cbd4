"""Transfer times by size: means, intervals and nccl-tests' bus bandwidth by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.steps.communication import FACTORS, OTHER_CLOCK, line_of
from ddpbench.records import RunDir
from ddpbench.report.method import TERMS
from ddpbench.report.parts import Section
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import communication
from ddpbench.spec import Budget, Case, PlannedCase
from tests.frames import framed
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_run,
)

DDP, SMALL, MASTER = case_of("ddp", 2), case_of("ddp", 2, bucket_cap_mb=1.0), case_of("master", 2)


def rank(transfers: Sequence[tuple[str, int, float, float]]) -> RankLaunch:
    """Return one step with transfers (operation, bytes, start ms, end ms)."""
    at = ORIGIN_NS + 10**9
    sent = [(i, op, size, at + int(a * MS), at + int(b * MS)) for i, (op, size, a, b) in enumerate(transfers)]
    step = (at, at + 100 * MS, [("forward", at, at + 50 * MS)], sent)
    return RankLaunch(blocks=[[100 * MS] * 10], steps=[step])


def table_of(
    path: Path, launches: dict[Case, Sequence[Sequence[RankLaunch]]], *, crowded: bool = False
) -> pd.DataFrame:
    run = RunDir(path / "run")
    rounds = max(map(len, launches.values()))
    planned = [PlannedCase(case=case, oversubscribed=crowded) for case in launches]
    write_plan(run, planned, Budget(rounds_min=1, rounds_max=rounds))
    for case, found in launches.items():
        write_proof(run, case)
        for number, ranks in enumerate(found):
            write_launch(run, case, number, ranks)
    return framed(summarize(run).communication.transfers)


def test_times_run_from_the_last_start_to_the_last_end(tmp_path: Path) -> None:
    def at(late: int) -> list[RankLaunch]:
        first = [("all_reduce", 1000, 0, 8), ("all_reduce", 2000, 10, 20), ("all_reduce", 4000, 30, 50)]
        second = [
            ("all_reduce", 1000, 4, 7 + late),
            ("all_reduce", 2000, 12, 20),
            ("all_reduce", 4000, 30, 50),
        ]
        return [rank(first), rank(second)]

    table = table_of(tmp_path, {DDP: [at(0), at(5), at(3)]}).set_index("bytes")
    # 1000 bytes: from 4 to 8 in the first round, to 12 in the second, to 10 in the third
    assert list(table["time_s"]) == pytest.approx([0.006, 0.008, 0.020])
    assert list(table["busbw"]) == pytest.approx([1000 / 0.006, 2000 / 0.008, 4000 / 0.020])  # 2(n-1)/n is 1
    assert list(table["rounds"]) == [3, 3, 3]
    # by nccl-tests' clock: each rank from its call to its result, so 8 and 3, 8 and 8, 8 and 6; then 10 and 8
    assert list(table["call_time_s"]) == pytest.approx([0.007, 0.009, 0.020])  # medians of 5.5, 8 and 7 first
    assert list(table["call_busbw"]) == pytest.approx([1000 / 0.007, 2000 / 0.009, 4000 / 0.020])
    assert list(table["transfers"]) == [3, 3, 3]
    assert table.filter(like="_ci_").isna().all(axis=None), "three rounds have no interval of a median"
    five = table_of(tmp_path / "five", {DDP: [at(0), at(5), at(3), at(1), at(2)]}).set_index("bytes")
    ends = ["time_ci_low_s", "time_s", "time_ci_high_s"]
    assert list(five.loc[1000, ends]) == pytest.approx([0.004, 0.005, 0.008])
    ends = ["busbw_ci_low", "busbw", "busbw_ci_high"]
    assert list(five.loc[1000, ends]) == pytest.approx([1000 / 0.008, 1000 / 0.005, 1000 / 0.004])
    ends = ["call_time_ci_low_s", "call_time_s", "call_time_ci_high_s"]
    assert list(five.loc[1000, ends]) == pytest.approx([0.0055, 0.0065, 0.008])


def test_caps_of_one_strategy_share_a_curve_and_a_round(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        {
            DDP: [[rank([("all_reduce", 1000, 0, 4), ("all_reduce", 5000, 10, 20)])] * 2] * 2,
            SMALL: [[rank([("all_reduce", 1000, 0, 8), ("all_reduce", 500, 10, 12)])] * 2] * 2,
        },
    )
    assert list(table["group"].unique()) == [0]
    assert list(table["bytes"]) == [500, 1000, 5000]
    assert list(table["time_s"]) == pytest.approx([0.002, 0.006, 0.010])
    assert list(table["transfers"]) == [2, 4, 2]
    assert list(table["rounds"]) == [2, 2, 2]


def test_two_sizes_are_no_curve_and_crowded_ranks_make_none(tmp_path: Path) -> None:
    two = [[rank([("gather", 1000, 0, 4), ("scatter", 1000, 10, 20)])] * 2]
    assert table_of(tmp_path / "1", {MASTER: two}).empty
    three = [[rank([("all_reduce", size, size, size + 5) for size in (10, 20, 30)])] * 2]
    assert len(table_of(tmp_path / "2", {DDP: three})) == 3
    assert table_of(tmp_path / "3", {DDP: three}, crowded=True).empty


def test_an_operation_without_a_factor_has_no_busbw(tmp_path: Path) -> None:
    own = [[rank([("halving", size, size, size + 5) for size in (10, 20, 30)])] * 2]
    table = table_of(tmp_path, {DDP: own})
    assert list(table["time_s"]) == pytest.approx([0.005] * 3)
    assert table["busbw"].isna().all()


def test_a_collective_in_groups_has_the_factor_of_its_group(tmp_path: Path) -> None:
    """Four ranks; 0 and 1, and 2 and 3 gather among themselves: (n-1)/n is a half, and no time is shared."""
    sizes = (1000, 2000, 4000)

    def own(group: int) -> RankLaunch:
        at = ORIGIN_NS + 10**9
        sent = [
            (2 * n + group, "all_gather", size, at + n * 20 * MS, at + (n * 20 + 10) * MS)
            for n, size in enumerate(sizes)
        ]
        return RankLaunch(blocks=[[100 * MS] * 10], steps=[(at, at + 100 * MS, [], sent)], group=2)

    shards = case_of("fsdp", 4, options_json='{"replicas": 2}', backend="gloo")
    table = table_of(tmp_path, {shards: [[own(0), own(0), own(1), own(1)]]})
    assert list(table["world_size"]) == [2, 2, 2]
    assert list(table["factor"]) == [0.5] * 3
    assert list(table["transfers"]) == [2, 2, 2]
    assert list(table["time_s"]) == pytest.approx([0.010] * 3)
    assert list(table["busbw"]) == pytest.approx([0.5 * size / 0.010 for size in sizes])


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [  # nccl-tests, doc/PERFORMANCE.md; gather and scatter there count n times one rank's bytes
        ("all_reduce", 4, 1.5),
        ("reduce_scatter", 4, 0.75),
        ("all_gather", 8, 7 / 8),
        ("broadcast", 8, 1),
        ("gather", 4, 4 * 3 / 4),
    ],
)
def test_factors(op: str, ranks: int, factor: float) -> None:
    assert FACTORS[op][1](ranks) == pytest.approx(factor)


def test_a_line_through_sizes_tells_latency_from_bandwidth() -> None:
    times = {size: 0.002 + 8e-9 * size for size in (2**20, 2**22, 2**24)}
    changes = (-1e-4, 0, 1e-4, 3e-4, -2e-4)
    rounds = [{size: seconds + change for size, seconds in times.items()} for change in changes]
    line = line_of(times, [*rounds, {2**20: 1.0}])  # a round that lacks sizes has no line
    assert line is not None
    assert (line.latency.value, line.byte_s) == (pytest.approx(0.002), pytest.approx(8e-9))
    assert (line.latency.low, line.latency.high) == (pytest.approx(0.0018), pytest.approx(0.0023))
    assert line.share(2**20) == pytest.approx(0.002 / (0.002 + 8e-9 * 2**20))
    assert line_of({2**20: 1.0, 2**21: 2.0, 3 * 2**20: 3.0}) is None  # too near
    assert line_of({2**20: 1.0, 2**24: 2.0}) is None  # too few
    bent = line_of({2**20: 0.010, 2**22: 0.001, 2**24: 0.020})
    assert bent is not None
    assert bent.share(2**20) is None


@pytest.mark.parametrize(
    ("backend", "ends"), [("nccl", (10, 20, 30, 40, 50)), ("gloo", (20, 20, 40, 40, 50))]
)
def test_what_was_handed_over_at_once_reads_as_if_it_had_been_alone(
    tmp_path: Path, backend: str, ends: Sequence[int]
) -> None:
    """Five buckets on a link that needs 10 ms for each: one after the other, or two of them sharing it."""
    buckets = [("all_reduce", 1000 + number, 0, end) for number, end in enumerate(ends)]
    found = table_of(tmp_path, {case_of("ddp", 2, backend=backend): [[rank(buckets)] * 2] * 2})
    assert list(found["time_s"]) == pytest.approx([0.010] * 5)
    assert list(found["busbw"]) == pytest.approx([(1000 + number) / 0.010 for number in range(5)])


def test_wherever_busbw_is_defined_the_other_clock_is_told(tmp_path: Path) -> None:
    """The glossary, from which pages take terms, and the figure: both use the module's sentence."""
    assert "includes waiting for late ranks" in OTHER_CLOCK
    assert OTHER_CLOCK in dict(TERMS)["busbw"]
    summary = summarize(write_run(tmp_path / "run", 12, rounds=3))
    section = communication.section(summary.communication.transfers, rows_of(summary))
    assert section is not None
    assert section.pictures
    for picture in section.pictures:
        assert OTHER_CLOCK in picture.caption
        assert "busbw by call, GB/s" in [column.title for column in picture.table.columns]


def test_the_glossary_converts_exposed_communication() -> None:
    (meaning,) = (meaning for term, meaning in TERMS if "exposed communication" in term)
    assert "of Holistic Trace Analysis (HTA) includes waiting for ranks" in meaning


def test_transfers_under_two_values_of_an_option_are_named_apart(tmp_path: Path) -> None:
    buckets = [("all_reduce", 1 << (10 + number), 0, 1000 << number) for number in range(5)]
    cases = [case_of("ddp", 2, workload_options_json=f'{{"width": {width}}}') for width in (16, 64)]
    run = RunDir(tmp_path / "run")
    write_plan(run, [PlannedCase(case=case) for case in cases], Budget(rounds_min=2, rounds_max=2))
    for case in cases:
        for number in range(2):
            write_launch(run, case, number, [rank(buckets)] * 2)
    summary = summarize(run)
    section = communication.section(summary.communication.transfers, rows_of(summary))
    assert len(section.pictures) == len(section.notes) == 2
    for width, picture, note in zip((16, 64), section.pictures, section.notes, strict=True):
        assert picture.group.startswith(f"width={width}, DDP")
        assert picture.table.caption == f"Transfers by size, width={width} · DDP"
        assert str(note).startswith(f"width={width} · DDP, all_reduce, 2 ranks: ")


LAYOUTS = [
    case_of("ddp", 4, fabric="8 Gbit/s", nodes=nodes, ranks_per_node=4 // nodes, algorithm="ring")
    for nodes in (1, 2, 4)
]


def drawn_layouts(path: Path, microseconds: Callable[[int], int]) -> Section:
    """Return the section of a run of `LAYOUTS`, with transfers of five sizes that take these times."""
    sizes = [1 << (16 + number) for number in range(5)]
    run = RunDir(path / "run")
    write_plan(run, [PlannedCase(case=case) for case in LAYOUTS], Budget(rounds_min=2, rounds_max=2))
    for case in LAYOUTS:
        ends = [0.0]
        for size in sizes:
            ends.append(ends[-1] + microseconds(size) / 1e3)
        transfers = [("all_reduce", size, *times) for size, times in zip(sizes, pairwise(ends), strict=True)]
        for number in range(2):
            write_launch(run, case, number, [rank(transfers)] * 4)
    summary = summarize(run)
    return communication.section(summary.communication.transfers, rows_of(summary))


def test_the_layouts_on_the_fewest_and_the_most_nodes_are_drawn(tmp_path: Path) -> None:
    section = drawn_layouts(tmp_path, lambda size: size // 400)
    assert [picture.group for picture in section.pictures] == [
        "DDP 1 x 4, all_reduce, 4 ranks",
        "DDP 4 x 1, all_reduce, 4 ranks",
    ]
    assert "2 x 2" in str(section.notes[-1])


def test_no_title_gives_a_rate_above_that_of_the_links(tmp_path: Path) -> None:
    """A link of 1 GB/s passes a burst after a pause: short transfers seem faster than it, and the table says so."""
    fast = drawn_layouts(
        tmp_path / "fast", lambda size: size // 1000 if size < 1 << 19 else size // 400
    ).pictures[1]
    assert fast.heading.endswith("64 KiB take 0.0650 ms, 1 MiB take 2.62 ms (0.600 GB/s)"), fast.heading
    assert "GB/s), 1 MiB" not in fast.alt
    notes = [column.title for column in fast.table.columns].index("Notes")
    assert [row[notes].text for row in fast.table.rows] == ["above the links' rate"] * 3 + [""] * 2
    slow = drawn_layouts(tmp_path / "slow", lambda size: size // 400).pictures[1]
    assert "64 KiB take 0.163 ms (0.60" in slow.heading
    assert "Notes" not in [column.title for column in slow.table.columns]
