"""The page on the architecture names places that exist, in the order of the layers."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`((?:ddpbench|tests)/[\w/.]+\.py(?::\w+)?)`", TEXT)))


@pytest.mark.parametrize("place", PLACES)
def test_every_place_exists(place: str) -> None:
    path, _, name = place.partition(":")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    defined |= {
        target.id
        for node in tree.body
        for target in (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if isinstance(target, ast.Name)
    }
    assert not name or name in defined


def test_it_names_places_and_all_layers() -> None:
    assert len(PLACES) > 25
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    (layers,) = [one for one in contracts if one["name"] == "Layers point down"]
    packages = {
        name.strip().removeprefix("ddpbench.")
        for line in layers["layers"]
        for name in line.split("|")
        if (ROOT / name.strip().replace(".", "/")).is_dir()
    }
    table = {word for row in re.findall(r"^\| (`.*?) \|", TEXT, re.M) for word in re.findall(r"`(\w+)`", row)}
    assert packages <= table
