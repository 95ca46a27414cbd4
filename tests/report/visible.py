"""The words of a page that a reader sees before anything is unfolded."""

from __future__ import annotations

import re
from html.parser import HTMLParser

UNSEEN = {"head", "script", "style", "svg"}
UNSEEN_CLASSES = {"skip", "paper"}
"""The link to skip to findings, which is seen while it has the focus, and what only paper shows."""


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.unseen: list[bool] = []
        self.shut: list[bool] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"meta", "link", "img", "br", "hr", "input", "source"}:
            return
        attributes = dict(attrs)
        classes = {*(attributes.get("class") or "").split()}
        in_fold = self.tags[-1:] == ["details"] and self.shut[-1] and tag != "summary"
        self.unseen.append(tag in UNSEEN or bool(classes & UNSEEN_CLASSES) or in_fold)
        self.tags.append(tag)
        self.shut.append(tag == "details" and "open" not in attributes)

    def handle_endtag(self, tag: str) -> None:
        while self.tags:
            self.unseen.pop()
            self.shut.pop()
            if self.tags.pop() == tag:
                break

    def handle_data(self, data: str) -> None:
        directly_in_fold = bool(self.shut) and self.shut[-1]
        if not any(self.unseen) and not directly_in_fold:
            self.texts.append(data)


def visible_words(html: str) -> list[str]:
    """Return the words outside closed folds and figures; numbers count, signs alone do not."""
    reader = _Seen()
    reader.feed(html)
    return [word for word in " ".join(reader.texts).split() if re.search(r"\w", word)]
