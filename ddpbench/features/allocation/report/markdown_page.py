"""Write a proposal's page as Markdown."""

from __future__ import annotations

from ddpbench.escaping import escape_markdown, markdown_row
from ddpbench.features.allocation.analysis.allocation import Allocation
from ddpbench.features.allocation.report.columns import columns_of
from ddpbench.features.allocation.report.figure import picture
from ddpbench.features.allocation.report.sentences import choice, length, method, paragraphs, saving


def markdown(allocation: Allocation) -> str:
    """Return the page as Markdown."""
    columns = columns_of(allocation)
    lines = [f"# {escape_markdown(f'Resources for {allocation.name}: {allocation.setting}')}", ""]
    lines.append(markdown_row(column.title for column in columns))
    lines.append("|" + "---:|" * len(columns))
    for job in allocation.jobs:
        cells = [escape_markdown(column.text(job), cell=True) for column in columns]
        if job is allocation.chosen:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    bold = "In bold: the chosen job size."
    parts = [f"{bold} {length(allocation)}".rstrip(), choice(allocation), *filter(None, [saving(allocation)])]
    alt = escape_markdown(picture(allocation).alt, brackets=True)
    lines += ["", *paragraphs([escape_markdown(part) for part in parts]), "", f"![{alt}](allocation.png)", ""]
    lines += ["## Method", "", escape_markdown(method(allocation))]
    if allocation.left_out:
        lines += ["", escape_markdown(allocation.left_out)]
    return "\n".join(lines) + "\n"
