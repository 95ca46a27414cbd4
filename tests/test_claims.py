"""Every measured figure of the README comes from a kept run, and every kept run agrees with its records."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench.analysis.overview.build import summarize
from ddpbench.records import RunDir
from ddpbench.report.summary_json import embedded_json
from tests.benchmarks import kept_pairs
from tests.claims import (
    Claim,
    Claims,
    cases_of,
    filled_in,
    not_measured,
    printed,
    read_claims,
    spans_of,
    superseded,
    table_spans,
    unclaimed,
    verdicts_of,
)
from tests.kept import KEPT, REPORTS, embedded, summary_of, unpacked
from tests.pages import EVIDENCE, PROSE, pages

README = PROSE
"""With the pages of docs/."""
CLAIMS = read_claims()
AWAITING_RECORDS: set[str] = set()
"""Kept reports from before records were kept; each is to be measured again."""
MOST_BYTES = 1_000_000
"""An archive's size, in bytes."""


NOTHING_NEW: Mapping[str, frozenset[str]] = {}


def differences(
    found: Any, expected: Any, rel: float, where: str = "", new: Mapping[str, frozenset[str]] = NOTHING_NEW
) -> list[str]:
    """Return where a kept JSON value differs from the records: texts in any way, numbers by more than `rel`.

    Only the `new` columns of a table, or of a list of rows, may be missing in what was kept; `new` has them by the
    place of the table, such as `.waterfall`.
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        if {*found} == {*expected} == {"columns", "data"}:
            return differences(rows_in(found), rows_in(expected), rel, where, new)
        gone = [f"{where}.{key}: kept, and no longer given" for key in found if key not in expected]
        allowed = new.get(re.sub(r"\[\d+\]$", "", where), ()) if where.endswith("]") else ()
        added = [
            f"{where}.{key}: given, and not kept"
            for key in expected
            if key not in found and key not in allowed
        ]
        both = [key for key in found if key in expected]
        texts = [differences(found[key], expected[key], rel, f"{where}.{key}", new) for key in both]
        return [*gone, *added, *(text for each in texts for text in each)]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [text for at, (a, b) in pairs for text in differences(a, b, rel, f"{where}[{at}]", new)]
    if isinstance(found, float | int) and isinstance(expected, float | int):
        same = math.isclose(found, expected, rel_tol=rel, abs_tol=1e-12)
    else:
        same = found == expected
    return [] if same else [f"{where}: {found!r} kept, {expected!r} by the records"]


def rows_in(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table of a page's data as one row each."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def table(text: str) -> list[dict[str, Any]]:
    """Return a CSV's rows, with numbers where cells are numbers."""

    def cell(value: str) -> Any:
        try:
            return float(value)
        except ValueError:
            return value

    return [
        {key: cell(value) for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(text, newline=""))
    ]


def appended(kept: Sequence[str], given: Sequence[str]) -> frozenset[str]:
    """Return the columns of a table of cases after the last kept one."""
    return frozenset(given[given.index(kept[-1]) + 1 :] if kept[-1] in given else ())


def differences_of_cases(text: str, expected: list[dict[str, Any]]) -> list[str]:
    """Return where a kept `cases.csv` differs from the records, except for columns appended since it was kept."""
    found = table(text)
    kept, given = list(found[0]), list(expected[0])
    moved = [] if kept == [column for column in given if column in kept] else ["columns are in another order"]
    return moved + differences(found, expected, 1e-9, new={"": appended(kept, given)})


