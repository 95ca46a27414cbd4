"""Input-bound or not: verdicts and sentences for step times that are known."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import RunSummary, summarize
from ddpbench.analysis.inputs import WAITED_LIMIT, input_key
from ddpbench.records import RunDir
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.spec.claims import PlannedClaim
from tests.frames import framed
from tests.synthetic import MS, ORIGIN_NS, RankLaunch, case_of, write_launch, write_plan, write_sessions

BASE = case_of("ddp", 2)


def loaded(workers: int) -> Case:
    return replace(BASE, loader_workers=workers)


MEMORY = replace(BASE, data="memory")


def summary_of(
    path: Path,
    step_ms: Mapping[Case, tuple[float, float]],
    *,
    rounds: int = 6,
    noise: float = 0.001,
    oversubscribed: Collection[Case] = (),
    claims: Collection[PlannedClaim] = (),
) -> RunSummary:
    """Return the summary of a run with these step and waiting times, a common drift and separate noise."""
    run = RunDir(path / "run")
    planned = [PlannedCase(case=case, oversubscribed=case in oversubscribed) for case in step_ms]
    write_plan(run, planned, Budget(rounds_min=1, rounds_max=rounds), claims=claims)
    dice = random.Random(1)
    for number in range(rounds):
        drift = 1 + dice.uniform(-0.2, 0.2)
        for case, (step, waited) in step_ms.items():
            step_ns = int(step * MS * drift * (1 + dice.gauss(0, noise)))
            waited_ns = int(step_ns * waited / step)
            start = ORIGIN_NS + 10**10
            spans = [("data", start, start + waited_ns), ("forward", start + waited_ns, start + step_ns)]
            rank = RankLaunch(
                blocks=[[step_ns] * 10],
                steps=[(start, start + step_ns, spans, [])],
                samples_per_step=case.local_batch,
            )
            write_launch(run, case, number, [rank] * case.world_size)
    write_sessions(run)
    return summarize(run)


def verdicts(summary: RunSummary) -> dict[str, str]:
    frame = framed(summary.inputs)
    return {
        "memory" if data == "memory" else str(workers): verdict
        for data, workers, verdict in zip(
            frame["data"], frame["loader_workers"], frame["verdict"], strict=True
        )
    }


def claimed(*pairs: tuple[Case, Case]) -> PlannedClaim:
    """Return the claim that the first case of each pair, whose data are in memory, is faster."""
    return PlannedClaim(
        says="training waits for its input",
        kind="faster",
        pairs=tuple((a.case_id, b.case_id) for a, b in pairs),
    )


def test_a_claim_on_loaders_is_answered_by_the_case_that_waits_longest(tmp_path: Path) -> None:
    """Also if it has fewer ranks than another; and without the file of its class."""
    one, other = (case_of("single", 1, workload=name) for name in ("a/mine.py:Images", "gpt:nano"))
    more = replace(BASE, workload="mlp:small")
    every = [replace(case, data=data) for case in (one, other, more) for data in ("memory", "loader")]
    steps = dict(zip(every, (2.0, 6.0, 10.0, 10.0, 20.0, 24.0), strict=True))
    waits = {case: (step, 0.0) for case, step in steps.items()}
    claim = claimed((every[0], every[1]), (every[2], every[3]), (every[4], every[5]))
    first = summary_of(tmp_path, waits, claims=[claim]).conclusions.answer[0]
    assert first.text.startswith("It depends: without loader workers a step of Images (single) takes 3.0")
    assert first.text.endswith(" times as long as from memory; gpt:nano is not input-bound.")
    assert first.beneath[0] == "the claim holds in part"
    yes = replace(claim, answers="yes", pairs=claim.pairs[:1])
    text = summary_of(tmp_path / "yes", waits, claims=[yes]).conclusions.answer[0].text
    assert text.startswith("Yes: "), "what a claim answers comes first"
    bound = {case: wait for case, wait in waits.items() if case.workload == one.workload}
    first = summary_of(tmp_path / "all", bound, claims=[claimed((every[0], every[1]))]).conclusions.answer[0]
    assert first.text.startswith("3.0")
    assert first.text.endswith(
        " times as long: a step of Images (single) without loader workers, compared with data in memory."
    )


def test_what_is_undecided_does_not_depend(tmp_path: Path) -> None:
    """A workload that cannot be told input-bound or not does not contradict the other, and is named beneath."""
    one, other = (case_of("single", 1, workload=name) for name in ("a/mine.py:Images", "gpt:nano"))
    every = [replace(case, data=data) for case in (one, other) for data in ("memory", "loader")]
    waits = {case: (step, 0.0) for case, step in zip(every, (2.0, 6.0, 10.0, 10.3), strict=True)}
    claim = claimed((every[0], every[1]), (every[2], every[3]))
    first = summary_of(tmp_path, waits, noise=0.03, claims=[claim]).conclusions.answer[0]
    assert first.text.startswith("3."), first.text
    assert "gpt:nano" not in first.text
    assert first.beneath == ("undecided: gpt:nano", "the claim holds in part")


@pytest.mark.parametrize(
    ("two", "noise", "end"),
    [
        (5.9, 0.03, "; 2 loader workers do not suffice; whether they help is open."),
        (4.0, 0.001, "; 2 loader workers help, but do not suffice."),
        (6.1, 0.001, "; 2 loader workers do not suffice and do not help."),
        (2.0, 0.001, "; 2 loader workers fix it."),
    ],
)
def test_what_does_not_suffice_may_help(tmp_path: Path, two: float, noise: float, end: str) -> None:
    """That too few workers are there is decided by the data in memory, that they help by the case without workers."""
    one = case_of("single", 1, workload="a/mine.py:Images")
    none, more = (replace(one, data="loader", loader_workers=count) for count in (0, 2))
    memory = replace(one, data="memory")
    waits = {memory: (2.0, 0.0), none: (6.0, 0.0), more: (two, 0.0)}
    first = summary_of(tmp_path, waits, noise=noise, claims=[claimed((memory, none))]).conclusions.answer[0]
    assert re.search(f"{end}$", first.text), first.text
    assert "not fix" not in first.line


def texts(summary: RunSummary) -> str:
    return "\n".join(finding.line for finding in summary.conclusions.findings if finding.evidence == "inputs")


def test_a_step_longer_than_from_memory_is_input_bound_and_the_fewest_workers_that_mend_it_are_named(
    tmp_path: Path,
) -> None:
    summary = summary_of(
        tmp_path,
        {
            MEMORY: (10, 0),
            loaded(0): (14, 4),
            loaded(1): (12, 2),
            loaded(2): (10.05, 0.01),
            loaded(4): (10.05, 0.01),
        },
    )
    assert verdicts(summary) == {
        "memory": "memory",
        "0": "input-bound",
        "1": "input-bound",
        "2": "not input-bound",
        "4": "not input-bound",
    }
    frame = framed(summary.inputs).set_index("loader_workers")
    plain = framed(summary.inputs)[framed(summary.inputs)["data"] == "loader"].set_index("loader_workers")
    assert plain.loc[0, "ratio"] == pytest.approx(1.4, rel=0.01)
    assert plain.loc[0, "waited_share"] == pytest.approx(4 / 14)
    assert len(set(frame["group"])) == 1
    sentences = texts(summary)
    assert "DDP at 2 ranks, gpt:nano, is input-bound without loader workers: a step takes" in sentences
    assert (
        "longer than from memory; 2 loader workers fix it (28.6 % [28.6, 28.6] of a step is preparing data; "
        "also input-bound with 1; " in sentences
    )
    assert "6 launches each; corrected for 4 comparisons)" in sentences
    assert [finding.verdict for finding in summary.conclusions.findings if finding.evidence == "inputs"] == [
        "slower"
    ]


def test_where_no_number_of_workers_mends_it_the_least_is_told(tmp_path: Path) -> None:
    cases = {MEMORY: (10.0, 0.0), loaded(0): (14.0, 4.0), loaded(2): (12.0, 2.0)}
    summary = summary_of(tmp_path, cases, noise=0)
    assert "least: +20.0 % [+20.0, +20.0] with 2 loader workers" in texts(summary)
    assert "; 2 loader workers help, but do not suffice (" in texts(summary)


def test_a_loader_that_costs_nothing_is_not_input_bound_however_long_it_waits(tmp_path: Path) -> None:
    # On a GPU the wait for a batch is hidden behind kernels that still run.
    summary = summary_of(tmp_path, {MEMORY: (10, 0), loaded(0): (10.05, 3)})
    assert verdicts(summary)["0"] == "not input-bound"
    assert "is not input-bound: its step time differs by +0.5 %" in texts(summary)


def test_workers_that_slow_the_step_without_a_wait_are_seen(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {MEMORY: (10, 0), loaded(2): (13, 0)})
    assert verdicts(summary)["2"] == "input-bound"
    assert "(only 0 % [0, 0] of a step waits for data: loading slows the step itself" in texts(summary)


def test_what_an_interval_cannot_tell_is_called_so(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {MEMORY: (10, 0), loaded(0): (10.2, 1)}, noise=0.05)
    assert verdicts(summary)["0"] == "unresolved"
    assert "cannot be told input-bound or not" in texts(summary)


def test_under_five_rounds_nothing_is_concluded(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {MEMORY: (10, 0), loaded(0): (14, 4)}, rounds=4)
    assert verdicts(summary)["0"] == "too few"
    assert "not enough launches" in texts(summary)


def test_without_a_twin_the_waited_share_alone_speaks(tmp_path: Path) -> None:
    assert WAITED_LIMIT == 0.05
    summary = summary_of(tmp_path, {loaded(0): (10, 0.6), loaded(1): (10, 0.4)})
    assert verdicts(summary) == {"0": "looks input-bound", "1": "does not look input-bound"}
    assert "1 of 2 cases looks input-bound: up to 6.0 % [6.0, 6.0] of a step waits for data" in texts(summary)
    assert "the same case with data" in texts(summary)


def test_a_run_that_waits_for_nothing_says_nothing(tmp_path: Path) -> None:
    assert texts(summary_of(tmp_path, {loaded(0): (10, 0.1)})) == ""


def test_oversubscribed_cases_make_no_sentence(tmp_path: Path) -> None:
    cases = {MEMORY: (10, 0), loaded(0): (14, 4)}
    summary = summary_of(tmp_path, cases, oversubscribed=cases)
    assert verdicts(summary)["0"] == "input-bound"
    assert texts(summary) == ""


def test_a_sentence_is_of_the_family_that_the_figure_is_of(tmp_path: Path) -> None:
    more = {
        replace(case, world_size=4, global_batch=4 * case.local_batch): case for case in (MEMORY, loaded(0))
    }
    steps = {MEMORY: (10.0, 0.0), loaded(0): (14.0, 4.0)}
    summary = summary_of(
        tmp_path, {**steps, **{case: steps[of] for case, of in more.items()}}, oversubscribed=more
    )
    assert len(framed(summary.inputs).dropna(subset=["ratio"])) == 2
    assert "corrected for 2 comparisons" in texts(summary)


def test_only_the_source_of_data_may_differ(tmp_path: Path) -> None:
    other = replace(MEMORY, local_batch=16, global_batch=32)
    assert input_key(MEMORY) == input_key(loaded(2))
    assert input_key(MEMORY) != input_key(other)
    summary = summary_of(tmp_path, {other: (10, 0), loaded(0): (14, 4)})
    assert verdicts(summary) == {"memory": "memory", "0": "looks input-bound"}
    assert framed(summary.inputs)["group"].nunique() == 2


def test_each_setting_is_compared_with_memory_in_the_table(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {MEMORY: (10, 0), loaded(0): (14, 4), loaded(1): (9, 0)})
    frame = framed(summary.steps.comparisons)
    frame = frame[frame["topic"] == "data"].set_index("case_id")
    assert set(frame["best_case_id"]) == {MEMORY.case_id}
    assert frame.loc[loaded(0).case_id, "verdict"] == "slower"
    assert frame.loc[loaded(1).case_id, "verdict"] == "faster"
    assert frame.loc[loaded(1).case_id, "ratio"] == pytest.approx(0.9, rel=0.01)


def test_where_fewer_workers_are_undecided_more_are_no_advice(tmp_path: Path) -> None:
    """From memory 10 ms, without workers 10.2 give or take 5 %, with two 14: the two workers are the cost."""
    summary = summary_of(tmp_path, {MEMORY: (10, 0), loaded(0): (10.2, 1), loaded(2): (14, 3)}, noise=0.03)
    assert verdicts(summary) == {"memory": "memory", "0": "unresolved", "2": "input-bound"}
    assert "; without loader workers this is open" in texts(summary)
    assert "more workers fix it" not in texts(summary)
