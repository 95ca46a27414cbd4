"""JSON that a command reads: invalid contents are refused in a message that names the file and the place."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

import ddpbench
from ddpbench.errors import IdentityError
from ddpbench.launch.interleave.turns import FILE, read_comparison
from ddpbench.records import RunDir
from ddpbench.records.files import parse_json
from ddpbench.records.machine import read_merged
from ddpbench.records.plan import read_plan
from ddpbench.spec import Case, PlannedCase
from tests.campaign import documents
from tests.synthetic import case_of, write_run

SIDE = {"words": "ref=main", "commit": "0123", "overrides": []}
COMPARISON = {
    "schema_version": 1,
    "experiment": "quick.toml",
    "base": SIDE,
    "new": SIDE,
    "order": ["base"],
    "foreign": [0.1],
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested more than 64 levels deep"),
        (json.dumps({**COMPARISON, "experiment": "\ud800"}), "a text that cannot be shown"),
        (json.dumps(COMPARISON).replace("0.1", "1e400"), "1e400 is not a finite number"),
        (
            json.dumps({**COMPARISON, "foreign": [0.1, 0.2]}),
            "foreign and order have different numbers of rounds: 2 and 1",
        ),
        (json.dumps({**COMPARISON, "order": None}), "order: input should be a valid list"),
        (json.dumps({**COMPARISON, "base": []}), "base: input should be a valid dict"),
        (json.dumps({**COMPARISON, "order": ["neither"]}), "order.0"),
        (json.dumps({**COMPARISON, "schema_version": True}), "has schema True"),
        ("null", "an object was expected"),
    ],
)
def test_a_damaged_comparison_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(IdentityError, match=said) as caught:
        read_comparison(tmp_path)
    assert str(tmp_path / FILE) in str(caught.value)


@pytest.mark.parametrize("cases", [None, {}, 0, "x"])
def test_a_plan_whose_cases_are_no_list_is_damaged(tmp_path: Path, cases: object) -> None:
    run = write_run(tmp_path / "run", 1, rounds=1, blocks=1, steps=1)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    run.plan.write_text(json.dumps({**plan, "cases": cases}), encoding="utf-8")
    with pytest.raises(IdentityError, match="cases: a list was expected"):
        ddpbench.report_on(run.path)


@pytest.mark.parametrize("name", [one.name for one in fields(Case)])
@pytest.mark.parametrize("value", [[], {"a": 1}, "lots" * 10_000, -1e300])
def test_a_plan_holds_each_field_of_a_case_to_its_declaration(
    tmp_path: Path, name: str, value: object
) -> None:
    run = write_run(tmp_path / "run", 1, rounds=1, blocks=1, steps=1)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["cases"][0][name] = value
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(IdentityError, match=rf"cases\.0\.{name}"):
        read_plan(RunDir(run.path))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "bucket_cap_mb",
            1e300,
            "input should be 'default', or 1e-06 to 1,048,576: no model has a TiB of gradients",
        ),
        ("bucket_cap_mb", "large", "input should be 'default', or 1e-06 to 1,048,576"),
        (
            "stands_for",
            ["default", 0],
            "input should be 'default', or 1e-06 to 1,048,576: a bucket has at least one byte",
        ),
    ],
)
def test_a_value_of_several_types_is_said_to_be_wrong_for_each(
    tmp_path: Path, name: str, value: object, said: str
) -> None:
    run = write_run(tmp_path / "run", 1, rounds=1, blocks=1, steps=1)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["cases"][0][name] = value
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    where = f"cases.0.{name}" + (".1" if isinstance(value, list) else "")
    with pytest.raises(IdentityError) as raised:
        read_plan(RunDir(run.path))
    assert f"is damaged: {where}: {said}" in str(raised.value)


def test_what_a_merged_run_does_not_say_of_a_source_has_its_default(tmp_path: Path) -> None:
    stored = {"schema_version": 1, "sources": [{"path": "a", "fingerprint": "0"}]}
    (tmp_path / "merged.json").write_text(json.dumps(stored), encoding="utf-8")
    found = read_merged(RunDir(tmp_path))
    assert found["left_out"] == []
    assert (found["sources"][0]["cores"], found["sources"][0]["host"]) == (0, None)


def test_infinite_numbers_are_read_where_that_is_asked_for() -> None:
    assert parse_json("[1e400, NaN]", finite=False)[0] == float("inf")
    for text in ("[1e400]", "[NaN]", "[-Infinity]"):
        with pytest.raises(ValueError, match="not a finite number"):
            parse_json(text)


def test_the_campaign_changes_every_container_of_every_document() -> None:
    for name in documents.DOCUMENTS:
        changes = {rest.split(":", 2)[2] for rest in documents.names() if rest.startswith(f"{name}:")}
        assert {"=null", "=empty-list", "=empty-table", "=nested-5000"} <= changes, name
    plan = {rest for rest in documents.names() if rest.startswith("plan.json:0:cases=")}
    assert {
        f"plan.json:0:cases={way}" for way in ("null", "empty-table", "text", "shorter", "longer")
    } <= plan
    commands = {document.commands[0][0] for document in documents.DOCUMENTS.values()}
    assert commands >= {"report", "compare", "submit", "sweep"}


@pytest.mark.parametrize("field", ["workload", "strategy", "checkpoint_dir", "launcher", "fabric"])
def test_a_text_of_a_case_is_no_longer_than_one_of_an_experiment(tmp_path: Path, field: str) -> None:
    """Figures repeat it at every bar: one of 200,000 characters takes minutes."""
    planned = PlannedCase(case=case_of("single", 1))
    run = write_run(tmp_path, [planned], rounds=1, blocks=1, steps=1)
    plan = json.loads(run.plan.read_text())
    plan["cases"][0][field] = "w" * 5_000
    run.plan.write_text(json.dumps(plan))
    with pytest.raises(IdentityError, match=f"{field}: string should have at most 4096 characters"):
        read_plan(run)