@pytest.fixture(scope="module", params=KEPT)
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """Return a kept run's name, its table and its report's data, both from its records alone."""
    name: str = request.param
    root = tmp_path_factory.mktemp("kept")
    unpacked(name, root / "reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)  # sentences name the run by the path it was given
        run = RunDir(Path("reports") / name)
        frame = ddpbench.load(run.path)
        summary = summarize(run)
    return name, table(frame.to_csv(index=False)), json.loads(embedded_json(summary))


def advice(name: str) -> str:
    return f"reports/{name} is not what its records give; run: ddpbench report reports/{name}"


def test_the_table_is_what_the_records_give(
    kept: tuple[str, list[dict[str, Any]], dict[str, Any]],
) -> None:
    name, rows, _ = kept
    kept_text = (REPORTS / name / "cases.csv").read_text(encoding="utf-8")
    assert not differences_of_cases(kept_text, rows), advice(name)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a,b,c\n1,2,3\n", []),
        ("a,b\n1,2\n", []),
        ("a,b\n1,3\n", ["[0].b: 3.0 kept, 2.0 by the records"]),
        ("a,c\n1,3\n", ["[0].b: given, and not kept"]),
        ("b,a\n2,1\n", ["columns are in another order"]),
        ("a,d\n1,4\n", ["columns are in another order", "[0].d: kept, and no longer given"]),
    ],
)
def test_an_appended_column_changes_no_kept_table_and_all_else_does(text: str, wrong: list[str]) -> None:
    found = differences_of_cases(text, table("a,b,c\n1,2,3\n"))
    assert [one for one in found if one in wrong] == wrong
    assert bool(found) == bool(wrong)


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [
        ({"a": [1.0], "t": {"columns": ["x"], "data": [[1], [2]]}}, []),
        ({"a": [1.0 + 1e-12]}, []),
        ({"a": [1.1]}, [".a[0]: 1.1 kept, 1.0 by the records"]),
        ({"a": [1.0, 2.0]}, [".a: [1.0, 2.0] kept, [1.0] by the records"]),
        ({"b": "text"}, [".b: 'text' kept, 'new' by the records"]),
        ({"gone": 1}, [".gone: kept, and no longer given"]),
        ({"t": {"columns": ["y"], "data": [[0], [0]]}}, [f".t[{at}].x: given, and not kept" for at in (0, 1)]),
        ({"l": [{"a": 1}]}, []),
        ({"l": [{"b": 2}]}, [".l[0].a: given, and not kept"]),
        ({"d": {"b": 2}}, [".d.a: given, and not kept"]),
        ({"t": {"columns": ["x"], "data": [[1], [3]]}}, [".t[1].x: 3 kept, 2 by the records"]),
        (
            {"t": {"columns": ["x", "z"], "data": [[1, 1], [2, 2]]}},
            [f".t[{at}].z: kept, and no longer given" for at in (0, 1)],
        ),
    ],
)  # fmt: skip
def test_a_new_column_that_is_named_is_no_difference_and_all_else_is(
    kept: dict[str, Any], wrong: list[str]
) -> None:
    given = {
        "a": [1.0],
        "b": "new",
        "t": {"columns": ["y", "x"], "data": [[0, 1], [0, 2]]},
        "l": [{"a": 1, "b": 2}],
        "d": {"a": 1, "b": 2},
    }
    new = {".t": frozenset({"y"}), ".l": frozenset({"b"}), ".d": frozenset({"a"})}
    assert differences(kept, {key: given.get(key) for key in given if key in kept}, 1e-9, new=new) == wrong


@pytest.mark.parametrize(
    "place", [".laws", ".findings[0].verdict", ".waterfall[0].", ".claims[0].pairs[0].verdict"]
)
def test_what_is_taken_out_of_a_kept_page_is_found(place: str) -> None:
    name = "claim_data_parallel" if place.startswith(".claims") else "quick-two-cores-gloo"
    whole = summary_of(name)
    page = json.loads(json.dumps(whole))
    if place == ".waterfall[0].":
        place += page["waterfall"]["columns"].pop()
        page["waterfall"]["data"] = [row[:-1] for row in page["waterfall"]["data"]]
    else:
        *path, last = [int(part) if part.isdigit() else part for part in re.findall(r"\w+", place)]
        of = page
        for part in path:
            of = of[part]
        del of[last]
    assert not differences(whole, whole, 1e-6)
    assert differences(page, whole, 1e-6)[:1] == [f"{place}: given, and not kept"]


def test_the_page_is_what_the_records_give(kept: tuple[str, list[dict[str, Any]], dict[str, Any]]) -> None:
    name, rows, summary = kept
    page = (REPORTS / name / "report.html").read_text(encoding="utf-8")
    assert not differences_of_cases(embedded(page, "text/csv"), rows), advice(name)
    # The results of fits and bootstraps differ in more digits with another processor's arithmetic.
    of_page = summary_of(name)
    new = appended(of_page["cases"]["columns"], summary["cases"]["columns"])
    assert not differences(of_page, summary, 1e-6, new={".cases": new}), advice(name)
    assert f"ddpbench report reports/{name}" in page, advice(name)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_is_small_and_names_no_path_of_the_machine(name: str) -> None:
    run = RunDir(REPORTS / name)
    assert run.packed.stat().st_size < MOST_BYTES
    with tarfile.open(run.packed) as archive:
        texts = {one.name: archive.extractfile(one).read() for one in archive if one.isreg()}  # type: ignore[union-attr]
    texts |= {
        path.name: path.read_bytes()
        for path in run.path.glob("*.*")
        if path.suffix in (".json", ".toml", ".html")
    }
    for place, text in texts.items():
        assert not re.search(rb"/(home|root|tmp|work|Users)/[\w.-]+", text), place


