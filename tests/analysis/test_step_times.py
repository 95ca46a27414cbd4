"""Times of single steps by rank, recomputed from records, and for runs of every shape."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import statistics
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.invariants.checked import Bounded, Checked, Violation
from ddpbench.analysis.results import QUANTILES, RankTimes
from ddpbench.analysis.step_times import MOST_RANKS
from ddpbench.naming import Namer
from ddpbench.records import RunDir
from ddpbench.report.draw.canvas import draw
from ddpbench.report.figure_texts import short_enough
from ddpbench.report.parts import Picture, Section
from ddpbench.report.rows import Row, rows_of
from ddpbench.report.sections import step_times
from ddpbench.spec import Budget, PlannedCase
from tests.emulated import Emulated, emulated_case
from tests.kept import unpacked
from tests.synthetic import Model, RankLaunch, case_of, write_launch, write_plan, write_proof, write_run

COMPUTING = ("forward", "backward", "optimizer")
Spans = Iterable[tuple[int, int]]


def length(spans: Spans) -> int:
    """Return the total length of the union of spans."""
    total, end = 0, -1
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile by linear interpolation between sorted values."""
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[math.ceil(place)] - ordered[low])


def records_of(case_folder: Path) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return the records of a case's launches, by launch and rank."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(dict)
    for path in sorted(case_folder.glob("launch-*/rank-*.jsonl")):
        rank = int(path.name.split("-")[1].split(".")[0])
        lines = path.read_text(encoding="utf-8").splitlines()
        found[path.parent.name][rank] = [json.loads(line) for line in lines]
    return found


@pytest.mark.parametrize("strategy", ["ddp-w2-bdefault", "master-w2", "data_parallel-w2", "single-w1"])
def test_numbers_of_a_kept_run_are_those_of_its_records(tmp_path: Path, strategy: str) -> None:
    run = unpacked("quick-two-cores-gloo", tmp_path)
    summary = summarize(run)
    with tarfile.open(run.path / "records.tar.xz") as archive:
        archive.extractall(tmp_path / "raw", filter="data")
    for folder in (tmp_path / "raw" / "cases").glob(f"{strategy}-*"):
        launches = records_of(folder)
        assert len(launches) == 8
        found = {one.rank: one for one in summary.steps.by_rank if one.case_id == folder.name}
        assert set(found) == set(next(iter(launches.values())))
        for rank, one in found.items():
            own = [launch[rank] for launch in launches.values()]
            single = [
                time_ns
                for records in own
                for record in records
                if record["kind"] == "block" and record["phase"] == "timed"
                for time_ns in record["step_ns"]
            ]
            assert one.steps == len(single)
            assert one.median_s == pytest.approx(statistics.median(single) / 1e9, rel=1e-12)
            assert one.p95_s == pytest.approx(percentile(single, 95) / 1e9, rel=1e-12)
            steps = [[record for record in records if record["kind"] == "step"] for records in own]
            assert one.step_s == pytest.approx(
                statistics.fmean(
                    statistics.fmean(step["end_ns"] - step["start_ns"] for step in of) for of in steps
                )
                / 1e9
            )
            if strategy != "data_parallel-w2":  # whose own spans are computation, too
                computed = (
                    statistics.fmean(
                        length((start, end) for name, start, end in step["spans"] if name in COMPUTING)
                        for step in of
                    )
                    for of in steps
                )
                assert one.compute_s == pytest.approx(statistics.fmean(computed) / 1e9)
            parts = (one.compute_s, one.exposed_comm_s, one.exposed_wait_s, one.data_s, one.not_attributed_s)
            assert sum(part or 0.0 for part in parts) == pytest.approx(one.step_s)


