"""The figures on causes: what they claim, what they may not claim, and what they draw."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from matplotlib.figure import Figure

from ddpbench.analysis import RunSummary, summarize
from ddpbench.analysis.results import EfficiencyLoss
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.steps.one_step import LAST, Lane, OneStep, Transfer
from ddpbench.analysis.table.columns import COLUMNS
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import draw
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Picture, Section
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import buckets, communication, heatmap, one_step, strategies, waterfall
from ddpbench.report.standing import stands
from tests.report.handmade import (
    PLANNED,
    bucket_comparisons,
    case_row,
    ddp,
    handmade_summary,
    with_cases,
)
from tests.synthetic import write_everything

pytestmark = pytest.mark.usefixtures("painted")

DDP4 = ddp(4).case_id
LOSSES = {
    "contention": (0.10, 0.08, 0.12),
    "own_computation": (-0.02, -0.05, 0.01),
    "exposed_comm": (0.18, 0.15, 0.21),
    "waiting": (0.05, 0.04, 0.06),
    "optimizer": (0.0, 0.0, 0.0),
    "data": (0.005, -0.001, 0.011),
    "not_attributed": (0.01, 0.0, 0.02),
    "timed": (0.0, 0.0, 0.0),
    "efficiency": (0.675, 0.663, 0.687),
}


def falls(
    case_id: str = DDP4,
    rounds: int = 5,
    *,
    split: bool = True,
    outrun: bool = False,
    **changed: tuple[float, float, float],
) -> tuple[EfficiencyLoss, ...]:
    """Return losses of a case; without `split` its computation is one of them."""
    values = LOSSES | changed
    if not split:
        values = {
            "computation" if name == "contention" else name: value
            for name, value in values.items()
            if name != "own_computation"
        }
    return tuple(
        EfficiencyLoss(
            case_id=case_id,
            item=name,
            share=Interval(value=value, low=low, high=high),
            rounds=rounds,
            split=split,
            outrun=outrun,
        )
        for name, (value, low, high) in values.items()
    )


def drawn(section: Section) -> Picture:
    picture = section.pictures[0]
    assert b"<path" in draw(picture).svg
    return picture


def waterfall_of(losses: tuple[EfficiencyLoss, ...]) -> Picture:
    summary = handmade_summary(waterfall=losses)
    return drawn(waterfall.section(summary.steps.waterfall, rows_of(summary)))


def test_the_largest_loss_is_the_heading_and_the_table_walks_down() -> None:
    picture = waterfall_of(falls())
    assert picture.heading == (
        "DDP, 4 ranks, default buckets: efficiency 0.675; the largest loss is exposed communication, 0.180"
    )
    assert "to 0.675 [0.663, 0.687] (measured)" in picture.alt
    assert picture.alt.endswith("Exposed communication 0.180 [0.150, 0.210].")
    left = [row[2].text for row in picture.table.rows]
    # 1 - 0.1 = 0.9; + 0.02; - 0.18; - 0.05; nothing; - 0.005; - 0.01; nothing
    assert left[1:-1] == ["0.900", "0.920", "0.740", "0.690", "0.690", "0.685", "0.675", "0.675"]
    assert picture.table.rows[5][1].text == "0", "what is not there has no decimals"
    assert "A negative loss is a gain." in picture.caption


def test_the_largest_loss_is_only_named_alone_where_no_other_interval_reaches_its_own() -> None:
    overlapping = waterfall_of(falls(contention=(0.14, 0.11, 0.17)))
    assert overlapping.heading.endswith(
        "; among the largest losses: exposed communication, 0.180 and contention, 0.140"
    )
    assert overlapping.alt.endswith(
        "Exposed communication 0.180 [0.150, 0.210] and contention 0.140 [0.110, 0.170]."
    )
    assert not any(row[1].strong for row in overlapping.table.rows)
    wide = waterfall_of(falls(contention=(0.1, -0.1, 0.3)))
    assert wide.heading.endswith("; among the largest losses: exposed communication, 0.180")
    assert "Contention may be larger." in wide.caption
    apart = waterfall_of(falls(contention=(0.1, 0.06, 0.14)))
    assert "the largest loss is exposed" in apart.heading


def test_no_cause_is_named_where_too_much_is_unexplained_or_unsure_or_unrepeated() -> None:
    unexplained = waterfall_of(falls(not_attributed=(-0.06, -0.08, -0.04)))
    assert "0.060 is not attributed, so no main cause is named" in unexplained.heading
    apart = waterfall_of(falls(timed=(0.07, 0.01, 0.13)))
    assert apart.heading.endswith("; no main cause is named")
    assert "is where timed and instrumented steps do not agree" in apart.caption
    chance = waterfall_of(falls(timed=(0.07, -0.01, 0.149)))
    assert "the largest loss is exposed communication" in chance.heading
    unsure = waterfall_of(falls(contention=(0.3, -0.1, 0.7)))
    assert unsure.heading.endswith("its largest loss, contention, cannot be distinguished from 0")
    assert waterfall_of(falls(rounds=4)).heading.endswith("too few rounds to name a main cause")


def test_independent_ranks_that_were_not_run_are_said() -> None:
    picture = waterfall_of(falls(split=False))
    assert "without independent ranks at this number of ranks the two cannot be told apart" in picture.caption


def test_independent_ranks_that_were_slower_are_said_to_tell_nothing_apart() -> None:
    picture = waterfall_of(falls(split=False, outrun=True))
    assert "independent ranks, which tell the two apart, were slower than this case" in picture.caption


def test_contention_that_the_strategy_takes_back_is_not_the_largest_loss() -> None:
    """Both come from the same independent launches: an excess of one is a deficit of the other."""
    cancelled = waterfall_of(
        falls(
            contention=(0.652, 0.5, 0.8), own_computation=(-0.661, -0.8, -0.5), exposed_comm=(0.2, 0.18, 0.22)
        )
    )
    assert "contention" not in cancelled.heading
    assert "among the largest losses: exposed communication, 0.200" in cancelled.heading
    assert "Slower computation may be larger." in cancelled.caption
    rest = waterfall_of(falls(contention=(0.5, 0.48, 0.52), own_computation=(-0.1, -0.12, -0.08)))
    assert rest.heading.endswith("the largest loss is slower computation, 0.400")
    assert rest.alt.endswith("Slower computation 0.400 [0.360, 0.440].")
    assert not any(row[1].strong for row in rest.table.rows), "neither part is the loss"
    other = waterfall_of(
        falls(
            contention=(-0.10, -0.12, -0.08),
            own_computation=(0.15, 0.13, 0.17),
            exposed_comm=(0.08, 0.07, 0.09),
        )
    )
    assert "the strategy's own computation" not in other.heading
    assert "exposed communication, 0.080" in other.heading


@pytest.mark.parametrize(
    ("ddp_rate", "interval", "bound", "established"),
    [
        (2191.0, " [2,152, 2,230]", "; upper bound 2,710", True),
        (2760.0, " [2,710, 2,810]", "; independent ranks 2,710, the same within 2 %", True),
        (4100.0, " [4,026, 4,174]", "; no upper bound: independent ranks measured 2,710", False),
    ],
)
def test_a_bound_below_what_it_bounds_is_not_called_one(
    ddp_rate: float, interval: str, bound: str, established: bool
) -> None:
    summary = handmade_summary()
    cases = summary.cases.copy()
    mine = cases["case_id"] == DDP4
    for name, factor in (("", 1), ("_ci_low", 1 - 0.018), ("_ci_high", 1 + 0.018)):
        cases.loc[mine, f"samples_per_s{name}"] = ddp_rate * factor
    summary = with_cases(summary, cases)
    picture = drawn(
        strategies.section(summary.steps.launches, summary.conclusions.findings, rows_of(summary))
    )
    assert picture.heading == f"At 4 ranks DDP trains {ddp_rate:,.0f} samples/s{bound}"
    assert f"DDP {ddp_rate:,.0f}{interval}{bound}" in picture.alt
    assert ("exchange nothing and are the upper bound." in picture.caption) is established
    assert ("At 4 ranks they measured less than a strategy" in picture.caption) is not established


def test_a_number_above_independent_ranks_has_no_upper_bound_beside_it() -> None:
    """Ranks that share the update do less each; another run's independent ranks are not a bound for these."""
    summary = handmade_summary()
    world = dataclasses.replace(ddp(4), strategy="fsdp", bucket_cap_mb=None)
    sharded = [case_row(world, rate=3200.0)]
    slow = dataclasses.replace(
        next(
            row.case
            for row in rows_of(summary)
            if row.case.strategy == "independent" and row.case.world_size == 4
        ),
        env_json='{"MALLOC_ARENA_MAX": "1"}',
    )
    for more, words in (
        (
            sharded,
            "DDP 2,191 [2,152, 2,230]; independent ranks 2,710, which do not bound FSDP, whose ranks do less each",
        ),
        ([case_row(slow, rate=900.0)], "DDP 2,191 [2,152, 2,230]; upper bound 2,710"),
    ):
        cases = pd.concat([pd.DataFrame(more, columns=list(COLUMNS)), summary.cases])
        found = with_cases(summary, cases, planned=PLANNED)
        picture = drawn(strategies.section(found.steps.launches, found.conclusions.findings, rows_of(found)))
        assert words in picture.alt
        assert ("upper bound" in picture.heading) is (more is not sharded), picture.heading
        assert ("They do not bound FSDP, whose ranks do less each." in picture.caption) is (more is sharded)


