"""Every experiment shipped with ddpbench, and every kept run, has an answer of one sentence, for any axes."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.finding import MOST_BENEATH
from ddpbench.analysis.statistics.stats import MIN_ROUNDS
from ddpbench.cli.results import answered
from ddpbench.launch.catalog import TableCatalog
from ddpbench.records import RunDir
from ddpbench.report.rows import rows_of
from ddpbench.report.tables.cases import summary_table
from ddpbench.spec import Case, Devices, expand, load_experiment
from ddpbench.spec.claims import planned_claims
from ddpbench.spec.grouping import Label
from tests.analysis.test_time_to_loss import falling, rank
from tests.kept import KEPT, REPORTS
from tests.recoveries import FailingLaunch, ranks_of, records_of
from tests.synthetic import MS, RankLaunch, processes_of, write_launch, write_plan, write_sessions

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))

ANSWER = re.compile(r"(Yes|No|It depends|×?\d[\d.,]*)\b")
"""The beginning of an answer."""
NESTED = re.compile(r"\([^()]*\(")
COUNT = re.compile(r"\d+ of \d+ claims")
"""A number of claims, which says nothing about the question by itself."""
STARTS = {
    "claim_data_parallel": "No: DataParallel (threads) is 87 % [83, 91] faster than DDP for mlp:large; DDP is 2.21 ",
    "claim_input_bound": "3.4 [2.8, 4.1] times as long: a step of Images (single) without loader workers, compared ",
    "claim_master_congestion": "Yes: from 2 to 16 ranks, a step takes 3.00 [",
    "claim_model_parallel": "4 or 8 microbatches (cannot tell: within 11 %): with 4, pipeline takes 20 % [14, 26] ",
    "claim_one_node_or_many": "It depends: master is 2.07 [2.01, 2.14] times as fast on 1 node x 4 ranks as on 4 x 1; ",
    "frameworks": "1 of 6 wrappers is slower than DDP at 2 ranks: DeepSpeed by 37 % [25, 49]; undecided (up to 24 %): ",
    "hybrid": "Yes: FSDP with replicas=2 (hybrid) is 27 % [4, 188] faster than ring (DDP) and 2.5 [1.8, 5.7] times as ",
    "quick-two-cores-gloo": "2 ranks with master train 1.78 [1.75, 1.81] times as fast as one rank; no difference ",
}
"""The beginnings of the answers of kept runs."""


def step_ms(case: Case) -> float:
    """Return a simple step time that differs for every case."""
    gigabits = 10.0 if case.fabric else 40.0
    volume = (
        case.world_size - 1 if case.algorithm == "master" else 2 * (case.world_size - 1) / case.world_size
    )
    hidden = 0.5 if case.schedule == "overlapped" else 1.0
    cap = 1.0 if not isinstance(case.bucket_cap_mb, float) else 1 + 1 / (1 + case.bucket_cap_mb)
    other = 1 + len(case.workload_options_json + case.options_json) / 500 + len(case.fabric) / 300
    slow = 1.2 if case.precision != "full" else 1.0
    return (50 * slow + 40 * volume * hidden * cap / gigabits) * other


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_has_an_answer_of_few_words(path: Path, tmp_path: Path) -> None:
    catalog = TableCatalog(path.parent)
    experiment = load_experiment(path, catalog)
    cores = 8 if path.stem == "own_strategy" else 4  # one rank on each of its 8 nodes computes
    planned = expand(experiment, catalog, Devices(kind="cpu", gpus=0, cores=cores))
    run = RunDir(tmp_path / "run")
    claims = planned_claims(experiment.claims, experiment.axes, planned)
    write_plan(run, planned, experiment.budget, question=experiment.question, claims=claims)
    dice = random.Random(1)
    target = experiment.budget.until_loss
    for number in range(experiment.budget.rounds_min):
        for entry in planned:
            if entry.skip_reason:
                continue
            case = entry.case
            step = step_ms(case) * case.dilation * (1 + dice.gauss(0, 0.01))
            samples = max(1, case.global_batch // processes_of(case))
            one = RankLaunch(blocks=[[int(step * MS)] * 10], samples_per_step=samples)
            if target:
                one = rank(step, [target + 1] * 20 + falling(20, 5), samples_per_step=samples, target=target)
            ranks = [one] * processes_of(case)
            if case.recovery != "off":
                recorded = ranks_of(
                    FailingLaunch(fails=2 * case.snapshot_every + 7, last=6 * case.snapshot_every), case
                )
                ranks = [replace(one, more=records_of(each)) for each in recorded]
            write_launch(run, case, number, ranks)
    write_sessions(run)
    summary = summarize(run)
    assert summary.conclusions.answer
    assert len(summary.conclusions.claims) == len(experiment.claims)
    assert all(one.pairs for one in summary.conclusions.claims)
    first = summary.conclusions.answer[0]
    assert any(COUNT.match(tag) for tag in first.tags) is bool(experiment.claims)
    assert not COUNT.match(first.text), "the effect stands first"
    if first.kind in ("answer", "growth") or experiment.claims:
        assert ANSWER.match(first.text), first.text
    for finding in summary.conclusions.answer:
        assert len(finding.beneath) <= 2
        assert not NESTED.search(finding.text), finding.text
        parts = [", ".join(tag for tag in finding.tags if isinstance(tag, Label)), *finding.tags]
        assert set(finding.beneath) <= set(parts)
        labels = {tag for tag in finding.tags if isinstance(tag, Label)}
        assert {*finding.beneath[bool(labels) :], *finding.further} == {*finding.tags} - labels
    for finding in (*summary.conclusions.answer, *summary.conclusions.findings):
        assert ".py:" not in finding.text, finding.text
        inexact = "another path of training" in finding.text and "compression=" in finding.text
        assert len(finding.text.split()) <= (32 if inexact else 30), finding.text
        assert not any(part in finding.line for part in ("ss on", "  ", "None", " nan", "( ", "at most -")), (
            finding.line
        )
    enough = experiment.budget.rounds_min >= MIN_ROUNDS
    few = [sentence.text for sentence in summary.conclusions.answer if sentence.verdict == "too few"]
    assert bool(few) is not enough, few


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_has_an_answer_of_few_words(name: str) -> None:
    answer = summarize(RunDir(REPORTS / name)).conclusions.answer
    assert answer[0].text.startswith(STARTS.get(name, "")), answer[0].text
    assert ANSWER.match(answer[0].text)
    for finding in answer:
        assert len(finding.text.split()) <= 30
        assert len(finding.beneath) <= 2
        assert not NESTED.search(finding.text)
        assert ".py:" not in finding.text
        assert not re.search(r"\d\.\d{3}", finding.line), finding.line


def test_the_answer_says_that_every_case_is_slower_than_one_rank() -> None:
    """`hybrid` answers that a hybrid is faster than a plain strategy, and one rank is ten times as fast as that."""
    first = summarize(RunDir(REPORTS / "hybrid")).conclusions.answer[0]
    assert first.text.endswith(" times as fast as with replicas=1 (pipeline 61 % [27, 134] faster).")
    assert first.beneath[1] == (
        "all 5 cases of several ranks are slower than one rank, which is 9.9 to 29 times as fast, "
        "at least 2.5 times in every case"
    )


PRINTED = {
    "hybrid": ["all 5 cases of several ranks are slower than one rank", "3 of 3 claims hold"],
    "ring-vs-master-emulated": [
        "at 16 nodes master has 15 [13, 17] times the network time",
        "network time: while any rank transfers, computing or not",
    ],
    "claim_master_congestion": [
        "from 2 to 32 ranks, a step takes 5.25 [5.18, 5.31] times",
        "4 of 4 claims hold",
    ],
    "claim_one_node_or_many": ["1 of 3 claims holds, 2 hold in part"],
}
"""Beginnings of the qualifications that the line beneath an answer must have where it is printed."""


@pytest.mark.parametrize("name", PRINTED)
def test_labels_that_all_cases_share_take_no_qualifications_place(name: str) -> None:
    shared, _, beneath, *_ = answered(summarize(RunDir(REPORTS / name)))
    assert shared.startswith("all cases: emulated ")
    found = beneath.strip().split("; ")
    assert len(found) <= MOST_BENEATH
    assert all(map(str.startswith, found, PRINTED[name])), found


BENEATH = {
    "claim_input_bound": "undecided: gpt:nano",
    "claim_model_parallel": "3 of 5 claims hold, 2 cannot be told",
    "frameworks": "not counted: TF Mirrored and TF MultiWorker, which compute with other kernels",
    "quick-two-cores-gloo": "±2 % would take about 36 rounds, of which 8 were made",
}
"""A qualification that the line beneath an answer must have."""


@pytest.mark.parametrize("name", BENEATH)
def test_the_line_beneath_has_what_the_answer_needs(name: str) -> None:
    assert BENEATH[name] in summarize(RunDir(REPORTS / name)).conclusions.answer[0].beneath


@pytest.mark.parametrize("name", ["quick-two-cores-gloo", "claim_one_node_or_many", "claim_model_parallel"])
def test_an_undecided_difference_has_one_bound_on_a_page(name: str) -> None:
    """Its interval has two ends and a width, and each was once stated, in the answer or in a table."""
    run = summarize(RunDir(REPORTS / name))
    said = {bound for one in run.conclusions.answer for bound in re.findall(r"within ([\d.]+ %)", one.line)}
    assert len(said - {"2 %"}) == 1, said
    every = " ".join(one.line for one in run.conclusions.answer)
    assert "to exceed" not in every
    assert "tell the ratio" not in every
    if name == "quick-two-cores-gloo":
        notes = [row[-1].text for row in summary_table(run, rows_of(run)).rows]
        (bound,) = said
        tied = f"cannot tell: within {bound} of the fastest other strategy"
        assert sum(tied in note for note in notes) == sum(" other strategy" in note for note in notes) == 2
