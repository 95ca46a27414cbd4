"""The controlling side answers without importing torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
        (["sweep", "quick", "--dry-run"], 0),
        (["sweep", "quick", "--dry-run", "--json"], 0),
        (["sweep", "quick", "--set", "axes.strategy=dpd"], 2),
        (["sweep", "nowhere"], 2),
    ],
)
def test_no_heavy_import(arguments: list[str], code: int) -> None:
    found, ended = loaded(*arguments)
    assert found in ("[]", "['pydantic']")
    assert ended == code