def test_without_losses_a_sentence_says_why() -> None:
    summary = handmade_summary()
    assert (
        "nothing tells where efficiency went"
        in waterfall.section(summary.steps.waterfall, rows_of(summary)).absent
    )


def cells(summary: RunSummary) -> Picture:
    rows = [row for row in rows_of(summary) if row.case.strategy == "ddp"]
    picture = heatmap.picture("", rows, stands(summary.steps.comparisons, "buckets"), 0)
    assert picture is not None
    assert draw(picture).svg
    return picture


def test_caps_that_are_safe_are_so_at_every_number_of_ranks() -> None:
    both = bucket_comparisons(4) + bucket_comparisons(2)
    heading = cells(handmade_summary(comparisons=both)).heading
    assert heading == "DDP with default or 25 MiB buckets is best or as good at 2 and 4 ranks"
    worse = bucket_comparisons(2, ["slower", "slower", "slower", "best"])
    heading = cells(handmade_summary(comparisons=bucket_comparisons(4) + worse)).heading
    assert heading == "DDP with 25 MiB buckets is best or as good at 2 and 4 ranks"


def test_a_cap_that_cannot_be_told_from_the_best_is_not_called_as_good() -> None:
    verdicts = ["cannot tell", "slower", "cannot tell", "cannot tell"]
    both = bucket_comparisons(4, verdicts) + bucket_comparisons(2, verdicts)
    picture = cells(handmade_summary(comparisons=both))
    assert picture.heading == "DDP: no bucket cap is shown to be best or as good everywhere"
    assert "No frame: no cap is shown to be best or as good" in picture.caption
    assert any(
        "cannot tell: within 3.1 % of the fastest other" in cell.under
        for row in picture.table.rows
        for cell in row
    )


