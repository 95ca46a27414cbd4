"""The page as a whole: what it must contain, what it must not do, and that it agrees with its summary."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import json
import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ddpbench
from ddpbench.analysis.summary import Counts, RunSummary
from ddpbench.analysis.table.columns import COLUMNS
from ddpbench.errors import OutputError, RequestError
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import scaling, strategies
from ddpbench.report.series import panels_of
from ddpbench.report.summary_json import embedded_json
from tests.report.handmade import (
    HOST_ATTACK,
    bucket_comparisons,
    case_row,
    changed,
    ddp,
    handmade_summary,
    launches_of,
    parts_of,
    sections_of,
    with_cases,
)
from tests.report.reading import Read, read
from tests.synthetic import write_run

FIGURES = ("scaling", "strategies", "breakdown", "buckets", "heatmap")
"""Figures that ddpbench draws of the handmade run, in the page's order. An added section's may be between
them.
"""


def numbers_of(summary: RunSummary) -> dict[str, int]:
    """Return the number of each figure that the sections declare, by its file's name."""
    pictures = [picture.file_name for section in sections_of(summary) for picture in section.pictures]
    assert [name for name in pictures if name in FIGURES] == list(FIGURES), "a figure is lost, or moved"
    return {name: number for number, name in enumerate(pictures, start=1)}


def written(tmp_path: Path, summary: RunSummary) -> Read:
    return read(write_report(summary, RunDir(tmp_path)).read_text(encoding="utf-8"))


def texts(document: Read, tag: str, **attributes: str) -> list[str]:
    return [element.text for element in document.all(tag, **attributes)]


def test_every_section_has_one_anchor_and_every_link_on_the_page_leads_somewhere(document: Read) -> None:
    assert len(document.ids) == len(set(document.ids))
    expected = "findings validity summary scaling strategies breakdown buckets data-parallel failures method provenance"
    order = expected.split()
    # Others may be between them: those of an added section.
    assert [e.attributes["id"] for e in document.all("h2") if e.attributes["id"] in order] == order
    inner = [a.attributes["href"][1:] for a in document.all("a") if a.attributes["href"].startswith("#")]
    assert len(inner) > 20
    assert set(inner) <= set(document.ids)


def test_counts_are_the_same_wherever_they_are_told(document: Read) -> None:
    header = dict(zip(texts(document, "dt"), texts(document, "dd"), strict=True))
    assert header["Launches planned"] == "95"
    assert header["succeeded"] == "90"
    assert header["failed"] == "5"
    assert header["Cases"] == "20"
    assert header["skipped"] == "1"
    assert header["Rounds"] == "5"
    assert "5 launches of 95 planned failed; 1 case of 20 was skipped." in texts(document, "p")
    assert len([row for row in document.all("tr") if row.attributes.get("id", "").startswith("case-")]) == 20


def test_each_figure_has_a_heading_an_alt_text_a_caption_and_its_data_as_a_table(document: Read) -> None:
    images = document.figures
    assert len(images) == len(numbers_of(handmade_summary(comparisons=bucket_comparisons())))
    captions = texts(document, "caption")
    for number, image in enumerate(images, start=1):
        alt = image.attributes["aria-label"].replace("\u00a0", " ")
        heading = document.one("h3", id=f"figure-{number}").text.removesuffix("#")
        assert heading in alt, "repeat the heading in `alt`, for readers who cannot see the figure"
        table = re.search(r"Data in table (\d+)\.$", alt)
        assert table is not None
        document.one("table", id=f"table-{table[1]}")
        assert any(caption.startswith(f"Table {table[1]}. ") for caption in captions)
    for text in texts(document, "figcaption"):
        assert text.startswith("Figure")
        assert re.search(r"\b(launches|rounds each)\b", text), "say how many: `launches_each` in the caption"
    assert len(document.all("figcaption")) == len(images)


