"""Validity names the rules that a run's machine.json is too old for, and other measuring code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddpbench.own_code
from ddpbench.analysis import summarize
from ddpbench.own_code import RANK_CODE, code_digest
from ddpbench.records import RunDir
from tests.synthetic import RankLaunch, case_of, write_launch, write_plan

SETUP = {"numa": "1 node"}


def message(folder: Path, digest: str | None, setup: dict[str, str] | None) -> str:
    run, case = RunDir(folder / "run"), case_of("single", 1)
    write_plan(run, [case])
    write_launch(run, case, 0, [RankLaunch()])
    machine: dict[str, Any] = json.loads(run.machine.read_text(encoding="utf-8"))
    machine["identity"] |= {} if digest is None else {"rank_code_digest": digest}
    machine["context"] |= {} if setup is None else {"setup": setup}
    run.machine.write_text(json.dumps(machine), encoding="utf-8")
    return "\n".join(summarize(run).conclusions.validity)


def test_a_run_of_today_s_code_and_records_has_nothing_to_say(tmp_path: Path) -> None:
    found = message(tmp_path, code_digest(), SETUP)
    assert "measuring code" not in found
    assert "Rule 9" not in found


def test_other_measuring_code_is_said(tmp_path: Path) -> None:
    found = message(tmp_path, "0011223344556677", SETUP)
    assert "Other measuring code than this version's made this run (rank_code_digest in Provenance)." in found
    assert "Rule 9" not in found


def test_a_run_from_before_digests_and_setups_says_both(tmp_path: Path) -> None:
    found = message(tmp_path, None, None)
    assert "Which measuring code made this run is not known" in found
    assert "Rule 9 of Hoefler and Belli is not met" in found


@pytest.mark.parametrize(
    "package", ["measure", "worker", "strategies", "collectives", "workloads", "features/some/rank"]
)
def test_the_digest_changes_with_what_runs_in_a_rank(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*RANK_CODE, "report"):
        name = name.replace("*", "some")
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "one.py").write_text("1\n", encoding="utf-8")
    monkeypatch.setattr(ddpbench.own_code, "__file__", str(tmp_path / "own_code.py"))
    before = code_digest()
    (tmp_path / "report/one.py").write_text("2\n", encoding="utf-8")
    assert code_digest() == before
    (tmp_path / package / "one.py").write_text("2\n", encoding="utf-8")
    assert code_digest() != before
