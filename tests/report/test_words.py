"""Rounding and wording, against values worked out by hand."""

import json
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import AS_GOOD, Standing
from ddpbench.report.captions import not_shown, setting_of
from ddpbench.report.draw import style
from ddpbench.report.rows import rows_of
from ddpbench.report.words import (
    launches_each,
    milliseconds,
    moment,
    percent,
    series_of,
    signed_percent,
    valued,
)
from ddpbench.spec import Case, StatedTraits
from ddpbench.strategies import TABLE
from ddpbench.strategies.traits import told_apart
from ddpbench.text_safety import clean
from tests.synthetic import write_run


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Interval(0.7123, 0.6604, 0.7642), "0.71 [0.66, 0.76]"),  # half-width 0.05: two decimals
        (Interval(0.67512, 0.663, 0.6873), "0.675 [0.663, 0.687]"),  # half-width 0.012: a second digit
        (Interval(1234.5, 1199.6, 1269.4), "1,234 [1,200, 1,269]"),  # half-width 35: no tens, as in a column
        (Interval(98765.0, 98000.0, 99530.0), "98,765 [98,000, 99,530]"),
        (Interval(3.14159), "3.14"),
        (Interval(0.0, -0.5, 0.5), "0.0 [\N{MINUS SIGN}0.5, 0.5]"),
        (Interval(5.0, 5.0, 5.0), "5.00 [5.00, 5.00]"),
        (Interval(2.0, -400.0, 404.0), "2 [\N{MINUS SIGN}400, 400]"),  # never rounded away
        (Interval(0.32, 0.0, 18.0), "0.32 [0, 18]"),  # nor a value far below the half-width
        (Interval(1.53, 0.01, 200.0), "1.5 [0.01, 200]"),
        (Interval(0.001, -500.0, 500.0), "0 [\N{MINUS SIGN}500, 500]"),
    ],
)
def test_numbers_are_rounded_to_their_intervals_precision(estimate: Interval, text: str) -> None:
    assert str(estimate) == text


def test_scaling_changes_the_unit_of_value_and_interval() -> None:
    assert str(Interval(0.012, 0.011, 0.013).scaled(1e3)) == "12.0 [11.0, 13.0]"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1234, "123"), (0.01234, "12.3"), (0.000456, "0.46"), (0, "0.00")]
)
def test_milliseconds(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


def test_percent_and_lists() -> None:
    assert percent(0.0131) == "1.3 %"
    assert percent(0.74) == "74 %"
    assert series_of(["a", "b", "c"]) == "a, b and c"
    assert launches_each([5, 5]) == "5 launches each"
    assert launches_each([5, 4]) == "4 to 5 launches each"
    assert launches_each([1]) == "1 launch each"


def test_moment_is_shown_in_utc_or_as_it_is() -> None:
    assert moment("2026-03-04T10:12:44+01:00") == "2026-03-04 09:12 UTC"
    assert moment("yesterday") == "yesterday"
    assert moment(None) == "not recorded"
    for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-03-04T10:12:44"):
        assert moment(text) == text  # UTC has no such moment, or nobody knows which it is


def test_clean_takes_out_what_could_deceive() -> None:
    assert clean("\x1b[31mred\x1b[0m \u202egnp\x07 \ud800") == "red \ufffdgnp\ufffd ?"


def test_a_value_is_parted_from_a_name_that_ends_in_a_number() -> None:
    assert valued("DDP", Interval(409, 403, 416)) == "DDP 409 [403, 416]"
    assert valued("DDP on nodes of 1", Interval(409, 403, 416)) == "DDP on nodes of 1: 409 [403, 416]"


def _case(strategy: str, algorithm: str, traits: str = "") -> Case:
    return Case(workload="mlp", strategy=strategy, algorithm=algorithm, strategy_traits=traits)


OWN_TRAITS = StatedTraits(
    display="Own",
    spoken="Own",
    promise="gradients",
    one_process=False,
    uses_buckets=True,
    whole_state=True,
    shows_transfers_on_gpus=True,
    note="",
    colour="",
    marker="",
).to_text()


def test_no_two_series_that_stand_together_look_alike() -> None:
    strategies = [
        style.look(_case(name, {"data_parallel": "master", "master": "master"}.get(name, "")))
        for name in TABLE
    ]
    own = [_case(f"mine.py:Own{number}", "", traits=OWN_TRAITS) for number in range(6)]
    strategies += [style.look(case) for case in told_apart(own)]
    algorithms = [
        style.look(_case("ddp", name), variant)
        for name in ("all_reduce", *style.ALGORITHMS)
        for variant in (0, 1)
    ]
    for looks in (strategies, algorithms):
        assert len({(look.colour, look.marker) for look in looks}) == len(looks)


def test_a_difference_has_its_sign() -> None:
    assert signed_percent(0.0123) == "+1.2 %"
    assert signed_percent(-0.0123) == "\N{MINUS SIGN}1.2 %"
    assert signed_percent(0.0003) == signed_percent(-0.0003) == "0.0 %"


def test_what_a_figure_lacks_is_named() -> None:
    missing = {"a": "DDP (failed)", "b": "master (oom)", "c": "tree (hung)"}
    assert not_shown({}) == []
    assert not_shown(missing) == ["Not shown: DDP (failed); master (oom); tree (hung)."]
    assert not_shown(missing, most=2) == ["Not shown: DDP (failed); master (oom) and 1 more."]


def test_a_case_that_may_be_the_best_is_not_at_most_nothing_longer() -> None:
    ahead, behind = (
        Standing(verdict=AS_GOOD, against="", ratio=Interval(0.99, 0.97, high)) for high in (1.0, 1.012)
    )
    assert ahead.cell("strategy") == "as good as the best strategy"
    assert behind.cell("strategy") == "as good as the best strategy (at most 1.2 % longer)"


def test_a_report_s_captions_tell_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, 4)
    machine = run.read_json(run.machine)
    workload = summarize(run).cases["workload"][0]
    assert "float32" in {row.numbers for row in rows_of(summarize(run))}
    machine["context"] = {**machine.get("context", {}), "own_workloads": {workload: {"autocast": "fp16"}}}
    run.machine.write_text(json.dumps(machine), encoding="utf-8")
    rows = rows_of(summarize(run))
    assert "float32 with its own fp16 autocast" in setting_of(
        next(row for row in rows if row.case.workload == workload)
    )
