"""Strategies from a user's own file on real ranks: proved and measured, or refused with a message."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from ddpbench.launch.verify import ProofVerdict, verification_cases, verify
from tests.failures.conftest import ROOT, run_cli

pytestmark = pytest.mark.multiprocess

OWN = ROOT / "tests/failures/own_strategies.py"


def own(name: str) -> str:
    return f"{OWN}:{name}"


def proved(strategies: list[str], overrides: list[str]) -> dict[str, ProofVerdict]:
    cases = verification_cases(strategies, [own("Mine")], [2], "gloo", overrides=overrides)
    return {verdict.strategy.rpartition(":")[2]: verdict for verdict in verify(cases)}


def test_a_sound_one_is_proved_and_others_say_what_is_wrong() -> None:
    found = proved([own("Averages"), own("Raises"), own("RaisesLater")], [])
    assert found["Averages"].result == "ok", found
    assert found["Raises"].result == "failed"
    assert re.search(r"KeyError: 'of mine' \(.*own_strategies\.py:\d+\)", found["Raises"].reason), found
    assert re.search(r"of mine", found["RaisesLater"].reason), found
    wrong = proved([own("Averages")], [f'options."{own("Averages")}".scale=2'])
    assert wrong["Averages"].result == "diverged"
    assert "the strategy does not train as one process does" in wrong["Averages"].reason


def test_a_run_of_it_is_read_without_its_file_and_not_resumed_with_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    shutil.copy(OWN, path)
    source = tmp_path / "experiment.toml"
    source.write_text(
        """
        [base]
        workload = "mine.py:Mine"
        world_size = 2
        [axes]
        strategy = ["ddp", "mine.py:Averages"]
        [budget]
        rounds_min = 1
        rounds_max = 1
        measured_s = 0.1
        """,
        encoding="utf-8",
    )
    run = tmp_path / "run"
    done = run_cli("sweep", source, "--out", run)
    assert done.returncode == 0, done.stderr
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    stated = {case["strategy"].rpartition(":")[2]: case["strategy_traits"] for case in plan["cases"]}
    assert {name for name, traits in stated.items() if traits} == {"Averages"}
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}\n# another program\n", encoding="utf-8")
    refused = run_cli("sweep", run)
    assert refused.returncode == 2
    assert f"a workload or strategy, or its source changed: {path}" in refused.stderr
    path.unlink()
    shown = run_cli("report", run)
    assert shown.returncode == 0, shown.stderr
    assert "Averages" in (run / "report.html").read_text(encoding="utf-8")
    gone = run_cli("sweep", run)
    assert gone.returncode == 2
    assert "there is no file" in gone.stderr
    assert "Traceback" not in gone.stderr
