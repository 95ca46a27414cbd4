"""Lost efficiency: the arithmetic by hand, and that it adds up for any numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.analysis import summarize
from ddpbench.analysis.bound import outrun
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.overlap import PARTS
from ddpbench.analysis.steps.waterfall import LOSSES, losses
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case, PlannedCase
from tests.frames import framed
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    RankLaunch,
    alternate,
    case_of,
    processes_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

SINGLE, ALONE, DDP, MASTER = (
    case_of("single", 1),
    case_of("independent", 2),
    case_of("ddp", 2),
    case_of("master", 2),
)


def parts(**given: float) -> dict[str, float]:
    return dict.fromkeys(PARTS, 0.0) | given


def test_losses_by_hand() -> None:
    # single: 10 ms, of which 8 forward and backward, 1 optimizer, 1 data; two ranks' step: 16 ms; E = 10/16
    base = parts(forward=3, backward=5, optimizer=1, data=1)
    mine = parts(
        forward=3, backward=6, optimizer=1.5, data=1, exposed_comm=2, exposed_wait=2, not_attributed=0.5
    )
    found = losses(mine, base, 10 / 16)
    assert found == pytest.approx(
        {
            "computation": 1 / 16,  # 9 ms where 8 were needed
            "exposed_comm": 2 / 16,
            "waiting": 2 / 16,
            "optimizer": 0.5 / 16,
            "data": 0.0,
            "not_attributed": 0.5 / 16,
            "timed": 0.0,
        }
    )
    assert sum(found.values()) == pytest.approx(6 / 16)
    # independent ranks: 12.5 ms per step, 10.5 of it computation: 2.5 of contention, 1.5 saved by DDP
    alone = parts(forward=4, backward=6.5, optimizer=1, data=1)
    split = losses(mine, base, 10 / 16, alone)
    assert split["contention"] == pytest.approx(2.5 / 16)
    assert split["own_computation"] == pytest.approx(-1.5 / 16)
    assert sum(split.values()) == pytest.approx(6 / 16)
    assert list(split) == [name for name in LOSSES if name not in ("computation", "rest")]


def test_what_timed_and_instrumented_steps_do_not_agree_on_is_no_part_s_loss() -> None:
    """Ranks that compute as fast as one show no contention, for any scatter of their timed steps."""
    base, mine = parts(forward=4, backward=6), parts(forward=4, backward=6, exposed_comm=2)
    for efficiency in (10 / 12, 0.8, 0.9):
        found = losses(mine, base, efficiency, base)
        assert (found["contention"], found["own_computation"]) == (0, 0)
        assert found["exposed_comm"] == pytest.approx(2 / 12)
        assert found["timed"] == pytest.approx(10 / 12 - efficiency)


def test_instrumentation_that_slows_all_alike_changes_no_loss() -> None:
    base, mine = parts(forward=4, backward=6), parts(forward=5, backward=6, exposed_comm=1)
    slowed = [{name: 1.3 * value for name, value in one.items()} for one in (mine, base)]
    assert losses(*slowed, 0.8) == pytest.approx(losses(mine, base, 0.8))


times = st.floats(0, 1)
steps = st.fixed_dictionaries(dict.fromkeys(PARTS, times)).filter(lambda found: sum(found.values()) > 0.01)


@given(steps, steps, steps, st.floats(0.01, 2))
def test_losses_and_efficiency_always_add_up_to_1(
    mine: Mapping[str, float], base: Mapping[str, float], alone: Mapping[str, float], e: float
) -> None:
    assert math.isclose(sum(losses(mine, base, e).values()) + e, 1, abs_tol=1e-9)
    assert math.isclose(sum(losses(mine, base, e, alone).values()) + e, 1, abs_tol=1e-9)


def launch(
    step_ms: float, spans_ms: Mapping[str, float], comm_ms: float = 0.0, samples: int = 8
) -> RankLaunch:
    """Return timed steps of `step_ms`, and two instrumented ones of the spans in turn and then one transfer."""
    at, steps = ORIGIN_NS + 10**9, []
    for _ in range(2):
        begun, spans, transfers = at, [], []
        for name, ms in spans_ms.items():
            spans.append((name, at, at + int(ms * MS)))
            at += int(ms * MS)
        if comm_ms:
            transfers = [(0, "all_reduce", 2**20, at, at + int(comm_ms * MS))]
            at += int(comm_ms * MS)
        steps.append((begun, at, spans, transfers))
    return RankLaunch(blocks=[[int(step_ms * MS)] * 10], steps=steps, samples_per_step=samples)


def table_of(path: Path, launches: Mapping[Case, list[RankLaunch]]) -> pd.DataFrame:
    run = RunDir(path / "run")
    rounds = max(map(len, launches.values()))
    write_plan(run, [PlannedCase(case=case) for case in launches], Budget(rounds_min=1, rounds_max=rounds))
    for case, found in launches.items():
        write_proof(run, case)
        for number, one in enumerate(found):
            write_launch(run, case, number, [one] * processes_of(case))
    write_sessions(run)
    summary = summarize(run)
    efficiency = summary.cases.set_index("case_id")["efficiency"]
    table = framed(summary.steps.waterfall)
    for case_id, rows in table.groupby("case_id") if summary.steps.waterfall else ():
        assert rows["share"].sum() == pytest.approx(1), "losses and efficiency"
        last = rows.set_index("item").loc["efficiency", "share"]
        assert last == pytest.approx(efficiency[case_id]), "as in the table of cases"
    return table


def test_a_run_of_three_rounds_by_hand(tmp_path: Path) -> None:
    single = {"forward": 4.0, "backward": 6.0}
    table = table_of(
        tmp_path,
        {
            SINGLE: [launch(10, single)] * 3,
            ALONE: [launch(12.5, {"forward": 5, "backward": 7.5})] * 3,
            DDP: [
                launch(16, {"forward": 5, "backward": 8.0}, comm_ms=3),
                launch(20, {"forward": 5, "backward": 8.0}, comm_ms=7),
                launch(18, {"forward": 5, "backward": 8.0}, comm_ms=5),
            ],
            MASTER: [launch(25, {"forward": 5, "backward": 7.5}, comm_ms=12.5)] * 3,
        },
    )
    assert list(dict.fromkeys(table["case_id"])) == [DDP.case_id, MASTER.case_id], "the reference first"
    ddp = table[table["case_id"] == DDP.case_id].set_index("item")
    # instrumented steps of 16, 20 and 18 ms, 18 in the mean; E of the rounds is 10/16, 10/20 and 10/18
    e = math.cbrt(10 / 16 * 10 / 20 * 10 / 18)
    assert ddp.loc["efficiency", "share"] == pytest.approx(e)
    exposed = statistics.median((3 / 16, 7 / 20, 5 / 18))
    assert ddp.loc["exposed_comm", "share"] == pytest.approx(exposed)
    # independent ranks: 12.5 ms, all of it computation; of 18 ms, the median round's
    assert ddp.loc["contention", "share"] == pytest.approx(2.5 / 18)
    assert ddp.loc["own_computation", "share"] == pytest.approx(0.5 / 18)
    assert ddp.loc["timed", "share"] == pytest.approx(0, abs=1e-12), "both kinds of steps are as long"
    assert ddp.loc["rest", "share"] == pytest.approx(1 - e - 8 / 18), "the median round lost 8 of 18 ms"
    assert ddp["split"].all()
    ends = ["share_ci_low", "share_ci_high"]
    assert ddp.drop("efficiency")[ends].isna().all(axis=None), "three rounds have no interval of a median"
    master = table[table["case_id"] == MASTER.case_id].set_index("item")["share"]
    assert master["exposed_comm"] == pytest.approx(0.5)
    assert master["own_computation"] == pytest.approx(0, abs=1e-12)


def test_a_loss_of_five_rounds_ends_at_the_least_and_the_largest(tmp_path: Path) -> None:
    moved = (3, 7, 5, 90, 4)
    table = table_of(
        tmp_path,
        {
            SINGLE: [launch(10, {"forward": 4.0, "backward": 6.0})] * 5,
            DDP: [launch(10 + ms, {"forward": 4, "backward": 6}, comm_ms=ms) for ms in moved],
        },
    ).set_index("item")
    of_rounds = sorted(ms / (10 + ms) for ms in moved)
    found = table.loc["exposed_comm", ["share_ci_low", "share", "share_ci_high"]]
    assert list(found) == pytest.approx(of_rounds[::2])
    assert table.loc["rest", ["share_ci_low", "share_ci_high"]].isna().all()


def items_of(table: pd.DataFrame, case: Case = DDP) -> pd.Series:
    return table[table["case_id"] == case.case_id].set_index("item")["share"]


def test_rounds_that_one_side_lacks_say_nothing_of_what_is_lost(tmp_path: Path) -> None:
    """The base case ran in the first three rounds, after which the machine was slower for all."""
    run = RunDir(tmp_path / "run")
    slow, fast = {"forward": 13.0}, {"forward": 10.0}
    launches = {
        SINGLE: [launch(10, fast)] * 3,
        DDP: [launch(12, fast, comm_ms=2)] * 3 + [launch(15, slow, comm_ms=2)] * 3,
    }
    write_plan(run, list(launches), Budget(rounds_min=3, rounds_max=6))
    for case, found in launches.items():
        write_proof(run, case)
        for number, one in enumerate(found):
            write_launch(run, case, number, [one] * processes_of(case))
    write_sessions(run)
    share = items_of(framed(summarize(run).steps.waterfall))
    assert share["computation"] == pytest.approx(0, abs=1e-9)
    assert share["timed"] == pytest.approx(0, abs=1e-9)
    assert share["exposed_comm"] == pytest.approx(2 / 12)


def test_one_slow_launch_is_no_disagreement_of_timed_and_instrumented_steps(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        {
            SINGLE: [launch(10, {"forward": 10.0})] * 5,
            DDP: [launch(12, {"forward": 10.0}, comm_ms=2)] * 4 + [launch(36, {"forward": 30.0}, comm_ms=6)],
        },
    )
    assert items_of(table)["timed"] == pytest.approx(0, abs=1e-9)


def test_independent_ranks_of_too_few_rounds_do_not_cost_the_others(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    launches = {
        SINGLE: (range(10), launch(10, {"forward": 10.0})),
        ALONE: (range(5), launch(12, {"forward": 12.0})),
        DDP: (range(4, 10), launch(16, {"forward": 13.0}, comm_ms=3)),
    }
    write_plan(run, list(launches), Budget(rounds_min=3, rounds_max=10))
    for case, (rounds, one) in launches.items():
        write_proof(run, case)
        for number in rounds:
            write_launch(run, case, number, [one] * processes_of(case))
    write_sessions(run)
    table = framed(summarize(run).steps.waterfall)
    assert not table["split"].any()
    assert set(table["rounds"]) == {6}


@pytest.mark.parametrize(("alone_ms", "outrun"), [(16.2, False), (40, True)], ids=["within 2 %", "disturbed"])
def test_independent_ranks_slower_than_the_case_split_nothing(
    alone_ms: float, outrun: bool, tmp_path: Path
) -> None:
    """Contention of 0.65 next to an equal gain: both would come from the same disturbed launches."""
    table = table_of(
        tmp_path,
        {
            SINGLE: [launch(10, {"forward": 10.0})] * 5,
            ALONE: [launch(alone_ms, {"forward": alone_ms})] * 5,
            DDP: [launch(16, {"forward": 13.0}, comm_ms=3)] * 5,
        },
    )
    ddp = table[table["case_id"] == DDP.case_id]
    assert (ddp["outrun"].all(), ddp["split"].any()) == (outrun, not outrun)
    assert ("contention" in set(ddp["item"])) is not outrun
    if outrun:
        assert items_of(table)["computation"] == pytest.approx(3 / 16)


def test_strong_scaling_divides_the_ideal_step(tmp_path: Path) -> None:
    whole: dict[str, str | int] = {"scaling": "strong", "local_batch": 8, "global_batch": 8}
    half = whole | {"local_batch": 4}
    single, ddp = case_of("single", 1, **whole), case_of("ddp", 2, **half)
    optimizer = {"forward": 3.0, "backward": 6.0, "optimizer": 1.0}
    table = table_of(
        tmp_path,
        {
            single: [launch(10, optimizer)] * 2,
            ddp: [launch(8, {"forward": 2, "backward": 3, "optimizer": 1}, comm_ms=2, samples=4)] * 2,
        },
    )
    share = table.set_index("item")["share"]
    # the ideal step takes 5 ms: 4.5 of forward and backward, and 0.5 of an optimizer that does not shrink
    assert share["efficiency"] == pytest.approx(5 / 8)
    assert share["optimizer"] == pytest.approx((1 - 0.5) / 8)
    assert share["computation"] == pytest.approx((5 - 4.5) / 8)
    assert share["exposed_comm"] == pytest.approx(2 / 8)
    assert not table["split"].any()


def test_cases_of_other_groups_are_compared_through_the_anchor(tmp_path: Path) -> None:
    """The machine is half as fast for the second group: master, and the anchor's instrumented steps."""
    run = RunDir(tmp_path / "run")
    anchor = replace(launch(10, {"forward": 20.0}), blocks=[[10 * MS] * 10, [20 * MS] * 10])
    launches = {
        SINGLE: anchor,
        ALONE: launch(12, {"forward": 12.0}),
        DDP: launch(16, {"forward": 13.0}, comm_ms=3),
        MASTER: launch(50, {"forward": 26.0}, comm_ms=24),
    }
    write_plan(run, list(launches), Budget(rounds_min=3, rounds_max=3))
    for case, one in launches.items():
        write_proof(run, case)
        for number in range(3):
            path = write_launch(run, case, number, [one] * processes_of(case))
            if case is SINGLE:
                alternate(path, [[ALONE, DDP], [MASTER]], (0, 1))
            else:
                alternate(path, [[SINGLE]])
    write_sessions(run)
    table = framed(summarize(run).steps.waterfall)
    ddp, master = items_of(table), items_of(table, MASTER)
    assert (ddp["efficiency"], master["efficiency"]) == pytest.approx((10 / 16, 10 / 25))
    assert (ddp["contention"], ddp["own_computation"]) == pytest.approx((2 / 16, 1 / 16))
    assert (ddp["exposed_comm"], ddp["timed"], ddp["rest"]) == pytest.approx((3 / 16, 0, 0), abs=1e-9)
    assert (master["contention"], master["own_computation"]) == pytest.approx((2 / 25, 1 / 25))
    assert (master["exposed_comm"], master["timed"], master["rest"]) == pytest.approx(
        (12 / 25, 0, 0), abs=1e-9
    )


