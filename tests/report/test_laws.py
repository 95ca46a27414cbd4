"""The section on scaling laws: drawn from the analysis, and a sentence if there is nothing to draw."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.embedded import labelled
from ddpbench.report.parts import Section
from ddpbench.report.rows import rows_of
from ddpbench.report.sections.laws import _paint_curve, _texts, section
from ddpbench.report.words import percent
from ddpbench.spec import Budget, Case, PlannedCase
from tests.report.handmade import changed
from tests.report.reading import read
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

BATCH = 64


def strong(strategy: str, world: int) -> Case:
    return case_of(strategy, world, scaling="strong", global_batch=BATCH, local_batch=BATCH // world)


def summary_of(path: Path, steps_ms: dict[Case, float], *, rounds: int = 5, crowded: int = 99) -> RunSummary:
    """Return a run whose step times vary by half a per cent from round to round, differently for each case."""
    run = RunDir(path)
    planned = [PlannedCase(case=case, oversubscribed=case.world_size > crowded) for case in steps_ms]
    write_plan(run, planned, Budget(rounds_min=rounds, rounds_max=rounds))
    for index, (case, step_ms) in enumerate(steps_ms.items()):
        for number in range(rounds):
            sign = ((number * (index + 2)) % 5 - 2) / 2
            step = round(step_ms * (1 + 0.005 * sign) * MS)
            ranks = [RankLaunch(blocks=[[step] * 10], samples_per_step=case.local_batch)] * case.world_size
            write_launch(run, case, number, ranks)
    return summarize(run)


def amdahl_ms(world: int, s: float = 0.05) -> float:
    return 100 * (s + (1 - s) / world)


def of(summary: RunSummary) -> Section:
    return section(summary.steps.laws, rows_of(summary))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    steps = {strong("single", 1): 100.0, strong("ddp", 1): 104.0}
    steps |= {strong("ddp", world): amdahl_ms(world) for world in (2, 4, 8, 16)}
    return summary_of(tmp_path_factory.mktemp("laws") / "run", steps, crowded=8)


def test_the_law_of_the_curve_is_found_and_what_ran_crowded_is_no_point(summary: RunSummary) -> None:
    (curve,) = summary.steps.laws
    assert [point.world_size for point in curve.laws.points] == [2, 4, 8]
    fit = curve.laws.fits[0]
    assert fit.law == "amdahl"
    s = fit.parameters["s"]
    assert s.low is not None
    assert s.high is not None
    assert s.low < 0.05 < s.high
    assert fit.line[-1][0] == 16, "lines end at twice the largest fair world size"
    found = of(summary)
    assert found.pictures[0].heading == "DDP follows Amdahl's law within the measurement's error"
    assert fit.unseen is not None
    assert f"A misfit of up to {percent(fit.unseen)} would go unseen." in found.pictures[0].caption
    assert "dashed where they are extrapolated" in found.pictures[0].caption
    assert any("Karp-Flatt's serial fraction does not measurably change" in note for note in found.notes)
    beta = curve.laws.fits[1].parameters["beta"]
    assert ("held at 0, the other intervals take it" in found.pictures[0].caption) == (beta.low is None)
    assert any("Gustafson's law is not fitted" in note for note in found.notes)
    # a law is among the findings, with its evidence
    of_laws = [finding for finding in summary.conclusions.findings if finding.evidence == "laws"]
    assert len(of_laws) == 1
    assert "Amdahl's law with a serial fraction of 0.05" in of_laws[0].text


def test_the_table_holds_every_parameter_point_and_residual(summary: RunSummary) -> None:
    rows = of(summary).pictures[0].table.rows
    what = [row[1].text for row in rows]
    assert what.count("Karp-Flatt serial fraction") == 3
    assert what.count("Amdahl's law: off by, %") == 3
    assert what.count("The Universal Scalability Law: off by, %") == 4, "the base case is a point of it"
    assert "Amdahl's law: serial fraction s" in what
    by_size = {row[2].text: row[3] for row in rows if row[1].text == "Speed-up"}
    assert by_size["8"].key == pytest.approx(100 / amdahl_ms(8), rel=0.01)


@pytest.mark.usefixtures("painted")
def test_the_page_shows_the_figure_and_equal_summaries_give_equal_bytes(
    summary: RunSummary, tmp_path: Path
) -> None:
    page = write_report(summary, RunDir(tmp_path))
    text = page.read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "laws.png").exists()
    document = read(text)
    assert any("with the laws fitted to each" in image.attributes["aria-label"] for image in document.figures)
    assert write_report(summary, RunDir(tmp_path)).read_text(encoding="utf-8") == text
    write_report(changed(summary, laws=()), RunDir(tmp_path))
    assert not (tmp_path / "figures" / "laws.png").exists(), "an old figure is cleared away"


def test_too_few_points_say_what_to_measure(tmp_path: Path) -> None:
    found = of(summary_of(tmp_path / "run", {strong("single", 1): 100.0, strong("ddp", 2): 52.5}))
    assert found.pictures == ()
    assert (
        "DDP, gpt:nano, strong scaling with a global batch of 64: too few points: 1 and 2 ranks"
        in found.absent
    )
    assert "Most worth measuring next: 4 ranks; it is the next power of two" in found.absent


def test_a_machine_without_the_devices_is_told(tmp_path: Path) -> None:
    cases = {strong("single", 1): 100.0, strong("ddp", 4): 27.0}
    # four cores: 2 lies between and 8 does not fit
    assert "Most worth measuring next: 2 ranks;" in of(summary_of(tmp_path / "a", cases)).absent
    cases = {strong("single", 1): 100.0} | {strong("ddp", world): amdahl_ms(world) for world in (2, 4)}
    (curve,) = summary_of(tmp_path / "b", cases).steps.laws
    assert curve.laws.next is not None
    assert (curve.laws.next.world_size, curve.laws.next.here) == (8, False)


def test_one_world_size_and_few_rounds_fit_nothing(tmp_path: Path) -> None:
    one = of(summary_of(tmp_path / "one", {strong("single", 1): 100.0, strong("ddp", 1): 101.0}))
    assert "three world sizes or more" in one.absent
    steps = {strong("single", 1): 100.0} | {strong("ddp", world): amdahl_ms(world) for world in (2, 4, 8)}
    few = of(summary_of(tmp_path / "few", steps, rounds=4))
    assert "2, 4 and 8 with under 5 rounds" in few.absent


def test_nodes_continue_the_curve_of_a_full_node(tmp_path: Path) -> None:
    spread = {"launcher": "torchrun", "nodes": 2}
    steps = {case_of("single", 1, launcher="torchrun"): 100.0}
    steps |= {case_of("ddp", n, launcher="torchrun"): 100.0 + n for n in (2, 4)}
    steps |= {case_of("ddp", 8, ranks_per_node=4, **spread): 115.0}
    steps |= {case_of("ddp", 4, ranks_per_node=2, **spread): 112.0}
    found = {curve.name: curve for curve in summary_of(tmp_path / "run", steps).steps.laws}
    assert {name: sorted(curve.case_ids) for name, curve in found.items()} == {
        "DDP on nodes of 2": [2, 4],
        "DDP on nodes of 4": [2, 4, 8],
    }
    four = found["DDP on nodes of 2"].case_ids[4]
    assert four == case_of("ddp", 4, ranks_per_node=2, **spread).case_id


def test_one_full_node_beside_several_of_fewer_ranks_is_a_curve(tmp_path: Path) -> None:
    """1 x 4 does not belong to the nodes of 2, and must not be left out."""
    steps = {case_of("single", 1, launcher="torchrun"): 100.0}
    steps |= {case_of("ddp", n, launcher="torchrun"): 100.0 + n for n in (2, 4)}
    steps |= {case_of("ddp", 4, ranks_per_node=2, launcher="torchrun", nodes=2): 112.0}
    found = {curve.name: curve for curve in summary_of(tmp_path / "run", steps).steps.laws}
    assert {name: sorted(curve.case_ids) for name, curve in found.items()} == {
        "DDP on 1 node": [2, 4],
        "DDP on nodes of 2": [2, 4],
    }
    assert found["DDP on 1 node"].case_ids[4] == case_of("ddp", 4, launcher="torchrun").case_id


def test_a_law_that_cannot_be_judged_is_not_said_to_miss(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path, {strong("single", 1): 100, strong("ddp", 2): 100 / 1.9, strong("ddp", 4): 100 / 2.4}
    )
    law = next(finding.line for finding in found.conclusions.findings if finding.evidence == "laws")
    assert "does not fit" in law
    assert "nor does" not in law
    heading = of(found).pictures[0].heading
    assert heading.endswith("does not follow Amdahl's law within the measurement's error")


def weak_summary(path: Path, steps_ms: dict[int, float]) -> RunSummary:
    """Return a run under weak scaling with these step times by number of ranks."""
    return summary_of(
        path, {case_of("ddp" if world > 1 else "single", world): step for world, step in steps_ms.items()}
    )


@pytest.mark.parametrize(
    ("steps_ms", "judged"),
    [
        ({1: 100, 2: 100, 4: 180, 8: 200}, "does not fit"),
        (
            {1: 100, 2: 206, 4: 436, 8: 1000},
            "does not apply",
        ),  # samples/s of 0.97, 0.92 and 0.8 times one rank's
    ],
    ids=["no law follows the points", "a serial fraction above 1"],
)
def test_a_rejected_law_has_no_curve_no_parameter_and_no_forecast(
    tmp_path: Path, steps_ms: dict[int, float], judged: str
) -> None:
    """Its curve would show efficiencies that cannot be, below 0 or above 1, next to those that were measured."""
    found = weak_summary(tmp_path / "run", steps_ms)
    (curve,) = found.steps.laws
    gustafson = next(fit for fit in curve.laws.fits if fit.law == "gustafson")
    assert gustafson.judged == judged
    drawn = Figure().subplots()
    _paint_curve(drawn, curve, hollow=False)
    held = [fit for fit in curve.laws.fits if not fit.rejected]
    lines = [line for line in drawn.lines if len(line.get_xdata()) > 2 and line.get_color() == "#3B4047"]
    assert not lines, "Gustafson's curve"
    assert not any(text.startswith("Gustafson") and "=" in text for text, _ in _texts(curve))
    picture = of(found).pictures[0]
    assert "Laws that do not hold are not drawn." in picture.caption
    what = [row[1].text for row in picture.table.rows]
    assert "Gustafson's law: serial fraction s" not in what
    assert "Gustafson's law: off by, %" in what
    said = next(one.line for one in found.conclusions.findings if one.evidence == "laws")
    assert "a serial fraction of" not in said
    assert held or curve.laws.next is None
    for text in (curve.laws.next.reason if curve.laws.next else "", curve.laws.peak_words):
        assert "Gustafson" not in text


def test_a_line_that_does_not_start_at_1_says_what_it_is_relative_to(summary: RunSummary) -> None:
    """The Universal Scalability Law fits one rank's rate, and does not fix it to the base case's."""
    (curve,) = summary.steps.laws
    amdahl, usl = curve.laws.fits

    def notes_at(start: float) -> list[str]:
        moved = dataclasses.replace(usl, line=((1.0, start), *usl.line[1:]))
        laws = dataclasses.replace(curve.laws, fits=(amdahl, moved))
        return [text for text, _ in _texts(dataclasses.replace(curve, laws=laws)) if "base case" in text]

    assert notes_at(0.8) == ["1 rank fitted too: 0.80 of the base case"]
    assert notes_at(1.001) == []
    assert amdahl.line[0] == (1.0, pytest.approx(1.0)), "the other laws hold it at 1"


def test_curves_of_two_values_of_an_option_are_told_apart(tmp_path: Path) -> None:
    """Two figures whose headings contradict each other say which value each is of, and so do tables and the finding."""
    steps: dict[Case, float] = {}
    for width in (16, 64):
        options = json.dumps({"width": width})
        steps[dataclasses.replace(strong("single", 1), workload_options_json=options)] = 100.0
        for world in (2, 4, 8):
            case = dataclasses.replace(strong("ddp", world), workload_options_json=options)
            steps[case] = amdahl_ms(world)
    found = summary_of(tmp_path, steps)
    drawn = of(found)
    for picture, width in zip(drawn.pictures, (16, 64), strict=True):
        assert picture.group == f"width={width}"
        assert f"width={width}" in picture.caption
        assert labelled(picture).alt.count(f"width={width}") == 1
        assert picture.table is not None
        assert f"width={width}" in picture.table.caption
    law = next(finding.line for finding in found.conclusions.findings if finding.evidence == "laws")
    assert "width=16" in law