def test_every_cell_says_something() -> None:
    summary = handmade_summary(comparisons=bucket_comparisons(4))
    cases = summary.cases.copy()
    cases.loc[cases["case_id"] == ddp(2, 5.0).case_id, "status"] = "oom"
    picture = cells(with_cases(summary, cases))
    table = {row[0].text: [cell.text for cell in row[1:]] for row in picture.table.rows}
    assert [column.title for column in picture.table.columns] == [
        "Ranks",
        "default",
        "1 MiB",
        "5 MiB",
        "25 MiB",
    ]
    assert table["1"][1:] == ["not run"] * 3
    assert table["2"][2] == "oom"
    assert table["4"][0] == "14.61"  # 4 x 8 samples at 2191 per second
    assert "Crosshatched: DDP, 2 ranks, 5 MiB buckets (oom)." in picture.caption
    assert "Grey: not run." in picture.caption


def test_one_number_of_ranks_is_no_map() -> None:
    rows = [
        row for row in rows_of(handmade_summary()) if row.case.strategy == "ddp" and row.case.world_size == 4
    ]
    assert heatmap.picture("", rows, {}, 0) is None


def one_step_of(**changes: object) -> OneStep:
    lane = Lane(
        rank=0,
        role="",
        spans=(("forward", 0.0, 0.004), ("backward", 0.004, 0.012), ("optimizer", 0.018, 0.02)),
        transfers=(
            Transfer(
                bucket=0, op="all_reduce", bytes=1024, ready_s=0.01, left_s=0.01, begin_s=0.011, end_s=0.018
            ),
        ),
        exposed=((0.012, 0.018),),
        computed_s=0.014,
        length_s=0.019,
    )
    step = OneStep(
        case_id=DDP4,
        round=2,
        step=7,
        steps=10,
        launches=5,
        median_s=0.0199,
        length_s=0.02,
        slowest=3,
        lanes=(lane, dataclasses.replace(lane, rank=3, role="least computation", length_s=0.02)),
        omitted=(1, 2, 5),
        backward_end_s=0.012,
        backward_rank=3,
        comm_end_s=0.018,
        events=False,
    )
    return dataclasses.replace(step, **changes)  # type: ignore[arg-type]


