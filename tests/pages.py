"""Pages that people read: the README, docs/ and the evidence, as one text with links as from the root."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ("columns.md", "commands.md", "glossary.md", "settings.md")
"""Pages that `make docs` writes."""
TABLES = ("rules.md",)
"""Pages with a separate test."""
EVIDENCE = "reports/README.md"
"""A page whose simulated figures have a separate test."""


def pages() -> dict[str, str]:
    """Return the text of each page by its path, the README first, with links as from the root."""
    found = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path.name not in (*GENERATED, *TABLES):
            text = re.sub(r"\]\(\.\./", "](", path.read_text(encoding="utf-8"))
            found[f"docs/{path.name}"] = text
    if (ROOT / EVIDENCE).exists():  # a copy of the tree may have no reports
        text = (ROOT / EVIDENCE).read_text(encoding="utf-8").partition("## Error rates, simulated")[0]
        found[EVIDENCE] = re.sub(r"\]\((?!https?:|#)", "](reports/", text).replace("](reports/../", "](")
    return found


PROSE = "\n\n".join(pages().values())
