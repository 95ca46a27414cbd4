"""A run's summary as one self-contained page and a folder of figures. It draws and formats; it computes nothing.

`write_report` is the way in. matplotlib is imported only once something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ddpbench.analysis.summary import RunSummary
from ddpbench.errors import OutputError
from ddpbench.records import RunDir, explain_os_error, write_atomically

if TYPE_CHECKING:
    from ddpbench.report.draw.painter import Painter


def write_report(summary: RunSummary, run: RunDir, painter: Painter | None = None) -> Path:
    """Writes `report.html` and `figures/*.png`; returns the page's path. `painter` shares the drawing.

    The page needs no network and no other file. Equal summaries give equal bytes.

    Raises:
        OutputError: the run directory cannot be written.
    """
    from ddpbench.report.page import build

    page = build(summary, painter)
    try:
        run.figures.mkdir(exist_ok=True)
        for name in _stale_figures(set(page.figures), [path.name for path in run.figures.iterdir()]):
            (run.figures / name).unlink()
        for name, content in page.figures.items():
            _write_bytes(run.figures / name, content)
        write_atomically(run.report, page.html)
    except OSError as error:
        raise OutputError(f"the report cannot be written to {run.path}: {explain_os_error(error)}") from None
    return run.report


def _stale_figures(now: set[str], found: Iterable[str]) -> list[str]:
    """Files of this package's naming that an earlier report left and this one does not write."""
    kinds = {"breakdown", "buckets", "communication", "evaluation", "heatmap", "heatmap-links", "inputs"}
    kinds |= {"laws", "layouts", "links", "links-settings", "network", "one-step", "precision", "scaling"}
    kinds |= {"checkpoints", "snapshots", "strategies", "time-to-loss", "waterfall"}
    return [
        name
        for name in found
        if name.endswith(".png") and name not in now and name[:-4].rstrip("-0123456789") in kinds
    ]


def _write_bytes(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    os.replace(beside, path)  # noqa: PTH105 - the pair of write_atomically, for bytes