def test_every_run_that_the_readme_shows_has_its_records() -> None:
    shown = set(re.findall(r"\(reports/([\w.-]+)/", README)) | CLAIMS.runs
    of_pairs = {folder.name for folder in (*kept_pairs.FOLDERS, kept_pairs.STARTS)}
    assert shown - {*KEPT, *of_pairs} == AWAITING_RECORDS


def test_the_page_of_claims_has_the_verdicts_of_the_kept_runs_and_what_was_before() -> None:
    verdicts = pages()[EVIDENCE].partition("## Claims of tutorials, measured")[2].partition("\n### ")[0]
    expected = [row for name in KEPT for row in verdicts_of(name)]
    assert re.findall(r"^\| \[.*\|$", verdicts, re.MULTILINE) == expected
    (ring,) = [row for row in expected if "hardly longer" in row]
    assert "no longer with 32 workers than with 2* does not hold: its step is 2.9 [2.6, 3.2] times" in ring


def test_the_page_of_claims_lists_the_superseded_runs_and_what_is_not_measured() -> None:
    page = pages()[EVIDENCE].partition("### Superseded runs")[2]
    expected = superseded()
    assert re.findall(r"^\| `.*\|$", page, re.MULTILINE) == expected
    assert len(expected) >= 4
    message = re.sub(r"\s+", " ", page)
    assert not_measured() in message


def covered_by(claims: Claims, readme: str) -> list[tuple[int, int]]:
    """Return the places in the README that claims and statements cover; each must be there."""
    spans: list[tuple[int, int]] = []
    for claim in claims.claims:
        text = filled_in(claim, cases_of(claim.run), summary_of(claim.run))
        found = spans_of(text, readme)
        assert found, f"by its data the README has to say: {text}"
        spans += found
    for run in claims.printed:
        text = f"\n```\n{printed(run)}\n```\n"
        before, shown, _ = readme.partition(text)
        assert shown, f"by its data the README has to have this table:\n{text}"
        paragraph = before.rstrip().rpartition("\n\n")[2]
        assert f"(reports/{run}/cases.csv)" in paragraph, "a table's paragraph links its cases.csv"
    for row in (row for name in KEPT for row in verdicts_of(name)):
        found = spans_of(row, readme)
        assert found, f"by its data the page of claims has to have this row: {row}"
        spans += found
    for text in [*kept_pairs.sentences(kept_pairs.wrapper_costs()), *kept_pairs.sentences_on_a_gpu()]:
        found = spans_of(text, readme)
        assert found, f"by its pairs the page of frameworks has to say: {text}"
        spans += found
    for text in claims.stated:
        found = spans_of(text, readme)
        assert found, f"the README says this no longer: {text}"
        spans += found
    for text in (text for one in claims.simulated for text in one.texts):
        found = spans_of(text, readme)
        assert found, f"by its simulation the README has to say: {text}"
        spans += found
    for table_ in claims.measured:
        found = table_spans(table_.head, readme)
        assert found, f"the README has no such table any longer: {table_.head}"
        spans += found
    return spans


def test_every_figure_of_the_readme_is_what_its_run_gives() -> None:
    assert not unclaimed(README, covered_by(CLAIMS, README))


CASES: Sequence[Mapping[str, Any]] = (
    {"case_id": "single", "strategy": "single", "world_size": 1, "step_time_s": 0.1, "bucket_cap_mb": ""},
    {
        "case_id": "ring",
        "strategy": "ddp",
        "world_size": 2,
        "step_time_s": 0.1504,
        "bucket_cap_mb": "default",
    },
    {"case_id": "caps", "strategy": "ddp", "world_size": 4, "step_time_s": 0.1496, "bucket_cap_mb": "1"},
)
SUMMARY: Mapping[str, Any] = {
    "network": {"columns": ["case_id", "network_s"], "data": [["ring", 0.0123], ["caps", 0.02]]},
    "findings": [{"text": "At 2 ranks: 85 % of the lead is the ring."}, {"text": "Nothing else."}],
}
RING = {"strategy": "ddp", "world_size": 2}