def test_one_step_says_which_step_which_clock_and_who_is_left_out() -> None:
    summary = handmade_summary(one_step=one_step_of())
    picture = drawn(one_step.section(summary.steps, rows_of(summary)))
    assert picture.heading == "Transfers outlast the last backward by 6.0 ms, in a step of 20.0 ms"
    assert picture.group == "DDP, 4 ranks, default buckets"
    for words in (
        "The last backward is rank 3's.",
        "Instrumented step 7 of launch 3, whose instrumented steps are the median of 5 launches; of its 10",
        "nearest to their median, 19.9 ms",
        "read the same monotonic clock",
        "rank 3 (least computation), and always rank 0 and the one with the longest step. Omitted: ranks 1 to 2 and 5.",
    ):
        assert words in picture.caption
    assert len(picture.table.rows) == 2 * (3 + 1)
    marked = one_step_of(
        lanes=(*one_step_of().lanes, dataclasses.replace(one_step_of().lanes[0], rank=5, role=LAST)),
        backward_rank=5,
    )
    summary = handmade_summary(one_step=marked)
    caption = drawn(one_step.section(summary.steps, rows_of(summary))).caption
    assert "rank 3 (least computation) and rank 5 (backward ends last), and always rank 0" in caption


def test_each_lane_says_its_length_and_the_slowest_that_it_is() -> None:
    summary = handmade_summary(one_step=one_step_of())
    figure = painted(drawn(one_step.section(summary.steps, rows_of(summary))))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["rank 0: 19.0 ms", "rank 3, longest: 20.0 ms\nleast computation"]


def test_the_legend_of_a_step_names_what_is_drawn_alone() -> None:
    lane = one_step_of().lanes[0]
    assert style.OVERLAPPED in one_step._keys(one_step_of()), "a millisecond of its transfer is hidden"
    begun = dataclasses.replace(lane.transfers[0], ready_s=0.012, left_s=0.012, begin_s=0.012)
    bare = one_step_of(lanes=(dataclasses.replace(lane, transfers=(begun,)),))
    assert style.OVERLAPPED not in one_step._keys(bare), "all of it is exposed"
    assert style.PHASES["exposed_wait"] not in one_step._keys(bare)


def test_a_queue_that_can_be_seen_is_in_the_legend() -> None:
    def keys(left_s: float) -> list[object]:
        lane = one_step_of().lanes[0]
        queued = dataclasses.replace(lane.transfers[0], ready_s=0.006, left_s=left_s)
        return [*one_step._keys(one_step_of(lanes=(dataclasses.replace(lane, transfers=(queued,)),)))]

    assert "in its queue" in keys(0.01)
    assert "in its queue" not in keys(0.00601), "too short to be seen in a step of 20 ms"


