"""A comparison as one HTML page, in the look of a report: what it came to, a table, the launches of both sides."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jinja2

from ddpbench.analysis.regression import Changes
from ddpbench.analysis.regression.told import HEADS, headline, remarks, rows, to_json
from ddpbench.errors import OutputError
from ddpbench.records.files import write_anew
from ddpbench.records.rundir import explain_os_error
from ddpbench.report.comparison.picture import launches_picture
from ddpbench.report.draw.canvas import draw
from ddpbench.texts import clean
from ddpbench.version import VERSION

_HERE = Path(__file__).parent


def comparison_page(changes: Changes) -> str:
    """Return the page; it loads nothing, and everything from a run is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_HERE, _HERE.parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    told = headline(changes)
    picture = launches_picture(changes, told)
    drawn = draw(picture) if picture is not None else None
    data = json.dumps(to_json(changes), indent=1).encode()
    return environment.get_template("comparison.html").render(
        style=(_HERE.parent / "page.css").read_text(encoding="utf-8"),
        headline=told,
        base=changes.base,
        new=changes.new,
        heads=HEADS,
        rows=rows(changes),
        remarks=remarks(changes),
        picture=picture,
        image=base64.b64encode(drawn.svg).decode("ascii") if drawn is not None else "",
        width=drawn.width if drawn is not None else 0,
        height=drawn.height if drawn is not None else 0,
        data=base64.b64encode(data).decode("ascii"),
        version=VERSION,
    )


def write_comparison(changes: Changes, path: Path) -> None:
    """Writes the page.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        write_anew(path, comparison_page(changes))
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None
