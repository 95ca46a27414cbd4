"""Kept runs are of clean commits, and pictures in README and docs show what their pages do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ddpbench.records.machine import is_dirty
from ddpbench.report.draw.png import digest_of, stamp_of, stamped
from tests.kept import REPORTS
from tests.pictures import ROOT, TOP, outdated, page_of, pictures, top_of

DIRTY = {
    "claim_data_parallel",
    "claim_input_bound",
    "claim_master_congestion",
    "claim_model_parallel",
    "wrapper-costs-h100",
}
"""Runs measured with uncommitted changes, kept until measured again; none may be added."""


def test_kept_runs_are_of_clean_commits() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "reports/*/machine.json"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    paths = [ROOT / name for name in tracked] or sorted(REPORTS.glob("*/machine.json"))
    commits = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))["context"]["git_commit"]
        for path in paths
    }
    assert len(commits) > len(DIRTY)
    dirty = {name for name, commit in commits.items() if is_dirty(commit)}
    assert not dirty - DIRTY, "measure it again with everything committed"
    assert not DIRTY - dirty, "measured again, or gone: take it off the list"


@pytest.mark.parametrize("picture", pictures(), ids=lambda path: path.name)
def test_a_picture_shows_what_its_page_does(picture: Path) -> None:
    assert outdated(picture) == ""


def test_there_are_a_page_and_a_figure_among_them() -> None:
    assert {TOP, "figures"} <= {path.name for path in pictures()} | {path.parent.name for path in pictures()}


@pytest.fixture
def copies(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for path in pictures():
        copy = tmp_path / path.relative_to(REPORTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        page_of(copy).write_bytes(page_of(path).read_bytes())
        found[path.name] = copy
    return found


def test_a_picture_with_another_number_of_findings_than_its_page_is_outdated(copies: dict[str, Path]) -> None:
    top = copies[TOP]
    page = page_of(top)
    text = page.read_text(encoding="utf-8")
    assert outdated(top) == ""
    start = text.index("<li", text.index('<h2 id="findings"'))
    page.write_text(text[:start] + text[text.index("</li>", start) + 5 :], encoding="utf-8")
    assert "shows another page than its run's" in outdated(top)


def test_a_figure_of_other_numbers_than_its_page_s_is_outdated(copies: dict[str, Path]) -> None:
    figure = copies["scaling.png"]
    assert outdated(figure) == ""
    figure.write_bytes(stamped(figure.read_bytes(), digest_of(b"<svg/>")))
    assert "shows another page than its run's" in outdated(figure)


def test_a_picture_without_a_word_on_what_it_shows_is_outdated(copies: dict[str, Path]) -> None:
    bare = copies[TOP].read_bytes()
    at = bare.index(b"tEXtmade-of") - 4
    size = 12 + int.from_bytes(bare[at : at + 4])
    copies[TOP].write_bytes(bare[:at] + bare[at + size :])
    assert "does not say what it was made of" in outdated(copies[TOP])


def test_a_stamp_takes_the_place_of_an_older_one(copies: dict[str, Path]) -> None:
    once = stamped(copies[TOP].read_bytes(), "a" * 64)
    assert stamp_of(once) == "a" * 64
    assert stamp_of(stamped(once, "b" * 64)) == "b" * 64
    assert len(stamped(once, "b" * 64)) == len(once)
    assert top_of(page_of(copies[TOP]).read_text(encoding="utf-8")).startswith(b"<body")
