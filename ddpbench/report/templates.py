"""Render page templates; all text from a run is escaped, and an undefined name is an error."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ddpbench.report.cells import cells
from ddpbench.text_safety import on_page

_HERE = Path(__file__).parent
_INTERVAL = re.compile(r"\[[^\[\]<>&]{3,28}\]")


def environment(folder: Path = _HERE) -> jinja2.Environment:
    """Return the Jinja environment for the templates in a folder, which may also use the report's templates.

    All pages have the same style and script. `head.html`, which begins a page, contains the style. `end.html`, which
    ends a page, contains the script.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    templates.filters["cells"] = cells
    templates.filters["unbroken"] = unbroken
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    templates.globals |= {
        "style": Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    }
    return templates


def unbroken(text: str) -> Markup:
    """Return the text, escaped, with markup that keeps a line from breaking within an interval such as `[1.2, 1.4]`."""
    return Markup(_INTERVAL.sub(r'<span class="interval">\g<0></span>', str(escape(on_page(text)))))


def _shown(value: Any) -> Any:
    return on_page(value) if isinstance(value, str) and not isinstance(value, Markup) else value
