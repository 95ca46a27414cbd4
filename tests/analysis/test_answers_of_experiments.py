"""Every experiment shipped with ddpbench has an answer of one sentence, for any axes."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.statistics.stats import MIN_ROUNDS
from ddpbench.launch.catalog import TableCatalog
from ddpbench.records import RunDir
from ddpbench.spec import Case, Devices, expand, load_experiment
from ddpbench.spec.claims import planned_claims
from ddpbench.spec.grouping import Label
from tests.analysis.test_time_to_loss import falling, rank
from tests.recoveries import FailingLaunch, ranks_of, records_of
from tests.synthetic import MS, RankLaunch, processes_of, write_launch, write_plan, write_sessions

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))

ANSWER = re.compile(r"(Yes|No|It depends|×?\d[\d.,]*)\b")
"""The beginning of an answer."""
NESTED = re.compile(r"\([^()]*\(")


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
    assert (summary.conclusions.answer[0].evidence == "claims") is bool(experiment.claims)
    first = summary.conclusions.answer[0]
    if first.kind in ("answer", "growth"):
        assert ANSWER.match(first.text), first.text
    for finding in summary.conclusions.answer:
        assert len(finding.beneath) <= 2
        assert not NESTED.search(finding.text), finding.text
        parts = [", ".join(tag for tag in finding.tags if isinstance(tag, Label)), *finding.tags]
        assert set(finding.beneath) <= set(parts)
        labels = {tag for tag in finding.tags if isinstance(tag, Label)}
        assert {*finding.beneath[bool(labels) :], *finding.further} == {*finding.tags} - labels
    for finding in (*summary.conclusions.answer, *summary.conclusions.findings):
        inexact = "another path of training" in finding.text and "compression=" in finding.text
        assert len(finding.text.split()) <= (32 if inexact else 30), finding.text
        assert not any(part in finding.line for part in ("ss on", "  ", "None", " nan", "( ", "at most -")), (
            finding.line
        )
    enough = experiment.budget.rounds_min >= MIN_ROUNDS
    few = [sentence.text for sentence in summary.conclusions.answer if sentence.verdict == "too few"]
    assert bool(few) is not enough, few