def test_headings_are_made_of_the_plotted_rows(document: Read) -> None:
    headings = [text.removesuffix("#") for text in texts(document, "h3")]
    # 2191 samples/s at 4 ranks over 812 at one: 2.698; by four ranks 0.675; 1.8 % of it each way
    assert "At 4 ranks DDP trains 2.7 times as fast as one rank" in headings
    assert "At 4 ranks DDP trains 2,191 samples/s; upper bound 2,710" in headings
    assert "DDP at 4 ranks: default and 25 MiB buckets are as good as best" in headings
    details = " ".join(image.attributes["aria-label"] for image in document.figures).replace("\u00a0", " ")
    assert "Efficiency at 4 ranks: DDP 0.675 [0.662, 0.687]." in details
    assert "Samples/s at 4 ranks: DDP 2,191 [2,152, 2,230]; upper bound 2,710." in details


def test_a_cap_is_called_best_where_all_others_are_shown_to_be_slower(tmp_path: Path) -> None:
    decided = bucket_comparisons(verdicts=["slower", "slower", "slower", "best"])
    document = written(tmp_path, handmade_summary(comparisons=decided))
    assert "DDP at 4 ranks: 25 MiB buckets are best; every other cap is slower#" in texts(document, "h3")
    open_still = bucket_comparisons(verdicts=["cannot tell"] * 4)
    document = written(tmp_path, handmade_summary(comparisons=open_still))
    assert "DDP at 4 ranks: no bucket cap is shown to be best#" in texts(document, "h3")
    shortest = "Shortest step: 25 MiB buckets, 14.55 [14.29, 14.81] ms."
    assert any(
        shortest in image.attributes["aria-label"].replace("\u00a0", " ") for image in document.figures
    )


def test_without_comparisons_nothing_is_called_best(tmp_path: Path) -> None:
    document = written(tmp_path, handmade_summary())
    everything = " ".join(texts(document, "td") + texts(document, "h3"))
    assert "as good" not in everything
    assert "best" not in everything.replace("best other", "")
    assert any("not called best" in text for text in texts(document, "figcaption"))


def test_too_few_rounds_make_no_cap_the_best(tmp_path: Path) -> None:
    few = bucket_comparisons(verdicts=["too few"] * 4)
    document = written(tmp_path, handmade_summary(comparisons=few))
    assert any(text.endswith(": too few rounds to compare bucket caps#") for text in texts(document, "h3"))
    assert not any("best" in text for text in texts(document, "td"))


def test_oversubscribed_cases_are_marked_and_in_no_headline(tmp_path: Path, document: Read) -> None:
    assert not any("8 ranks" in text for text in texts(document, "h3"))
    assert all("Grey ground" in text for text in texts(document, "figcaption")[:2])
    summary = handmade_summary()
    cases = summary.cases.copy()
    cases.loc[cases["world_size"] > 1, "oversubscribed"] = True
    crowded = with_cases(summary, cases)
    other = written(tmp_path, crowded)
    for name, number in numbers_of(crowded).items():
        heading = other.one("h3", id=f"figure-{number}").text.removesuffix("#")
        assert name.removesuffix("-2") not in FIGURES or heading.endswith(": none is ranked"), name


def test_what_a_run_says_is_escaped_and_cannot_act(page: Path, document: Read) -> None:
    html = page.read_text(encoding="utf-8")
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert HOST_ATTACK in texts(document, "dd"), "escaped, and shown as it was"
    assert "</td><script>alert('log')</script> RuntimeError: rank 1 \ufffdleft" in texts(document, "td")
    assert len(document.all("script")) == 1


def test_policy_allows_this_script_and_no_network(page: Path, document: Read) -> None:
    html = page.read_text(encoding="utf-8")
    policy = document.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    addresses = [
        value
        for element in document.elements
        for name, value in element.attributes.items()
        if name in ("src", "href", "action", "srcset", "poster")
    ]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert html.count("url(") == html.count("url(#f"), "of nothing but a figure's own parts"
    assert "@import" not in html


