"""Check the subjects of commits: imperative, one line of at most 72 characters."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SINCE = "2026-11-30T00:00:00+00:00"
"""Commits of earlier days may be longer."""
MOST = 72
IMPERATIVES = {
    "Bring",
    "Embed",
    "Exceed",
    "Feed",
    "Need",
    "Ping",
    "Proceed",
    "Seed",
    "Shed",
    "Speed",
    "String",
}
"""Imperatives that look like another form of a verb."""


def wrong_with(subject: str) -> list[str]:
    """Return the faults of a subject, in words."""
    first = re.split(r"[^\w-]", subject)[0]
    found = [f"{len(subject)} characters"] if len(subject) > MOST else []
    if not first[:1].isupper() or (first.endswith(("ed", "ing")) and first not in IMPERATIVES):
        found.append(f"{first!r} is not an imperative")
    return found + (["ends with a period"] if subject.endswith(".") else [])


def test_subjects_of_new_commits_are_short_imperatives() -> None:
    log = subprocess.run(
        ["git", "log", "--no-merges", f"--since={SINCE}", "--format=%h %s"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wrong = {line: found for line in log.splitlines() if (found := wrong_with(line.partition(" ")[2]))}
    assert not wrong


@pytest.mark.parametrize(
    ("subject", "faults"),
    [
        ("Pair launches by session, not by round number", 0),
        ("Speed up the reader of archives", 0),
        ("Paired launches by session", 1),
        ("pairing launches", 1),
        ("Measure steps after a pause.", 1),
        ("Measure" + " steps" * 12, 1),
    ],
)
def test_faults_of_a_subject_are_found(subject: str, faults: int) -> None:
    assert len(wrong_with(subject)) == faults
