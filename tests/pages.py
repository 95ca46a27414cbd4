"""What people read: the README and the pages of docs/, as one text with links as from the root."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ("columns.md", "commands.md", "glossary.md", "settings.md")
"""Pages that `make docs` writes."""
TABLES = ("rules.md",)
"""Pages with a test of their own."""


def pages() -> dict[str, str]:
    """The text of each page by its path, the README first; links of docs/ lead from the root."""
    found = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path.name not in (*GENERATED, *TABLES):
            text = re.sub(r"\]\(\.\./", "](", path.read_text(encoding="utf-8"))
            found[f"docs/{path.name}"] = text
    return found


PROSE = "\n\n".join(pages().values())
