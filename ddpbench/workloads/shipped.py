"""Find the profiles that can be replayed, and summarize each in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddpbench.units import format_number

SHIPPED = Path(__file__).resolve().parents[1] / "profiles"
"""Folder of the profiles that come with ddpbench."""
PREFIX = "replay:"
"""Prefix of the name of a workload that replays a profile."""


def shipped() -> tuple[str, ...]:
    """Return the names of the profiles that come with ddpbench."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def is_path(name: str) -> bool:
    """Return whether `name`, the part after `replay:`, is a file's path and not the name of a shipped profile."""
    return name.endswith(".json")


def profile_path(name: str) -> Path:
    """Return the path of the profile that `name`, the part after `replay:`, stands for."""
    return Path(name) if is_path(name) else SHIPPED / f"{name}.json"


def profile_summary(path: Path) -> str:
    """Describe the profile in a file in one line: what was computed, on which device, and how long a step takes."""
    data = json.loads(path.read_text(encoding="utf-8"))
    step_s = sum(_mean(data[part]) for part in ("forward_s", "backward_s", "optimizer_s"))
    step = f"{format_number(1e3 * step_s)} ms a step of {data['local_batch']} samples"
    of = f" in {data['precision']}" if data.get("precision", "full") != "full" else ""
    return f"{data['workload']} on {data['device']}{of}, {step} ({data['source']})"


def _mean(time: Any) -> float:
    """Return a profile's mean time, stored as `mean` or as `[mean, low, high]`."""
    return float(time[0] if isinstance(time, list) else time)