def test_hidden_transfers_and_placed_events_are_called_so() -> None:
    hidden = one_step_of(comm_end_s=0.0118, events=True)
    summary = handmade_summary(one_step=hidden)
    picture = drawn(one_step.section(summary.steps, rows_of(summary)))
    assert picture.heading == "All transfers end before the last backward, in a step of 20.0 ms"
    assert "The last backward is rank 3's." in picture.caption
    assert "GPU times are CUDA events placed on it" in picture.caption


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return summarize(write_everything(tmp_path_factory.mktemp("whole") / "run"))


def test_transfers_of_a_made_up_network(whole: RunSummary) -> None:
    picture = drawn(communication.section(whole.communication.transfers, rows_of(whole)))
    rows = {(row[1].text, row[2].text): row for row in picture.table.rows}
    assert {size for _, size in rows} == {"91 KiB", "256 KiB", "347 KiB", "1 MiB", "2.34 MiB"}
    # 3,501,056 bytes in buckets of 256 KiB leave one of 91 KiB; the cost is in proportion to bytes + 128 KiB
    small, large = (rows["4", size][3].key for size in ("91 KiB", "256 KiB"))
    expected = (256 + 128) / (91 + 128)
    assert isinstance(small, float)
    assert isinstance(large, float)
    assert large / small == pytest.approx(expected, rel=1e-3)
    assert "all_reduce: 2(n-1)/n" in picture.caption
    assert "run during computation" in picture.caption
    assert "the bucket caps 0.25 MiB and 1 MiB" in picture.caption


def test_the_made_up_ranks_wait_as_long_as_they_were_made_to(whole: RunSummary) -> None:
    step = whole.steps.one_step
    assert step is not None
    assert [lane.rank for lane in step.lanes] == [0, 1, 2, 3]
    waits = [lane.transfers[0].begin_s - lane.transfers[0].ready_s for lane in step.lanes]
    assert waits == pytest.approx([0.0012, 0.0008, 0.0004, 0], abs=1e-5)
    assert step.backward_rank == 3


def test_a_waterfall_shows_what_is_lost_on_most_of_its_axis() -> None:
    def axis(**changed: tuple[float, float, float]) -> tuple[float, str]:
        figure = painted(waterfall_of(falls(**changed)))
        return figure.axes[0].get_xlim()[0], figure.axes[0].get_xlabel()

    start, label = axis()  # the lowest point is 0.675: the losses take half of the axis
    assert start == pytest.approx(0.3)
    assert label.startswith("efficiency, from 0.3")
    start, label = axis(exposed_comm=(0.8, 0.7, 0.9), efficiency=(0.055, 0.05, 0.06))
    assert (start, label) == (0.0, "efficiency")
    nothing = dict.fromkeys(LOSSES, (0.0, 0.0, 0.0)) | {"efficiency": (1.0, 0.99, 1.01)}
    assert axis(**nothing)[0] == pytest.approx(0.9), "an axis needs a length where nothing is lost"


def test_caps_are_held_against_each_other_in_pairs_beneath_their_step_times() -> None:
    summary = handmade_summary(comparisons=bucket_comparisons())
    rows = rows_of(summary)
    picture = buckets.section(summary.steps, rows).pictures[0]
    figure = painted(picture)
    lower = [axes for axes in figure.axes if "fastest other" in axes.get_ylabel()]
    assert len(lower) == 1
    at = [column.title for column in picture.table.columns].index("Longer than the fastest other, %")
    ratios = [one.ratio.value for one in summary.steps.comparisons if one.topic == "buckets"]
    shown = [row[at].key for row in picture.table.rows if row[at].text]
    assert sorted(shown) == pytest.approx(sorted(100 * (ratio - 1) for ratio in ratios))
    bare = buckets.section(handmade_summary().steps, rows).pictures[0]
    assert not [axes for axes in painted(bare).axes if "fastest other" in axes.get_ylabel()]


def painted(picture: Picture) -> Figure:
    figure = Figure(figsize=(picture.width_in, picture.height_in))
    picture.paint(Sheet(figure, width_in=picture.width_in, height_in=picture.height_in, lifted_in=0.0))
    return figure
