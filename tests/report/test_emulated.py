"""Reports of emulated, replayed, dilated and shrunk runs: the figures, and that every number is labelled."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.captions import emulation_words, label_of
from ddpbench.report.draw.canvas import draw, wrapped
from ddpbench.report.rows import Row, rows_of
from ddpbench.report.sections import links, network
from ddpbench.report.sections.communication.figure import _marks
from ddpbench.report.sections.communication.painting import link_rate, slowest_rate
from ddpbench.report.series import panels_of
from ddpbench.report.tables.provenance import fabrics_table
from ddpbench.spec import Links, PlannedCase
from ddpbench.spec.grouping import virtual_words
from ddpbench.spec.links import link_words, short_links
from ddpbench.strategies.traits import rings_among
from tests.emulated import SLOW_NODE, Emulated, emulated_case, write_emulated
from tests.report.reading import Read, read
from tests.synthetic import write_run

COMMON: dict[str, Any] = {"dilation": 10.0, "shrink": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_emulated(tmp_path_factory.mktemp("emulated") / "run", **COMMON)


@pytest.fixture(scope="module")
def summary(run: RunDir) -> RunSummary:
    return summarize(run)


@pytest.fixture(scope="module")
def document(run: RunDir, summary: RunSummary) -> Read:
    return read(write_report(summary, run).read_text(encoding="utf-8"))


def test_a_label_is_not_broken_between_lines() -> None:
    text = "at 1 Gbit/s a step of 8 x 1 takes 21 % longer (dilated x10, shrunk /4)"
    for width in range(12, len(text)):
        lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped(text, width)]
        assert " ".join(lines) == text
        for whole in ("1 Gbit/s", "8 x 1", "21 %", "shrunk /4)"):
            assert any(whole in line for line in lines)


@pytest.mark.parametrize(
    ("text", "short", "label"),
    [
        ("1 Gbit/s", "1 Gbit/s", "emulated 1 Gbit/s link"),
        (SLOW_NODE, "1 Gbit/s, node 3 at 100 Mbit/s", "emulated 1 Gbit/s link (node 3 at 100 Mbit/s)"),
        (
            "1 Gbit/s; 2 racks, uplink 4 Gbit/s",
            "1 Gbit/s; 2 racks, uplink 4 Gbit/s",
            "emulated 1 Gbit/s link (2 racks, uplink 4 Gbit/s)",
        ),
        (
            "2 Gbit/s, 1 Gbit/s, 1 Gbit/s; latency 50 µs; own storage",
            "1 Gbit/s, node 0 at 2 Gbit/s; latency 50 µs; own storage",
            "emulated 1 Gbit/s link (node 0 at 2 Gbit/s; latency 50 µs; own storage)",
        ),
        (
            ", ".join(["1 Gbit/s"] * 5 + ["100 Mbit/s", "200 Mbit/s", "100 Mbit/s", "100 Mbit/s"]),
            "1 Gbit/s, nodes 5, 6, 7, 8 at 100 Mbit/s to 200 Mbit/s",
            "emulated 1 Gbit/s link (nodes 5, 6, 7, 8 at 100 Mbit/s to 200 Mbit/s)",
        ),
        (
            "as a later version writes it",
            "as a later version writes it",
            "emulated as a later version writes it link",
        ),
    ],
)
def test_links_in_few_words(text: str, short: str, label: str) -> None:
    if "version" not in text:
        assert Links.parse(text).text() == text
    assert short_links(text) == short
    assert link_words(text) == label


def test_what_all_cases_share_is_said_once_and_not_in_headings_captions_or_findings(document: Read) -> None:
    bar = document.one("p", class_="shared").text
    for words in ("replayed computation", "dilated x10", "shrunk /4", "times virtual", "5 launches each"):
        assert words in bar
    texts = [one.text for one in document.elements if one.tag in ("h3", "figcaption", "li")]
    validity = [text for text in texts if text.startswith("All 36 cases ran in virtual time")]
    assert len(texts) > 40
    assert [text for text in texts if "dilated x10" in text] == validity
    images = document.figures
    assert len(images) > 12
    for image in images:  # alone, each is labelled
        assert "dilated x10" in image.attributes["aria-label"]


def test_what_only_some_cases_share_stays_beside_their_numbers(document: Read) -> None:
    beneath = [one.text for one in document.all("p", class_="conditions")]
    assert len([text for text in beneath if "emulated 1 Gbit/s link" in text]) > 5


def test_every_row_of_the_summary_is_labelled(document: Read) -> None:
    caption = next(one.text for one in document.all("caption") if one.text.startswith("Table 1."))
    assert "each with replayed computation, dilated x10 and shrunk /4" in caption
    rows = [row for row in document.all("tr") if row.attributes.get("id", "").startswith("case-")]
    emulated = [row for row in rows if "emulated " in row.text]
    # of the fabric's cases only one rank and independent ones use no link
    assert len(rows) - len(emulated) == 5
    assert any("emulated 1 Gbit/s link (node 3 at 100 Mbit/s)" in row.text for row in rows)


def test_labels_of_a_mixed_run_stand_in_its_rows(tmp_path: Path) -> None:
    cases = [emulated_case("ddp", 2), emulated_case("ddp", 2, dilation=10.0), emulated_case("single", 1)]
    planned = [PlannedCase(case=case) for case in cases]
    run = write_run(tmp_path / "run", planned, rounds=5, blocks=1, steps=2, model=Emulated())
    found = read(write_report(summarize(run), run).read_text(encoding="utf-8"))
    (row,) = (r for r in found.all("tr") if r.attributes.get("id") == f"case-{cases[1].case_id}")
    assert "dilated x10" in row.text
    (row,) = (r for r in found.all("tr") if r.attributes.get("id") == f"case-{cases[0].case_id}")
    assert "dilated" not in row.text


def test_one_rank_and_independent_ones_join_the_panel_of_each_fabric(summary: RunSummary) -> None:
    panels = panels_of(rows_of(summary))
    linked = {row.case.fabric for row in rows_of(summary) if row.case.fabric}
    assert len(panels) == len(linked)
    for panel in panels:
        assert {row.case.strategy for row in panel.rows} >= {"single", "independent", "ddp"}
    series, _ = panels[0].of_strategies()
    ladder = next(item for item in series if item.strategy == "ddp" and len(item.rows) > 2)
    assert [row.case.world_size for row in ladder.rows] == [1, 2, 4, 8, 16]


@pytest.mark.usefixtures("painted")
def test_the_network_is_drawn_with_its_formulas_behind(summary: RunSummary) -> None:
    section = network.section(summary.communication.network, rows_of(summary))
    assert section is not None
    picture = section.pictures[0]
    # the model's ring takes 1.08 (n-1)/n 2 S/B and 14.4 ms of latency; its master 2.1 (n-1) S/B
    assert picture.heading == "At 16 nodes transfers take 438 to 6,384 ms of a step"
    found = re.search(
        r"not: ([\d,]+) .* ms with master.* on 16 nodes, ([\d,]+) .* ms with ring \(DDP\)", picture.alt
    )
    assert found is not None, picture.alt
    master, ring = (float(text.replace(",", "")) for text in found.groups())
    assert master / ring == pytest.approx(14.6, rel=0.02)
    assert "do not add it to them" in picture.caption
    assert picture.label == ("emulated 1 Gbit/s link", "replayed computation", "dilated x10", "shrunk /4")
    titles = [column.title for column in picture.table.columns]
    (sixteen,) = (
        cells
        for row in picture.table.rows
        for cells in [dict(zip(titles, row, strict=True))]
        if cells["Strategy"].text == "master" and cells["Nodes"].text == "16"
    )
    seconds = 30 * 25.6e6 / (0.95 * 125e6)
    assert sixteen["By the formula, ms"].key == pytest.approx(1e3 * seconds)
    assert sixteen["Formula"].text == "master"
    # alike for all, and so stated once
    assert not {"Link", "Rounds"} & set(titles)
    assert "1 Gbit/s" in picture.table.caption
    assert draw(picture).svg
    (traffic,) = section.tables
    assert len(traffic.rows) == int(summary.cases["node_sent_bytes"].notna().sum())
    assert {row[-1].text for row in traffic.rows} <= {"1.030", ""}


def test_a_run_without_emulated_links_has_no_such_sections(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 6, rounds=2, blocks=1, steps=1)
    found = summarize(run)
    assert network.section(found.communication.network, rows_of(found)) is None
    assert links.section(found.steps, rows_of(found)) is None
    assert fabrics_table(found.communication.fabrics) is None
    assert label_of(rows_of(found)) == ()


@pytest.mark.usefixtures("painted")
def test_step_time_by_bandwidth_and_by_what_else_varies(summary: RunSummary) -> None:
    section = links.section(summary.steps, rows_of(summary))
    assert section is not None
    names = [picture.file_name for picture in section.pictures]
    assert names == ["links", "heatmap-links", "links-settings"]
    curve, caps, settings = section.pictures
    assert len(curve.table.rows) == 4 * 5, "four caps at five rates"
    assert "100 Mbit/s" in curve.heading
    assert len(caps.table.rows) == 5
    assert next(row[0].text for row in caps.table.rows) == "10 Gbit/s", "fast links first"
    assert "1 Gbit/s, node 3 at 100 Mbit/s" in settings.heading
    for picture in section.pictures:
        assert picture.label[0] == "emulated links"
        assert draw(picture).svg


def test_stragglers_are_told_apart_on_each_fabric(tmp_path: Path) -> None:
    def case(factor: float, fabric: str) -> Any:
        options = json.dumps({"slow_factor": factor, "slow_rank": 1})
        return emulated_case("ddp", 4, fabric, workload_options_json=options)

    cases = [case(factor, fabric) for fabric in ("1 Gbit/s", "10 Gbit/s") for factor in (1.0, 2.0)]

    class Straggling(Emulated):
        def parts(self, case: Any, factor: float) -> dict[str, int]:
            slow = json.loads(case.workload_options_json).get("slow_factor", 1.0)
            return super().parts(case, factor * slow)

    planned = [PlannedCase(case=one) for one in cases]
    run = write_run(tmp_path / "run", planned, rounds=5, blocks=1, steps=2, model=Straggling())
    found = summarize(run)
    rows = rows_of(found)
    assert len(panels_of(rows)) == 4
    section = links.section(found.steps, rows)
    assert section is not None
    (dots,) = section.pictures
    assert [row[1].text for row in dots.table.rows] == ["slow_factor=1.0", "slow_factor=2.0"] * 2
    sentence = next(one.text for one in found.conclusions.findings if one.evidence == "links")
    assert "times as long with slow_factor=2.0 as with slow_factor=1.0" in sentence
    assert "2.0" in sentence.partition("a step takes ")[2][:4]


def test_how_fabrics_were_made_stands_in_the_provenance(document: Read, summary: RunSummary) -> None:
    table = fabrics_table(summary.communication.fabrics)
    assert table is not None
    ladder = table.rows[0]
    assert [cell.text for cell in ladder[:5]] == ["1 Gbit/s", "2 x 1", "10", "4", "root"]
    assert ladder[8].text == "\N{MINUS SIGN}2.2"
    assert any("Emulated networks, as made" in one.text for one in document.all("caption"))


def test_a_label_is_told_once(document: Read) -> None:
    for one in document.all("h3"):
        assert one.text.lower().count("emulated 1 gbit/s link") <= 1


def test_words_of_a_case_on_the_machine_itself_are_none() -> None:
    assert virtual_words(emulated_case("single", 1, compute="real")) == []


def test_a_ring_against_a_master_is_answered_by_how_their_cost_grows(summary: RunSummary) -> None:
    first = summary.conclusions.answer[0]
    # 25.6 MB at 1 Gbit/s: the model's master takes 2.1 (n - 1) S/B, with noise: 430 ms at 2 nodes, 6,451 ms at 16
    assert first.kind == "growth"
    start = "×2.0 with ring (DDP) and ×15 with master: from 2 to 16 nodes a step's network time goes from "
    assert first.text.startswith(start)
    assert "theory: ×1.9 and ×15" in first.tags
    found = re.search(r" and from (\d+) to ([\d,]+) ms\.$", first.text)
    assert found is not None, first.text
    ends = [float(text.replace(",", "")) for text in found.groups()]
    assert ends == pytest.approx([430, 6451], rel=0.02)
    assert re.match(r"at 16 nodes master has 14\.\d \[.*\] times the network time$", first.tags[0])


def test_ddp_is_called_the_ring_it_is_only_where_other_algorithms_stand_beside_it(
    summary: RunSummary,
) -> None:
    rows = rows_of(summary)
    assert {row.strategy_name for row in rows if row.case.strategy == "ddp"} == {"ring (DDP)"}
    ddp, master = emulated_case("ddp", 4), emulated_case("master", 4)
    assert rings_among([ddp, master])
    assert not rings_among([ddp])
    assert not rings_among([dataclasses.replace(one, fabric="") for one in (ddp, master)])
    named = dataclasses.replace(ddp, algorithm="ring")
    assert not rings_among([ddp, named, master]), "then its algorithms are named"


def test_what_an_emulation_leaves_out_is_said_at_the_top(summary: RunSummary) -> None:
    rows = rows_of(summary)
    most = max(row.case.world_size for row in rows)
    assert emulation_words(rows, [0, 1]) == ["no latency added", f"up to {most} ranks on 2 cores"]
    assert emulation_words(rows, list(range(most))) == ["no latency added"]
    far = [
        dataclasses.replace(
            row,
            case=dataclasses.replace(
                row.case, fabric=row.case.fabric and f"{row.case.fabric}; latency 50 µs"
            ),
        )
        for row in rows
    ]
    assert emulation_words(far, None) == []


def test_only_terms_that_occur_are_told(document: Read, tmp_path: Path) -> None:
    terms = {one.text for one in document.all("dt")}
    assert "virtual time, dilated, shrunk" in terms
    plain = write_report(
        summarize(write_run(tmp_path / "run", 6, rounds=2, blocks=1, steps=1)), RunDir(tmp_path)
    )
    found = {one.text for one in read(plain.read_text(encoding="utf-8")).all("dt")}
    assert "speed-up" in found
    assert not found & {"virtual time, dilated, shrunk", "staleness", "time to a loss", "MFU"}


@pytest.mark.parametrize(
    ("fabric", "nodes", "ranks", "rate"),
    [
        ("25 Gbit/s; local 100 Gbit/s", 1, 4, 12.5),  # nothing crosses the slow link
        ("25 Gbit/s; local 100 Gbit/s", 2, 2, 3.125),
        ("25 Gbit/s", 1, 4, None),  # through memory
        (SLOW_NODE, 4, 1, 0.0125),
        (SLOW_NODE, 2, 1, 0.125),  # node 3 is not one of them
    ],
)
def test_a_busbw_is_held_against_the_links_that_its_ring_crosses(
    fabric: str, nodes: int, ranks: int, rate: float | None, summary: RunSummary
) -> None:
    case = emulated_case("ddp", nodes * ranks, fabric, nodes=nodes, ranks_per_node=ranks)
    assert link_rate(dataclasses.replace(rows_of(summary)[0], case=case)) == rate


def test_a_figure_of_several_layouts_has_the_rate_of_the_slowest_link_of_all(summary: RunSummary) -> None:
    def row(nodes: int, ranks: int, fabric: str = "400 Gbit/s; local 1200 Gbit/s") -> Row:
        case = emulated_case("ddp", nodes * ranks, fabric, nodes=nodes, ranks_per_node=ranks)
        return dataclasses.replace(rows_of(summary)[0], case=case)

    assert slowest_rate([row(1, 8), row(2, 8)]) == 50
    assert slowest_rate([row(1, 8)]) == 150
    assert slowest_rate([row(1, 8, "400 Gbit/s"), row(2, 8, "400 Gbit/s")]) == 50
    assert slowest_rate([row(1, 8, "400 Gbit/s")]) is None
    (mark,) = _marks([row(1, 8), row(2, 8)], [], [], {})
    assert mark == (
        "Dotted, right: the rate of the slowest node's link, headers included, which transfers within one node do "
        "not cross. After a pause 2 ms of it pass at once: short transfers may seem faster."
    )
