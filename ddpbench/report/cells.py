"""Write a table's cells as HTML in Python, because a Jinja macro takes ten times as long."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from ddpbench.report.parts import Cell, Column
from ddpbench.text_safety import clean, on_page


def cells(row: Sequence[Cell], columns: Sequence[Column] = ()) -> Markup:
    """Return a table's row as HTML `<th>` (the first cell) and `<td>` elements.

    All text is escaped. With `columns`, each cell has its column's title as an attribute, for narrow screens.
    """
    titles = [column.title for column in columns] or [""] * len(row)
    pairs = zip(row, titles, strict=True)
    return Markup("").join(
        _cell(cell, head=number == 0, title=title) for number, (cell, title) in enumerate(pairs)
    )


def _cell(cell: Cell, *, head: bool, title: str) -> Markup:
    tag = "th" if head else "td"
    kind = "n" if cell.number else "unbroken" if cell.unbroken else ""
    key = cell.key if not isinstance(cell.key, str) else clean(cell.key)
    attributes = "".join(
        (
            ' scope="row"' if head else "",
            f' class="{kind}"' if kind else "",
            f' data-key="{escape(key)}"' if key is not None else "",
            f' data-title="{escape(title)}"' if title and (cell.text or cell.under) else "",
        )
    )
    text: str = escape(on_page(cell.text))
    if cell.link:
        text = f'<a href="{escape(clean(cell.link))}">{text}</a>'
    elif cell.strong:
        text = f"<strong>{text}</strong>"
    under = ""
    if cell.under:
        shown = "under told" if cell.has_words else "under"
        under = f' <span class="{shown}">{escape(on_page(cell.under))}</span>'
    return Markup(f"<{tag}{attributes}>{text}{under}</{tag}>\n")