@pytest.mark.parametrize("alone_group", [0, 1])
def test_a_bound_of_another_group_is_judged_through_the_anchor(tmp_path: Path, alone_group: int) -> None:
    """Independent ranks are not outrun because their group met a slower machine."""
    run = RunDir(tmp_path / "run")
    groups = [[DDP], [ALONE]] if alone_group else [[ALONE], [DDP]]
    slow = {case: 2.0 if case in groups[1] else 1.0 for case in (ALONE, DDP)}
    launches = {
        SINGLE: replace(launch(10, {"forward": 20.0}), blocks=[[10 * MS] * 10, [20 * MS] * 10]),
        ALONE: launch(12 * slow[ALONE], {"forward": 12.0 * slow[ALONE]}),
        DDP: launch(14 * slow[DDP], {"forward": 12.0 * slow[DDP]}, comm_ms=2.0 * slow[DDP]),
    }
    write_plan(run, list(launches), Budget(rounds_min=1, rounds_max=1))
    for case, one in launches.items():
        path = write_launch(run, case, 0, [one] * processes_of(case))
        alternate(path, groups if case is SINGLE else [[SINGLE]], (0, 1) if case is SINGLE else ())
    write_sessions(run)
    by_case = {found.case: found for found in read_cases(run, read_plan(run))}
    assert not outrun(by_case[DDP], by_case[ALONE])