@pytest.mark.parametrize(
    ("says", "figure", "text"),
    [
        ("takes {x:.0f} ms", {"column": "step_time_s", "where": {"strategy": "ddp"}, "scale": 1e3}, "takes 150 ms"),
        ("{x:.2f} times", {"column": "step_time_s", "where": RING, "over": {"case_id": "single"}}, "1.50 times"),
        ("{x:.1f} ms", {"table": "network", "column": "network_s", "where": RING, "scale": 1e3}, "12.3 ms"),
        ("{x:.0f} % of it", {"finding": r"(\d+) % of the lead is the ring"}, "85 % of it"),
    ],
)  # fmt: skip
def test_a_claim_is_filled_in_from_its_data(says: str, figure: Mapping[str, Any], text: str) -> None:
    assert filled_in(Claim(run="", says=says, figures={"x": figure}), CASES, SUMMARY) == text


@pytest.mark.parametrize(
    ("says", "figure", "words"),
    [
        ("{x:.1f} ms", {"column": "step_time_s", "where": {"strategy": "ddp"}, "scale": 1e3}, "cases differ"),
        ("{x} s, not 2.5 s", {"column": "step_time_s", "where": RING}, "comes from no data"),
        ("{x}", {"column": "step_time_s", "where": {"strategy": "ring"}}, "no case has"),
        ("{x}", {"column": "step_time_s", "when": RING}, "unknown key"),
        ("{x}", {"finding": "not told (.)"}, "0 findings"),
    ],
)
def test_a_claim_without_data_is_refused(says: str, figure: Mapping[str, Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        filled_in(Claim(run="", says=says, figures={"x": figure}), CASES, SUMMARY)


def test_a_printed_table_is_what_a_sweep_prints() -> None:
    head, *rows = printed("quick-two-cores-gloo").splitlines()
    assert head.split()[:5] == ["strategy", "ranks", "bucket", "threads", "samples/s"]
    assert [row.split()[0] for row in rows] == [
        str(case["strategy"]) for case in cases_of("quick-two-cores-gloo")
    ]


@pytest.mark.parametrize(
    ("prose", "figures"),
    [
        ("It takes 36 % of a step.", ["36 %"]),
        ("10 ms at 8 GPUs,\nand 2.5 s at 16", ["10 ms", "2.5 s"]),
        ("1.001 [0.991, 1.012]", ["1.001", "0.991", "1.012"]),
        ("| `ddp` | 3.74, 3.71 | 29 ns |", ["3.74", "3.71", "29 ns"]),
        ("12,300 samples/s and 40 minutes", ["12,300 samples/s", "40 minutes"]),
        ("2.77 times, 3 times", ["2.77 times", "3 times"]),
        ("![DDP stays near 150 ms](figures/1.5s.png)", ["150 ms"]),
        ("16 nodes at 10 Gbit/s, `until_s` (`60 s`)\n```sh\nwait 5 s\n```\n2 strategies and gpt-2.txt", []),
    ],
)
def test_figures_outside_code_are_found(prose: str, figures: list[str]) -> None:
    assert [text.partition(": ")[2].strip("'") for text in unclaimed(prose, [])] == figures


def test_what_is_claimed_is_covered_however_its_lines_break() -> None:
    prose = "A ring takes 150 ms\nand a master 2.5 s."
    assert unclaimed(prose, spans_of("takes 150 ms and", prose)) == ["line 2: '2.5 s'"]


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_faults_planted_in_the_readme_are_found() -> None:
    row = next(line for line in README.splitlines() if line.startswith("single "))
    with pytest.raises(AssertionError, match="has to have this table"):
        covered_by(CLAIMS, changed(README, row, row.replace(row.split()[2], "12.3")))
    with pytest.raises(AssertionError, match=r"links its cases\.csv"):
        covered_by(CLAIMS, changed(README, "/cases.csv)", "/other.csv)"))
    with pytest.raises(AssertionError, match="says this no longer"):
        covered_by(replace(CLAIMS, stated=["half of what nobody said"]), README)
    row = kept_pairs.sentences(kept_pairs.wrapper_costs())[-2]
    with pytest.raises(AssertionError, match="by its pairs the page of frameworks has to say"):
        covered_by(CLAIMS, changed(README, row, row.replace("[", "[9", 1)))
    planted = changed(README, "\n## Questions", "\nDDP is 41 % faster.\n\n## Questions")
    assert [text.partition(": ")[2] for text in unclaimed(planted, covered_by(CLAIMS, planted))] == ["'41 %'"]
    claim = Claim(
        run=KEPT[0],
        says="single takes {x} rounds",
        figures={"x": {"column": "launches", "where": {"strategy": "single"}}},
    )
    with pytest.raises(AssertionError, match="the README has to say: single takes"):
        covered_by(Claims(claims=[claim]), README)
