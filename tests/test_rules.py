"""The table of Hoefler & Belli's rules has all twelve, each with places that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ddpbench.analysis.table.columns import COLUMNS
from tests.folders import modules_of

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if re.match(r"\| \d+ \|", line)
]


def places(pattern: str) -> list[str]:
    return sorted({match for row in ROWS for match in re.findall(pattern, row[-1])})


def test_all_twelve_are_there() -> None:
    assert [row[0].strip("| ") for row in ROWS] == [str(number) for number in range(1, 13)]
    for _, words, how, where in ROWS:
        assert words.endswith(".")
        assert how.endswith(".")
        assert "`" in where or "*" in where
    assert "All twelve are met by every report of a run measured by today's version." in TEXT


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`((?:ddpbench|tests)/[^`]+)`", TEXT))))
def test_every_file_and_name_exists(place: str) -> None:
    path, _, name = place.partition(":")
    assert (ROOT / path).is_file(), place
    if name:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        names |= {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign | ast.Assign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        assert name in names, place


def test_every_column_and_section_exists() -> None:
    for name in places(r"`([a-z0-9_]+)`"):
        assert name in COLUMNS, name
    page = (ROOT / "ddpbench/report/page.html").read_text(encoding="utf-8")
    sources = page + "".join(path.read_text(encoding="utf-8") for path in modules_of("report"))
    named = places(r"\*([A-Z][^*]+)\*")
    assert len(named) > 5
    for name in named:
        assert f'"{name}"' in sources or f">{name}<" in page, name


def test_the_readme_points_to_it() -> None:
    assert "](docs/rules.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