def test_rounds_that_are_not_shared_make_no_waterfall(tmp_path: Path) -> None:
    """A merge has this: the base case in rounds 0 to 2, DDP in 1 to 5, independent ranks in 3 to 5."""
    run, launches = RunDir(tmp_path / "run"), {}
    launches[SINGLE] = (range(3), launch(10, {"forward": 10.0}))
    launches[ALONE] = (range(3, 6), launch(12, {"forward": 12.0}))
    launches[DDP] = (range(1, 6), launch(16, {"forward": 13.0}, comm_ms=3))
    launches[MASTER] = (range(3, 6), launch(25, {"forward": 13.0}, comm_ms=12))
    write_plan(run, list(launches), Budget(rounds_min=3, rounds_max=6))
    for case, (rounds, one) in launches.items():
        write_proof(run, case)
        for number in rounds:
            write_launch(run, case, number, [one] * processes_of(case))
    write_sessions(run)
    summary = summarize(run)
    found = summary.cases.set_index("case_id")["efficiency"]
    assert found.isna()[MASTER.case_id], "MASTER shares no round with the base case"
    table = framed(summary.steps.waterfall)
    assert set(table["case_id"]) == {DDP.case_id}
    assert not table["split"].any(), "nor do independent ranks"


def test_no_instrumented_base_case_no_waterfall(tmp_path: Path) -> None:
    bare = RankLaunch(blocks=[[10 * MS] * 10])
    assert table_of(tmp_path, {SINGLE: [bare], DDP: [launch(16, {"forward": 13}, comm_ms=3)]}).empty
