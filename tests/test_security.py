"""The threat model: each of its lines has tests that exist; and the tests that need no other file."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.report import write_report
from ddpbench.spec import PlannedCase
from tests.synthetic import case_of, write_run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")
LINES = [line for line in TEXT.splitlines() if re.match(r"\| (?!given \||who \|)", line)]
TESTS = tomllib.loads((ROOT / "tests/threats.toml").read_text(encoding="utf-8"))
"""The tests of each line, by its first cell."""


def test_every_line_has_tests() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in LINES]
    assert {len(row) for row in cells} == {3}
    assert [row[0] for row in cells] == list(TESTS)
    assert all(TESTS.values())


@pytest.mark.parametrize(
    "path", sorted({place.partition(":")[0] for places in TESTS.values() for place in places})
)
def test_every_test_that_checks_a_line_exists(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = {
        place.partition(":")[2]
        for places in TESTS.values()
        for place in places
        if place.startswith(f"{path}:")
    }
    assert named <= defined


def test_no_line_is_missed() -> None:
    assert len(LINES) == TEXT.count("\n|") - 2 * TEXT.count("\n|---"), "all but the tables' heads"


def test_a_report_imports_nothing_that_its_run_names(tmp_path: Path) -> None:
    acted = tmp_path / "acted"
    script = tmp_path / "stranger.py"
    script.write_text(f"import pathlib\npathlib.Path({str(acted)!r}).touch()\n", encoding="utf-8")
    cases = [
        PlannedCase(
            case=case_of(strategy, world, workload=f"{script}:Evil"),
            skip_reason=None,
            added_as_baseline=False,
            oversubscribed=False,
        )
        for strategy, world in (("single", 1), ("ddp", 2), (f"{script}:Evil", 2))
    ]
    run = write_run(tmp_path / "run", cases, blocks=2, steps=4)
    page = write_report(summarize(run), run)
    assert "Evil" in page.read_text(encoding="utf-8")
    assert not acted.exists()