def test_the_wait_of_a_kept_run_is_bounded_by_its_transfers(tmp_path: Path) -> None:
    """A bound of what DDP exposes: each all-reduce from the rank's start to its end, without computation."""
    run = unpacked("quick-two-cores-gloo", tmp_path)
    with tarfile.open(run.path / "records.tar.xz") as archive:
        archive.extractall(tmp_path / "raw", filter="data")
    (folder,) = (tmp_path / "raw" / "cases").glob("ddp-w2-bdefault-*")
    launches = records_of(folder)
    for one in (one for one in summarize(run).steps.by_rank if one.case_id == folder.name):
        most: list[float] = []
        for launch in launches.values():
            by_step: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for record in launch[one.rank]:
                if record["kind"] == "comm":
                    by_step[record["step"]].append((record["start_ns"], record["end_ns"]))
            steps = [record for record in launch[one.rank] if record["kind"] == "step"]
            most.append(
                statistics.fmean(
                    length([*by_step[step["step"]], *computing(step)]) - length(computing(step))
                    for step in steps
                )
            )
        assert one.exposed_comm_s is not None
        assert one.exposed_wait_s is not None
        assert 0 < one.exposed_comm_s + one.exposed_wait_s <= statistics.fmean(most) / 1e9 * (1 + 1e-9)


def computing(step: dict[str, Any]) -> list[tuple[int, int]]:
    return [(start, end) for name, start, end in step["spans"] if name in COMPUTING]


def section_of(run: RunDir) -> Section:
    summary = summarize(run)
    return step_times.section(summary.steps.by_rank, summary.conclusions.checks, rows_of(summary))


def picture_of(run: RunDir) -> Picture:
    (picture,) = section_of(run).pictures
    assert draw(picture).svg
    return picture


def planned(*cases: Any) -> list[PlannedCase]:
    return [PlannedCase(case=case) for case in cases]


@pytest.mark.usefixtures("painted")
def test_the_rank_that_waits_is_named_with_the_one_that_it_waits_for(tmp_path: Path) -> None:
    model = Model(skew_s=0.003, noise=0.0)
    section = section_of(
        write_run(tmp_path / "run", planned(case_of("single", 1), case_of("ddp", 2)), rounds=3, model=model)
    )
    (picture,) = section.pictures
    (table,) = section.tables
    titles = [column.title for column in table.columns]
    waits = titles.index("Waiting for ranks, ms")
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    waited = rows["DDP, 2 ranks", "rank 0"][waits].text
    assert 0.5 < float(waited) <= 3.0, "rank 1 computes 3 ms longer, in part while the first bucket is sent"
    assert rows["DDP, 2 ranks", "rank 1"][waits].text == "0.00"
    assert picture.heading == f"Rank 0 of DDP at 2 ranks waits {waited} ms a step for rank 1"
    for row in table.rows:
        step, *parts = (float(cell.key or 0.0) for cell in row[2:])
        assert math.fsum(parts) == pytest.approx(step)
    assert draw(picture).narrow


def test_of_many_ranks_some_stand_for_all_and_the_others_are_counted(tmp_path: Path) -> None:
    model = Model(skew_s=0.0001, noise=0.0, cores=64)
    run = write_run(tmp_path / "run", planned(case_of("ddp", 64)), rounds=2, blocks=1, steps=10, model=model)
    ranks = summarize(run).steps.by_rank
    assert [(one.rank, one.role) for one in ranks] == [
        (0, "least computation"),
        (31, "median computation"),
        (63, "most computation"),
    ]
    assert {one.ranks for one in ranks} == {64}
    picture = picture_of(run)
    assert "Shown of many ranks: rank 0 and those with least computation" in picture.caption
    assert "omitted: 61 of 64 ranks" in picture.caption
    assert re.fullmatch(r"Rank 0 of DDP at 64 ranks waits [\d.]+ ms a step for other ranks", picture.heading)


