"""The allocation page as LaTeX, and how a text becomes LaTeX."""

from __future__ import annotations

import re
import unicodedata

from ddpbench.analysis.scaling.allocation import Allocation
from ddpbench.report.allocation.columns import columns_of
from ddpbench.report.allocation.figure import picture
from ddpbench.report.allocation.sentences import choice, length, method, paragraphs, saving
from ddpbench.texts import clean


def latex(allocation: Allocation) -> str:
    """Return the page as LaTeX for another document to input; it needs booktabs and graphicx."""
    columns = columns_of(allocation)
    rows = []
    for job in allocation.jobs:
        cells = [escape(column.text(job)) for column in columns]
        if job is allocation.chosen:
            cells = [f"\\textbf{{{cell}}}" if cell else "" for cell in cells]
        rows.append("      " + " & ".join(cells) + r" \\")
    caption = escape(f"Resources for {allocation.name}: {allocation.setting}. In bold: the chosen job size.")
    notes = [escape(text) for text in (length(allocation), choice(allocation), saving(allocation)) if text]
    drawn = picture(allocation)
    left_out = f"\n\n{escape(allocation.left_out)}" if allocation.left_out else ""
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
            "      " + " & ".join(escape(column.title) for column in columns) + r" \\",
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
            rf"  \caption{{{escape(drawn.caption)}}}",
            r"  \label{fig:allocation}",
            r"\end{figure}",
            "",
            r"\paragraph{Method.}",
            f"{escape(method(allocation))}{left_out}",
            "",
        ]
    )


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # \textquotedbl is not in every font encoding
    "`": "'",
    "[": r"{[}",
    "]": r"{]}",
    "\N{MINUS SIGN}": "$-$",
    "\N{MICRO SIGN}": r"$\mu$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{DEGREE SIGN}": r"$^\circ$",
    "\N{REGISTERED SIGN}": r"\textregistered{}",
    "\N{TRADE MARK SIGN}": r"\texttrademark{}",
    "\N{NO-BREAK SPACE}": "~",
}
"""Brackets too: after a line break LaTeX would read them as its optional argument."""
_ACCENTS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"


def escape(text: str) -> str:
    """A text that LaTeX sets as it is, whatever engine and font; what no Latin font has becomes a question mark."""
    plain = clean(text).replace("\n", " ")
    whole = "".join(_SPECIAL.get(one) or _plain(one) for one in plain)
    return re.sub(r"-(?=-)", "-{}", whole)  # two hyphens would become a dash


def _plain(character: str) -> str:
    if " " <= character <= "~":
        return character
    parts = unicodedata.normalize("NFD", character)
    accented = len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS
    return character if accented else "?"
