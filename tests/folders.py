"""Modules of a layer: those in the core's folder, and those in the features' folders of that name; and copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ddpbench"


def copy_tree(folder: Path, to: Path) -> None:
    """Copy a folder with its compiled modules: compiling the package takes longer than most commands of tests."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.pyc.*"))  # those that are being written


def modules_of(*layers: str) -> Iterator[Path]:
    """Yield the modules of layers such as `report` or `analysis/findings`; of a feature the folder of the layer."""
    for layer in layers:
        yield from sorted((PACKAGE / layer).rglob("*.py"))
        for folder in sorted(PACKAGE.glob(f"features/*/{layer}")):
            yield from sorted(folder.rglob("*.py"))