def test_ranks_that_wait_alike_wait_for_each_other(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", planned(case_of("ddp", 2)), rounds=2, blocks=2, steps=10)
    (row,) = rows_of(summarize(run))
    first, second = summarize(run).steps.by_rank

    def title(waits: Sequence[float]) -> str:
        times = [
            dataclasses.replace(one, exposed_wait_s=wait)
            for one, wait in zip((first, second), waits, strict=True)
        ]
        return step_times.section(times, Checked(), [row]).pictures[0].heading

    assert title([0.004, 0.003]) == "Ranks of DDP at 2 ranks wait for each other, up to 4.0 ms a step"
    assert title([0.004, 0.001]) == "Rank 0 of DDP at 2 ranks waits 4.0 ms a step for rank 1"
    assert title([0.0001, 0.0]).startswith("Steps of DDP at 2 ranks vary by "), "too little to speak of"


def test_one_process_of_many_replicas_has_one_strip(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", planned(case_of("data_parallel", 4, bucket_cap_mb=None)), rounds=2)
    (one,) = summarize(run).steps.by_rank
    assert (one.rank, one.ranks) == (0, 1)
    assert "vary by" in picture_of(run).heading


def test_times_of_a_dilated_run_are_virtual_and_labelled(tmp_path: Path) -> None:
    slow = emulated_case("ddp", 2, dilation=10.0)
    run = write_run(tmp_path / "run", planned(slow), rounds=2, blocks=2, model=Emulated())
    summary = summarize(run)
    picture = picture_of(run)
    assert "dilated x10" in picture.label
    (step_s,) = summary.cases["step_time_median_s"]
    assert summary.steps.by_rank[0].median_s == pytest.approx(step_s, rel=0.05)


def test_failed_launches_have_no_steps_and_their_cases_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", planned(case_of("ddp", 2), case_of("master", 2)), rounds=3, failing=1)
    summary = summarize(run)
    assert {one.case_id.split("-")[0] for one in summary.steps.by_rank} == {"ddp"}
    assert "Not shown: master, 2 ranks (failed)." in picture_of(run).caption


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", planned(case_of("ddp", 2)), rounds=2, failing=1)
    section = section_of(run)
    assert not section.shows
    assert section.absent == "No launch recorded the times of single steps."


def test_of_few_steps_no_percentile_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", planned(case_of("single", 1)), rounds=1, blocks=1, steps=3)
    (one,) = summarize(run).steps.by_rank
    assert one.steps < 20
    assert one.p95_s is None
    picture = picture_of(run)
    assert picture.heading.endswith("too few steps to tell how much they vary")
    assert "p95" not in "".join(cell.text for row in picture.table.rows for cell in row)


def test_steps_without_parts_have_strips_and_no_table_of_parts(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    case = case_of("single", 1)
    write_plan(run, planned(case), Budget(rounds_min=1, rounds_max=2))
    write_proof(run, case)
    for number in range(2):
        write_launch(run, case, number, [RankLaunch(blocks=[[10_000_000 + at for at in range(30)]])])
    section = section_of(run)
    assert section.pictures
    assert not section.tables
    (one,) = summarize(run).steps.by_rank
    assert one.step_s is None


def test_a_step_far_from_all_others_does_not_stretch_the_axis(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    case = case_of("single", 1)
    write_plan(run, planned(case), Budget(rounds_min=1, rounds_max=2))
    write_proof(run, case)
    times = [10_000_000 + 1000 * at for at in range(99)]
    write_launch(run, case, 0, [RankLaunch(blocks=[[*times, 3_000_000_000]])])
    picture = picture_of(run)
    assert "The axis ends before single steps of up to 3,000 ms." in picture.caption


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Row:
    """Return a case of two ranks."""
    folder = tmp_path_factory.mktemp("row")
    run = write_run(folder / "run", planned(case_of("ddp", 2)), rounds=2, blocks=1, steps=10)
    (found,) = rows_of(summarize(run))
    return found


def named(row: Row, name: str, **changed: Any) -> Row:
    """Return the case under another name, which is long, and with another strategy's name than others."""
    case = dataclasses.replace(row.case, **changed.pop("case", {}))
    changed.setdefault("strategy_name", name)
    return dataclasses.replace(row, case_id=name, case=case, names=Named(name), **changed)


class Named(Namer):
    """The name of every case."""

    def __init__(self, name: str) -> None:
        self._name = name

    def short(self, case: Any, of: Any = None, *, layouts: bool = True) -> str:
        return self._name


def ranks_of(
    row: Row, waits_s: Sequence[float | None], *, step_s: float = 0.02, **more: Any
) -> list[RankTimes]:
    """Return a case's ranks, of which those whose wait is None have no instrumented steps."""
    return [
        RankTimes(
            case_id=row.case_id,
            rank=rank,
            role="",
            ranks=len(waits_s),
            launches=5,
            steps=100,
            quantiles_s=tuple(step_s * (1 + at / 1e3) for at in QUANTILES),
            **dict.fromkeys(("step_s", "compute_s"), None if wait_s is None else step_s),
            **dict.fromkeys(
                ("exposed_comm_s", "data_s", "not_attributed_s"), None if wait_s is None else 0.0
            ),
            exposed_wait_s=wait_s,
            **more,
        )
        for rank, wait_s in enumerate(waits_s, start=len(more.get("servers", ())))
    ]


def doubted(*case_ids: str) -> Checked:
    """Return checks that show that instrumented steps of these cases take another time than timed ones."""
    return Checked(
        violations=tuple(
            Violation(
                invariant="instrumented_as_timed",
                statement="",
                meaning="",
                kind="doubtful",
                case_id=case_id,
                label="",
                broken=Bounded(what="", seen=2.0, most=1.0),
            )
            for case_id in case_ids
        )
    )


def test_steps_that_do_not_describe_the_timed_ones_are_marked_and_make_no_title(row: Row) -> None:
    rows = [named(row, "slow"), named(row, "fast")]
    times = [*ranks_of(rows[0], [0.009, 0.0]), *ranks_of(rows[1], [0.004, 0.0])]
    plain = step_times.section(times, Checked(), rows)
    assert plain.pictures[0].heading == "Rank 0 of slow at 2 ranks waits 9.0 ms a step for rank 1"
    assert "*" not in plain.tables[0].caption
    section = step_times.section(times, doubted("slow"), rows)
    assert section.pictures[0].heading == "Rank 0 of fast at 2 ranks waits 4.0 ms a step for rank 1"
    (table,) = section.tables
    assert [line[0].text for line in table.rows] == ["slow *", "slow *", "fast", "fast"]
    assert table.caption.endswith("*: the parts do not describe the timed steps, which take another time.")


def test_the_longest_wait_makes_the_title_and_not_the_largest_share(row: Row) -> None:
    rows = [named(row, "tiny"), named(row, "long")]
    times = [*ranks_of(rows[0], [0.0009, 0.0], step_s=0.001), *ranks_of(rows[1], [0.05, 0.0], step_s=1.0)]
    heading = step_times.section(times, Checked(), rows).pictures[0].heading
    assert heading == "Rank 0 of long at 2 ranks waits 50.0 ms a step for rank 1"


@pytest.mark.parametrize("waits", [[0.004, 0.0], [0.004, 0.004], [0.0, 0.0]])
def test_among_several_cases_a_title_names_its_own_however_long_the_name(
    row: Row, waits: Sequence[float]
) -> None:
    long = "DDP under a launcher (gpt:nano, one loader worker, static graph, gradients as views)"
    rows = [named(row, long, strategy_name="DDP"), named(row, "other", strategy_name="DDP")]
    times = [*ranks_of(rows[0], waits), *ranks_of(rows[1], [0.0, 0.0])]
    (picture,) = step_times.section(times, Checked(), rows).pictures
    assert short_enough(picture.heading)
    assert picture.heading.endswith(": DDP at 2 ranks")
    assert f"The title is on {long}." in picture.caption
    (alone,) = step_times.section(times[:2], Checked(), rows[:1]).pictures
    assert short_enough(alone.heading)
    assert "The title is on" not in alone.caption


def test_a_server_is_named_and_is_whom_workers_wait_for(row: Row) -> None:
    served = named(
        row, "async server", case={"strategy": "async_server", "algorithm": "async_server", "world_size": 3}
    )
    section = step_times.section(ranks_of(served, [0.004, 0.003], servers=(0,)), Checked(), [served])
    (picture,) = section.pictures
    assert picture.heading == "Rank 1 of async server at 3 ranks waits 4.0 ms a step for the server"
    assert "Not drawn of async server: rank 0, the server, which has no training steps." in picture.caption
    assert "In synchronous training" not in picture.caption
    many = [
        dataclasses.replace(one, ranks=9, role="most computation")
        for one in ranks_of(served, [0.0], servers=(0,))
    ]
    caption = step_times.section(many, Checked(), [served]).pictures[0].caption
    assert "Shown of many ranks: the first that trains and those with most computation" in caption


def test_a_rank_without_samples_is_a_server(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    case = case_of("async_server", 3, global_batch=16)
    write_plan(run, planned(case), Budget(rounds_min=1, rounds_max=2))
    write_proof(run, case)
    for number in range(2):
        write_launch(run, case, number, [RankLaunch(samples_per_step=0), RankLaunch(), RankLaunch()])
    assert [(one.rank, one.servers) for one in summarize(run).steps.by_rank] == [(1, (0,)), (2, (0,))]


def test_that_every_case_is_oversubscribed_is_decided_from_all(row: Row) -> None:
    crowded = [named(row, f"crowded {number}", oversubscribed=True) for number in range(12)]
    fair = named(row, "fair")
    first = [one.case_id for one in crowded]

    def heading(rows: Sequence[Row]) -> str:
        times = [one for each in rows for one in ranks_of(each, [0.004, 0.0])]
        return step_times.section(times, Checked(), rows, first).pictures[0].heading

    assert heading(crowded) == "Every case above one rank ran oversubscribed: none is ranked"
    assert heading([*crowded, fair]) == "Every case drawn above one rank ran oversubscribed: none is ranked"


def test_a_rank_without_instrumented_steps_is_left_out_and_named(row: Row) -> None:
    one = named(row, "three", case={"world_size": 3})
    section = step_times.section(ranks_of(one, [0.004, 0.003, None]), Checked(), [one])
    (table,) = section.tables
    assert [line[1].text for line in table.rows] == ["rank 0", "rank 1"]
    assert table.caption.endswith("Without instrumented steps: rank 2 of three.")
    assert section.pictures[0].heading == "Ranks of three at 3 ranks wait for each other, up to 4.0 ms a step"


def test_what_is_drawn_is_bounded_however_large_the_run(tmp_path: Path) -> None:
    times = [
        RankTimes(
            case_id=f"case-{number}",
            rank=rank,
            role="",
            ranks=4,
            launches=5,
            steps=100_000,
            quantiles_s=tuple(0.01 + at / 1e4 for at in QUANTILES),
            step_s=0.02,
            compute_s=0.01,
            exposed_comm_s=0.005,
            exposed_wait_s=0.004,
            data_s=0.001,
            not_attributed_s=0.0,
        )
        for number, rank in itertools.product(range(100), range(MOST_RANKS))
    ]
    run = write_run(tmp_path / "run", planned(case_of("ddp", 4)), rounds=2)
    (row,) = rows_of(summarize(run))
    rows = [dataclasses.replace(row, case_id=f"case-{number}") for number in range(100)]
    section = step_times.section(times, Checked(), rows)
    (picture,) = section.pictures
    assert picture.size[1] <= 450
    assert len(draw(picture).svg) < 60_000
    assert section.notes[0].startswith("4 of 100 cases are drawn")
    answered = step_times._drawn(step_times._cases(times, Checked(), rows), ["case-77"])
    assert answered[0].row.case_id == "case-77", "the answer's cases are drawn first"
