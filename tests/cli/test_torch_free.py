"""The controlling side answers without importing torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic import write_run

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from ddpbench.cli import run
try:
    code = run(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
named = {"torch", "pandas", "matplotlib", "scipy", "pydantic"}
heavy = sorted({name.partition(".")[0] for name in sys.modules} & named)
print("LOADED", heavy, "CODE", code)
"""


def loaded(*arguments: str) -> tuple[str, int]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, cwd=ROOT, check=True
    )
    line = result.stdout.splitlines()[-1]
    head, _, code = line.rpartition(" CODE ")
    return head.removeprefix("LOADED "), int(code)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sweep", "--help"], ["--version"], ["list"], ["list", "--json"]]
)
def test_what_only_lists_imports_no_validation_either(arguments: list[str]) -> None:
    assert loaded(*arguments) == ("[]", 0)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["init", "experiments/own_script/train_before.py"], 0),
        (["doctor", "--json"], 0),
        (["sweep", "quick", "--dry-run", "--json"], 0),
        (["sweep", "quick", "--set", "axes.strategy=dpd"], 2),
        (["sweep", "nowhere"], 2),
    ],
)
def test_no_heavy_import(arguments: list[str], code: int) -> None:
    found, ended = loaded(*arguments)
    assert found in ("[]", "['pydantic']")
    assert ended == code


def test_a_dry_run_draws_nothing_and_needs_no_torch() -> None:
    """It loads the analysis, which knows what the planned rounds resolve."""
    assert loaded("sweep", "quick", "--dry-run") == ("['pandas', 'pydantic', 'scipy']", 0)


def test_a_report_on_no_run_is_refused_before_pandas_is_loaded(tmp_path: Path) -> None:
    assert loaded("report", str(tmp_path)) == ("['pydantic']", 2)


def test_a_report_starts_other_processes_before_it_loads_what_they_load(tmp_path: Path) -> None:
    """Both load the same modules: one after the other would add a second to every report."""
    write_run(tmp_path / "run", 2)
    program = (
        "import sys\n"
        "from ddpbench import cli, helper_process\n"
        "def starts(cases):\n"
        "    sys.exit(repr([name for name in ('pandas', 'scipy', 'numpy') if name in sys.modules]))\n"
        "helper_process.for_report = starts\n"
        "cli.run(['report', sys.argv[1], '--figures', 'svg'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert ended.stderr == "[]\n"
