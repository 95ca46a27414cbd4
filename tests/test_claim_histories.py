"""Claims keep their history: each earlier verdict is listed, and a number always names the same claim."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.launch.catalog import TableCatalog
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import load_experiment
from ddpbench.spec.claims import AnsweredLater, JudgedAgain, PlannedClaim
from ddpbench.spec.shipped import with_known_answers, with_known_history
from tests.claim_histories import (
    EXPERIMENTS,
    Standing,
    contents,
    digest,
    every_version_of_experiments,
    forgotten,
    histories,
    numbered,
    present,
    reused,
    standings,
    without_history,
)
from tests.kept import KEPT, REPORTS, summary_of, unpacked

WHY_NOT = without_history()
in_git = pytest.mark.skipif(bool(WHY_NOT), reason=f"git's history cannot be read: {WHY_NOT}")
CLAIMING = [
    path
    for path in sorted(EXPERIMENTS.glob("*.toml"))
    if "claims" in tomllib.loads(path.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def stood() -> dict[Standing, list[str]]:
    """Return every verdict of every kept page."""
    return standings()


@in_git
def test_every_wording_and_verdict_that_ever_stood_is_in_a_history(
    stood: Mapping[Standing, list[str]],
) -> None:
    missing = forgotten(stood, present(), histories())
    assert not missing, (
        "add [[claims.history]] to the experiment, with the run's id, commit, date and verdict"
    )
    assert len(stood) > 40, "the pages of git's history were not read"


@in_git
def test_a_verdict_that_no_history_tells_is_found(stood: Mapping[Standing, list[str]]) -> None:
    message = histories()
    ring = "a ring's step is no longer with 32 workers than with 2"
    message["claim_master_congestion"] = [
        one
        for one in message["claim_master_congestion"]
        if one["says"] != ring or not one["verdict"].startswith("does not hold")
    ]
    found = forgotten(stood, present(), message)
    assert {(one.says, one.verdict) for one in found} == {(ring, "does not hold")}
    assert {one.run for one in found} == {"", "91cbc443cdf4"}


@in_git
def test_the_numbers_of_a_history_are_those_of_its_run(stood: Mapping[Standing, list[str]]) -> None:
    for name, entries in histories().items():
        for entry in entries:
            head, _, detail = entry["verdict"].partition(":")
            if not entry.get("run"):
                assert head == "no run kept"
                (text,) = contents([f"{entry['commit']}:experiments/{name}.toml"]).values()
                assert entry["says"] in text.decode()
                continue
            where = f"{entry['commit']}:reports/{name}"
            plan, machine = contents([f"{where}/plan.json", f"{where}/machine.json"]).values()
            assert json.loads(plan)["run_id"] == entry["run"], where
            assert json.loads(machine)["context"]["started_utc"][:10] == entry["date"], where
            texts = stood[Standing(report=name, says=entry["says"], verdict=head, run=entry["run"])]
            numbers = re.findall(r"\d[\d.]*", detail)
            assert any(all(number in text for number in numbers) for text in texts), entry


@in_git
def test_a_number_stands_for_one_claim_in_all_of_git_s_history() -> None:
    versions = every_version_of_experiments()
    assert not reused(numbered(versions)), "a changed claim or setting is a new claim: give it a new number"
    assert len({path for path, _ in versions}) >= len(CLAIMING)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('within = "20 %"', 'within = "25 %"'),
        ("hardly longer", "hardly any longer"),
        ("fabric.nodes = 16 }\nas_fast_as", "fabric.nodes = 2 }\nas_fast_as"),
        ("shrink = 40", "shrink = 20"),
        ("rounds_min = 5\nrounds_max = 5", "rounds_min = 6\nrounds_max = 6"),
    ],
)
def test_a_claim_that_was_changed_under_its_number_is_found(old: str, new: str) -> None:
    path = EXPERIMENTS / "claim_master_congestion.toml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace(old, new)
    assert changed != text
    found = reused(numbered([(path.name, text), (path.name, changed)]))
    assert f"{path.name}: claim 7" in found
    unchanged = text.replace('total = "20 min"', 'total = "30 min"').replace("question = ", "question =  ")
    assert not reused(numbered([(path.name, text), (path.name, unchanged)]))


def test_the_digest_of_a_claim_is_not_that_of_its_neighbours() -> None:
    experiment = tomllib.loads((EXPERIMENTS / "hybrid.toml").read_text(encoding="utf-8"))
    assert len({digest(experiment, claim) for claim in experiment["claims"]}) == len(experiment["claims"])


@pytest.mark.parametrize("path", CLAIMING, ids=lambda path: path.stem)
def test_claims_that_ship_are_numbered_and_their_rounds_fixed(path: Path) -> None:
    experiment = load_experiment(path, TableCatalog(path.parent))
    assert experiment.budget.rounds_min == experiment.budget.rounds_max
    assert all(claim.number is not None for claim in experiment.claims)
    owners: dict[int, set[int]] = {}
    for place, claim in enumerate(experiment.claims):
        for number in (claim.number, *(entry.number for entry in claim.history)):
            owners.setdefault(number or 0, set()).add(place)
        says = {(entry.number, entry.says) for entry in claim.history} | {(claim.number, claim.says)}
        assert len({number for number, _ in says}) == len(says), "one wording for each number"
        dates = [entry.date for entry in claim.history]
        assert dates == sorted(dates)
    assert all(len(places) == 1 for places in owners.values()), "no number is in two claims' histories"


def test_a_kept_run_s_claims_come_with_what_was_before_it(tmp_path: Path) -> None:
    plan = read_plan(unpacked("claim_master_congestion", tmp_path))
    assert all(claim.history == () for claim in plan.claims)
    found = with_known_history(plan.claims, plan.experiment, plan.run_id)
    (ring,) = [claim for claim in found if "hardly longer" in claim.says]
    assert ring.number == 7
    assert [entry.head for entry in ring.history] == ["does not hold", "cannot tell", "holds"]
    assert [isinstance(entry, JudgedAgain) for entry in ring.history] == [False, False, True]
    assert {claim.number for claim in found} == {5, 6, 7, 8}
    stranger = with_known_history(plan.claims, plan.experiment, "0" * 12)
    assert stranger == plan.claims, "another run of the same wording is not taken for it"
    elsewhere = with_known_history(plan.claims, plan.experiment, plan.run_id, tmp_path)
    assert elsewhere == plan.claims


def test_a_run_that_is_judged_again_keeps_the_verdict_that_it_had() -> None:
    """By its own records the first and the third of these claims held, until intervals allowed for correlation."""
    summary = summary_of("claim_model_parallel")
    run_id = read_plan(RunDir(REPORTS / "claim_model_parallel")).run_id
    own = [[past["verdict"] for past in one["history"] if past["run"] == run_id] for one in summary["claims"]]
    assert [len(each) for each in own] == [1, 0, 1, 0, 0]
    assert own[0][0].startswith("holds: ")
    tags = [finding["tags"] for finding in summary["findings"] if finding["kind"] == "claim"]
    again = [any(tag.endswith("then judged again") for tag in each) for each in tags]
    assert again == [True, False, True, False, False]


def test_a_part_that_was_refuted_and_is_undecided_now_is_kept_though_the_verdict_is_the_same() -> None:
    """Both then and now it holds in part: for a master, but not for a ring by the rules of that day."""
    run = RunDir(REPORTS / "claim_one_node_or_many")
    summary, run_id = summarize(run), read_plan(run).run_id
    one, two, hidden = summary.conclusions.claims
    assert one.history == hidden.history == ()
    assert [(past.run, past.verdict.partition("] ")[2]) for past in two.history] == [
        (run_id, "faster for master, not for ring (DDP)")
    ]
    assert two.verdict == "holds in part"
    tags = [finding.tags for finding in summary.conclusions.findings if finding.kind == "claim"]
    assert "earlier verdict: holds in part, then judged again" in tags[1]


def test_every_kept_run_is_known_to_the_history_of_its_claims(tmp_path: Path) -> None:
    """Otherwise its page would not show the earlier verdicts."""
    for name in KEPT:
        plan = read_plan(RunDir(unpacked(name, tmp_path).path))
        found = with_known_history(plan.claims, plan.experiment, plan.run_id)
        assert all(claim.number is not None for claim in found), name


def test_a_kept_run_takes_what_its_claims_answer_from_the_shipped_experiment(tmp_path: Path) -> None:
    """Only with the same question and words, because another question may have the opposite answer."""
    plan = read_plan(RunDir(REPORTS / "claim_data_parallel"))
    assert not any(claim.answers for claim in plan.claims)
    found = with_known_answers(plan.claims, plan.experiment, plan.question)
    assert [claim.answers for claim in found] == ["yes", None, None]
    assert [type(claim) for claim in found] == [AnsweredLater, PlannedClaim, PlannedClaim]
    assert [{**asdict(claim), "answers": None} for claim in found] == [*map(asdict, plan.claims)]
    for experiment, question in (
        (plan.experiment, "Is it?"),
        ("claim_input_bound", plan.question),
        ("no such", ""),
    ):
        assert with_known_answers(plan.claims, experiment, question) == plan.claims
    reworded = [replace(claim, says=f"{claim.says} here") for claim in plan.claims]
    assert not any(one.answers for one in with_known_answers(reworded, plan.experiment, plan.question))
    own = [replace(plan.claims[0], answers="no")]
    assert with_known_answers(own, plan.experiment, plan.question) == tuple(own)


@pytest.mark.parametrize("name", KEPT)
def test_an_answer_that_was_added_after_a_run_is_marked_at_its_claim(name: str) -> None:
    """A claim that says yes or no was read so by an experiment that is newer than the run."""
    conclusions = summarize(RunDir(REPORTS / name)).conclusions
    stored = read_plan(RunDir(REPORTS / name)).claims
    findings = [finding for finding in conclusions.findings if finding.kind == "claim"]
    assert len(findings) == len(stored) == len(conclusions.claims)
    for claim, decided, finding in zip(stored, conclusions.claims, findings, strict=True):
        later = claim.answers is None and decided.answers is not None
        assert decided.answered_later is later
        assert (f'its answer "{decided.answers}" was added after the run' in finding.tags) is later
    if conclusions.answer[0].text.startswith(("Yes", "No:")):
        assert any(one.answers for one in conclusions.claims)
        assert not any("was added after" in tag for tag in conclusions.answer[0].tags), "it is of one claim"
