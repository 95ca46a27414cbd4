"""Find the experiments that ship with ddpbench."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped_experiments() -> Path:
    """Return the folder of the experiments that ship with ddpbench: in an installed package, or in the checkout."""
    installed = _PACKAGE / "experiments"  # only a wheel has it: see tool.hatch in pyproject.toml
    return installed if installed.is_dir() else _PACKAGE.parent / "experiments"
