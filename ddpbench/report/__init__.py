"""Write the HTML report of a run and the folder of its figures, by `write_report`; results come from `analysis`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ddpbench.analysis.summary import RunSummary
from ddpbench.errors import OutputError
from ddpbench.picture_formats import FORMATS, ONLY_PNG, PictureFormats
from ddpbench.records import RunDir, explain_os_error, write_atomically

if TYPE_CHECKING:
    from ddpbench.report.draw.painter import Painter


def write_report(
    summary: RunSummary, run: RunDir, painter: Painter | None = None, wanted: PictureFormats = ONLY_PNG
) -> Path:
    """Write a run's `report.html` and figures, and return the path of the page.

    The figures are written as `figures/*.png` and in the formats `wanted` or written earlier. A `painter` can draw in
    several processes. The page loads nothing. Equal summaries give equal bytes.

    Raises:
        OutputError: the run directory cannot be written.
    """
    from ddpbench.report.page import build

    page = build(summary, painter, _with_earlier(wanted, run))
    try:
        run.figures.mkdir(exist_ok=True)
        for path in [*_pictures(run.figures), *_pictures(run.slides)]:
            if str(path.relative_to(run.path)) not in page.figures:
                path.unlink(missing_ok=True)  # another report may have removed it
        for name, content in page.figures.items():
            path = run.path / name
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, content, flushed=False)
        write_atomically(run.report, page.html)
    except OSError as error:
        raise OutputError(f"the report cannot be written to {run.path}: {explain_os_error(error)}") from None
    return run.report


def _with_earlier(wanted: PictureFormats, run: RunDir) -> PictureFormats:
    figures, slides = (
        {path.suffix[1:] for path in _pictures(folder)} for folder in (run.figures, run.slides)
    )
    return PictureFormats(figures=wanted.figures | figures, slides=wanted.slides | slides)


def _pictures(folder: Path) -> list[Path]:
    kinds = {"breakdown", "buckets", "communication", "evaluation", "heatmap", "heatmap-links", "inputs"}
    kinds |= {"laws", "layouts", "links", "links-settings", "network", "one-step", "precision", "scaling"}
    kinds |= {"checkpoints", "snapshots", "step-times", "strategies", "time-to-loss", "waterfall"}
    return [
        path
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if path.suffix[1:] in FORMATS and re.fullmatch(rf"({'|'.join(kinds)})(-\d+)?", path.stem)
    ]
