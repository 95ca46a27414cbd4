"""The runs that are kept under `reports/`, each with its raw records, for tests that recompute them."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

from ddpbench.records import RunDir

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"
KEPT = tuple(sorted(path.parent.name for path in REPORTS.glob("*/records.tar.xz")))
"""Return the names of the kept runs."""
_DERIVED = {"cases", "cases.csv", "cases.parquet", "report.html", "figures", "report.png", ".lock"}


def unpacked(name: str, folder: Path) -> RunDir:
    """Return a copy in `folder` of what was measured: the records and their descriptions, nothing derived."""
    source = REPORTS / name
    run = RunDir(folder / name)
    run.path.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in _DERIVED and path.is_file():
            shutil.copy(path, run.path)
    return run


def embedded(page: str, kind: str) -> str:
    """Return a page's data of this kind, `text/csv` or `application/json`, as its download link has it."""
    found = re.findall(rf'href="data:{kind};base64,([\w+/=]+)"', page)
    assert len(found) == 1, kind
    return base64.b64decode(found[0]).decode("utf-8")


def summary_of(name: str) -> dict[str, Any]:
    """Return the summary that a kept run's page holds."""
    page = (REPORTS / name / "report.html").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(embedded(page, "application/json"))
    return loaded
