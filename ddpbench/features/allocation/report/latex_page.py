"""Write a proposal's page as LaTeX."""

from __future__ import annotations

from ddpbench.escaping import escape_latex
from ddpbench.features.allocation.analysis.allocation import Allocation
from ddpbench.features.allocation.report.columns import columns_of
from ddpbench.features.allocation.report.figure import picture
from ddpbench.features.allocation.report.sentences import choice, length, method, paragraphs, saving


def latex(allocation: Allocation) -> str:
    """Return the page as LaTeX to include in a document that loads booktabs and graphicx."""
    columns = columns_of(allocation)
    rows = []
    for job in allocation.jobs:
        cells = [escape_latex(column.text(job)) for column in columns]
        if job is allocation.chosen:
            cells = [f"\\textbf{{{cell}}}" if cell else "" for cell in cells]
        rows.append("      " + " & ".join(cells) + r" \\")
    caption = escape_latex(
        f"Resources for {allocation.name}: {allocation.setting}. In bold: the chosen job size."
    )
    notes = [
        escape_latex(text) for text in (length(allocation), choice(allocation), saving(allocation)) if text
    ]
    drawn = picture(allocation)
    left_out = f"\n\n{escape_latex(allocation.left_out)}" if allocation.left_out else ""
    return "\n".join(
        [
            r"% In the preamble: \usepackage{booktabs,graphicx}",
            r"\begin{table}[htbp]",
            r"  \centering",
            rf"  \caption{{{caption}}}",
            r"  \label{tab:allocation}",
            r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"    \begin{{tabular}}{{{'r' * len(columns)}}}",
            r"      \toprule",
            "      " + " & ".join(escape_latex(column.title) for column in columns) + r" \\",
            r"      \midrule",
            *rows,
            r"      \bottomrule",
            r"    \end{tabular}%",
            r"  }",
            r"\end{table}",
            "",
            *paragraphs(notes),
            "",
            r"\begin{figure}[htbp]",
            r"  \centering",
            r"  \includegraphics[width=0.8\linewidth]{allocation.png}",
            rf"  \caption{{{escape_latex(drawn.caption)}}}",
            r"  \label{fig:allocation}",
            r"\end{figure}",
            "",
            r"\paragraph{Method.}",
            f"{escape_latex(method(allocation))}{left_out}",
            "",
        ]
    )
