"""The allocation page as Markdown."""

from __future__ import annotations

from ddpbench.analysis.scaling.allocation import Allocation
from ddpbench.report.allocation.columns import columns_of
from ddpbench.report.allocation.figure import picture
from ddpbench.report.allocation.sentences import choice, length, method, paragraphs, saving
from ddpbench.texts import clean


def markdown(allocation: Allocation) -> str:
    """Return the page as Markdown."""
    columns = columns_of(allocation)
    lines = [f"# Resources for {allocation.name}: {allocation.setting}", ""]
    lines.append("| " + " | ".join(column.title for column in columns) + " |")
    lines.append("|" + "---:|" * len(columns))
    for job in allocation.jobs:
        cells = [column.text(job) for column in columns]
        if job is allocation.chosen:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        lines.append("| " + " | ".join(map(_markdown, cells)) + " |")
    bold = "In bold: the chosen job size."
    parts = [f"{bold} {length(allocation)}".rstrip(), choice(allocation), *filter(None, [saving(allocation)])]
    lines += ["", *paragraphs(parts), "", f"![{picture(allocation).alt}](allocation.png)", ""]
    lines += ["## Method", "", method(allocation)]
    if allocation.left_out:
        lines += ["", allocation.left_out]
    return clean("\n".join(lines)) + "\n"


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")
