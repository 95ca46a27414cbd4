"""Write the comparison of two runs as an HTML page with the result, a table, and both runs' launches."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from markupsafe import Markup

from ddpbench.analysis.regression import Changes
from ddpbench.analysis.regression.wording import HEADS, headline, remarks, rows, to_json
from ddpbench.records.outputs import write_output
from ddpbench.report.comparison.picture import launches_picture
from ddpbench.report.draw.canvas import draw
from ddpbench.report.templates import environment, page_style
from ddpbench.version import VERSION


def comparison_page(changes: Changes) -> str:
    """Return the comparison of two runs as a self-contained HTML page. Text from the runs is escaped."""
    title = headline(changes)
    picture = launches_picture(changes, title)
    data = json.dumps(to_json(changes), indent=1).encode()
    return (
        environment(Path(__file__).parent)
        .get_template("comparison.html")
        .render(
            title=f"{changes.base.name} against {changes.new.name} \N{MIDDLE DOT} ddpbench",
            style=page_style(),
            headline=title,
            base=changes.base,
            new=changes.new,
            heads=HEADS,
            rows=rows(changes),
            remarks=remarks(changes),
            picture=picture,
            image=Markup(draw(picture).svg.decode("utf-8")) if picture is not None else "",
            data=base64.b64encode(data).decode("ascii"),
            version=VERSION,
        )
    )


def write_comparison(changes: Changes, path: Path) -> None:
    """Write the HTML page that compares two runs to `path`.

    Raises:
        OutputError: the file cannot be written.
    """
    write_output(path, comparison_page(changes))