@pytest.mark.usefixtures("painted")
def test_equal_summaries_give_equal_bytes(tmp_path: Path) -> None:
    summary = handmade_summary(comparisons=bucket_comparisons())
    pages = []
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        pages.append(
            write_report(handmade_summary(comparisons=bucket_comparisons()), RunDir(tmp_path / name))
        )
    page, again = pages
    assert again.read_bytes() == page.read_bytes()
    figures = sorted((page.parent / "figures").iterdir())
    assert [path.name for path in figures] == sorted(f"{name}.png" for name in numbers_of(summary))
    for path in figures:
        assert (again.parent / "figures" / path.name).read_bytes() == path.read_bytes()
        assert path.read_bytes().startswith(b"\x89PNG")


def test_downloads_hold_the_summary(document: Read) -> None:
    summary = handmade_summary()
    table = document.one("a", download="cases.csv").attributes["href"]
    assert table.startswith("data:text/csv;base64,")
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(table.partition(",")[2]).decode())))
    assert tuple(rows[0]) == COLUMNS
    assert [row["case_id"] for row in rows] == list(summary.cases["case_id"])
    assert float(rows[0]["samples_per_s"]) == 812.0
    everything = document.one("a", download="report.json").attributes["href"]
    data = json.loads(base64.b64decode(everything.partition(",")[2]))
    assert data["counts"]["planned"] == 95
    assert len(data["launches"]["data"]) == len(summary.steps.launches)
    assert "NaN" not in base64.b64decode(everything.partition(",")[2]).decode()


def test_failures_say_where_they_are_missing(document: Read) -> None:
    failed = next(row for row in document.all("tr") if "rank 1 ended with code 1" in row.text)
    assert "see master-" in failed.text
    summary = handmade_summary(comparisons=bucket_comparisons())
    numbers = numbers_of(summary)
    pictures = [picture for section in sections_of(summary) for picture in section.pictures]
    lacking = [
        picture
        for picture in pictures
        if any(row.name == "master, 4 ranks" and row.case_id in picture.missing for row in rows_of(summary))
    ]
    assert {"scaling", "strategies", "breakdown"} <= {picture.file_name for picture in lacking}
    *before, last = [str(numbers[picture.file_name]) for picture in lacking]
    assert failed.text.endswith(f"figures {', '.join(before)} and {last}")
    captions = texts(document, "figcaption")
    for picture in lacking:
        caption = captions[numbers[picture.file_name] - 1]
        assert "master, 4 ranks (failed)" in caption, "name it `f'{row.name} ({row.status})'`, by `marks_of`"


def test_data_parallel_on_cpu_is_named_for_what_it_is(document: Read) -> None:
    assert any("threaded equivalent of torch.nn.DataParallel" in text for text in texts(document, "p"))
    assert "DataParallel (threads)" in " ".join(texts(document, "th"))
    assert any("replicate" in text for text in texts(document, "th"))


def test_a_sweep_without_data_says_why_each_figure_is_missing(tmp_path: Path) -> None:
    summary = handmade_summary()
    cases = summary.cases[summary.cases["status"] != "ok"]
    nothing: dict[str, tuple[()]] = dict.fromkeys(("launches", "breakdown", "phases", "proofs"), ())
    document = written(tmp_path, handmade_summary(cases=cases, findings=(), validity=(), **nothing))
    absent = " ".join(texts(document, "p", class_="absent") + texts(document, "dd", class_="missing"))
    for reason in (
        "No finding",
        "No case has a speed-up",
        "No case has instrumented steps",
        "No case was measured",
        "No strategy with gradient buckets was measured",
        "holds no proof",
    ):
        assert reason in absent
    assert not document.figures
    assert not list((tmp_path / "figures").iterdir())


def test_one_world_size_is_no_scaling(tmp_path: Path) -> None:
    summary = handmade_summary()
    cases = summary.cases[summary.cases["world_size"] == 1]
    document = written(tmp_path, with_cases(summary, cases))
    assert "This sweep has one world size (1 rank), so no scaling can be shown." in texts(document, "dd")


