"""Modules of a layer: those in the core's folder, and those in the features' folders of that name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ddpbench"


def modules_of(*layers: str) -> Iterator[Path]:
    """Yield the modules of layers such as `report` or `analysis/findings`; of a feature the folder of the layer."""
    for layer in layers:
        yield from sorted((PACKAGE / layer).rglob("*.py"))
        for folder in sorted(PACKAGE.glob(f"features/*/{layer}")):
            yield from sorted(folder.rglob("*.py"))