def test_figures_of_an_earlier_report_do_not_stay(tmp_path: Path, page: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("scaling-2.png", "mine.png"):
        (tmp_path / "figures" / name).write_bytes(b"old")
    write_report(handmade_summary(), RunDir(tmp_path))
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert "scaling-2.png" not in names
    assert "mine.png" in names, "what this package did not write is not its to remove"


def test_too_few_rounds_leave_points_without_intervals(tmp_path: Path) -> None:
    summary = handmade_summary()
    cases = summary.cases.copy()
    for column in [name for name in COLUMNS if "_ci_" in name]:
        cases[column] = float("nan")
    counts = Counts(planned=38, succeeded=36, failed=2, skipped_cases=1, cases=20, rounds=2)
    imprecise = with_cases(summary, cases, counts=counts)
    document = written(tmp_path, imprecise)
    assert len(document.figures) == len(numbers_of(imprecise))
    assert "too few rounds for an interval" in " ".join(texts(document, "td"))
    assert "nan" not in " ".join(texts(document, "td")).lower()


@pytest.mark.thorough
@pytest.mark.usefixtures("painted")
def test_a_thousand_cases_fit_a_page(tmp_path: Path) -> None:
    rows = []
    for batch in (2, 4, 8, 16, 32):
        for world_size in range(1, 51):
            rate = 800.0 * world_size * 0.9
            rows += [
                case_row(ddp(world_size, cap, local_batch=batch), rate=rate)
                for cap in ("default", 1.0, 5.0, 25.0)
            ]
    summary = handmade_summary(
        cases=pd.DataFrame(rows, columns=list(COLUMNS)),
        launches=tuple(launch for row in rows for launch in launches_of(row)),
        breakdown=tuple(map(parts_of, rows)),
    )
    started = time.process_time()
    path = write_report(summary, RunDir(tmp_path))
    assert time.process_time() - started < 60, "a bound for a crowded machine; it takes about 4 s"
    document = read(path.read_text(encoding="utf-8"))
    assert len([e for e in document.all("tr") if e.attributes.get("id", "").startswith("case-")]) == 1000
    assert max(len(section.pictures) for section in sections_of(summary)) <= 3
    assert any("3 more groups of cases are not drawn" in text for text in texts(document, "p"))
    assert path.stat().st_size < 8e6, "a figure must limit its rows, as by MOST_GROUPS in sections/layouts.py"


def test_a_directory_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        write_report(handmade_summary(), RunDir(tmp_path))


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, ddpbench.report.page; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_variants_of_a_strategy_are_told_apart_by_name_and_marker(tmp_path: Path) -> None:
    views = [f'{{"gradient_as_bucket_view": {value}}}' for value in ("true", "false")]
    summary = handmade_summary()
    rows = [case_row(ddp(world, options_json=view), rate=700.0 * world) for world in (2, 4) for view in views]
    cases = pd.concat([summary.cases.iloc[:1], pd.DataFrame(rows, columns=list(COLUMNS))])
    other = with_cases(summary, cases, launches=launches_of(rows[0]))
    document = written(tmp_path, other)
    names = {text for text in texts(document, "th") if text.startswith("DDP")}
    assert {"DDP gradient_as_bucket_view=true", "DDP gradient_as_bucket_view=false"} <= names
    chosen, _ = panels_of(rows_of(other))[0].of_strategies()
    looks = [series.look for series in chosen if series.strategy == "ddp"]
    assert looks[0].colour == looks[1].colour
    assert looks[0].marker != looks[1].marker


@pytest.mark.parametrize("based", [True, False])
@pytest.mark.parametrize("status", ["failed", "ok"])
def test_a_bucket_cap_without_numbers_leaves_the_figures_to_the_others(status: str, based: bool) -> None:
    """All launches with the default cap failed, or none shares a round with the base case; those with 1 MiB
    succeeded.
    """
    lost = {"speedup": None, "efficiency": None, "status": status}
    rows = [case_row(ddp(world), rate=None, **lost) for world in (2, 4)]
    rows += [case_row(ddp(world, 1.0), rate=600.0 * world) for world in (2, 4)]
    summary = handmade_summary()
    base = summary.cases.iloc[: 1 if based else 0]
    cases = pd.concat([base, pd.DataFrame(rows, columns=list(COLUMNS))])
    other = with_cases(summary, cases, launches=launches_of(rows[-1]))
    scaled = scaling.section(other.conclusions.claims, rows_of(other))
    compared = strategies.section(other.steps.launches, other.conclusions.findings, rows_of(other))
    for found in (scaled, compared):
        words = "DDP is shown with 1 MiB buckets; default: see"
        assert [words in picture.caption for picture in found.pictures].count(True) == (status == "failed")


def test_emulated_cases_are_labelled_beside_their_numbers(tmp_path: Path) -> None:
    summary = handmade_summary()
    planned = {
        name: dataclasses.replace(case, fabric="1 Gbit/s") if case.strategy == "ddp" else case
        for name, case in summary.planned.items()
    }
    document = written(tmp_path, changed(summary, planned=planned))
    ddp_rows = [row for row in document.all("tr") if row.attributes.get("id", "").startswith("case-ddp")]
    assert len(ddp_rows) == 10
    assert all("emulated" in row.text for row in ddp_rows)
    captions = " ".join(caption.text for caption in document.all("caption"))
    assert "links, where they are used: emulated 1 Gbit/s link" in captions
    assert any("emulated 1 Gbit/s link" in text for text in texts(document, "p", class_="conditions"))
    assert any("Hollow markers: emulated" in text for text in texts(document, "figcaption"))


def test_a_report_without_its_records_is_left_as_it_is(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    write_run(kept, 4)
    ddpbench.write_report(kept)
    before = (kept / "report.html").read_bytes()
    shutil.rmtree(kept / "cases")
    with pytest.raises(RequestError, match="has a report but no records"):
        ddpbench.write_report(kept)
    assert (kept / "report.html").read_bytes() == before


def test_grey_ground_is_explained_where_all_that_ran_there_failed(tmp_path: Path) -> None:
    """The ground is drawn by the sizes of the panel; a case that failed there is still one of them."""
    summary = handmade_summary()
    cases = summary.cases.copy()
    crowded = cases["world_size"] == 8
    for name in ("samples_per_s", "speedup", "efficiency", "step_time_s"):
        cases.loc[crowded, [one for one in cases.columns if one.startswith(name.removesuffix("_s"))]] = float(
            "nan"
        )
    cases.loc[crowded, "status"] = "failed"
    page = write_report(with_cases(summary, cases), RunDir(tmp_path)).read_text(encoding="utf-8")
    scaling = page.partition('id="scaling"')[2].partition("<h2")[0]
    assert "Grey ground: more ranks than cores." in scaling


def test_the_data_to_download_are_json_of_all_browsers() -> None:
    """JSON has no Infinity, the tolerance of a comparison that was left out; empty results keep their names."""
    summary = handmade_summary()
    proofs = (
        dataclasses.replace(summary.training.proofs[0], tolerance=math.inf, error=math.nan),
        *summary.training.proofs[1:],
    )
    launches = (
        dataclasses.replace(summary.steps.launches[0], steady=np.bool_(True)),
        *summary.steps.launches[1:],
    )
    other = changed(summary, proofs=proofs, launches=launches)

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads(embedded_json(other), parse_constant=refused)
    first = dict(zip(data["proofs"]["columns"], data["proofs"]["data"][0], strict=True))
    assert (first["tolerance"], first["error"]) == (None, None)
    assert data["launches"]["data"][0][data["launches"]["columns"].index("steady")] is True
    assert "case_id" in data["transfers"]["columns"]
    assert data["transfers"]["data"] == []
    for name in ("checkpoints", "waterfall", "network", "loss_curves", "time_to_loss"):
        assert data[name]["columns"][0] == "case_id", name
