"""Simulated figures: the page of evidence has them all, and each command still prints its own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.claims import FIGURE, MeasuredTable, Simulated, read_claims, spans_of, table_spans
from tests.kept import ROOT
from tests.pages import pages
from tests.simulations import EVIDENCE, SIMULATIONS, main, section

CLAIMS = read_claims()
COMMAND = re.compile(r"python -m tests\.simulations ([\w-]+)")
QUICK = {"drift-of-6-per-cent", "alike-runs"}
"""Simulations that take a few seconds."""


def name_of(one: Simulated) -> str:
    """Return the simulation that a command names."""
    found = COMMAND.fullmatch(one.command)
    assert found, f"{one.command}: no command of a simulation"
    return found[1]


def wrong_with(one: Simulated) -> list[str]:
    """Return the faults of a statement of simulated figures, except for wrong figures."""
    name = name_of(one)
    found = [] if name in SIMULATIONS else [f"there is no simulation {name}"]
    known = set(re.findall(r"[\d.]+(?: %)?", " ".join(one.prints.values())))
    found += [
        f"it does not print {figure}"
        for text in one.texts
        for figure in FIGURE.findall(text)
        if figure not in known and figure not in one.about
    ]
    on = {page for page, text in pages().items() for said in one.texts if spans_of(said, text)}
    named = r"python\s+-m\s+tests\.simulations\s+(?:[\w-]+\s+)*" + re.escape(name) + r"(?![\w-])"
    found += [f"{page} does not name {one.command}" for page in on if not re.search(named, pages()[page])]
    return found if on or not one.texts else [*found, f"no page says {one.texts}"]


def commands_of(table: MeasuredTable) -> list[str]:
    """Return the command of each row of a table of measured figures."""
    prose = "\n\n".join(pages().values())
    ((start, end),) = table_spans(table.head, prose)
    rows = prose[start:end].removeprefix(table.head).strip().splitlines()
    return [table.command + row.rstrip("| ").rpartition(" | ")[2].strip("`") for row in rows]


def selected_by(command: str) -> list[str]:
    """Return the tests that a command of pytest on one file selects, by their names."""
    path, _, selected = command.partition("tests/")[2].partition(" -k ")
    file = ROOT / "tests" / path
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [name for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE) if selected in name]


@pytest.mark.parametrize("one", CLAIMS.simulated, ids=name_of)
def test_simulated_figures_stand_beside_their_command(one: Simulated) -> None:
    assert not wrong_with(one)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, marks=[] if name_of(one) in QUICK else [pytest.mark.thorough], id=name_of(one))
        for one in CLAIMS.simulated
    ],
)
def test_each_command_prints_what_is_stated(one: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    name = name_of(one)
    assert main([name]) == 0
    message = dict(
        line.removeprefix(f"{name}, ").split(": ") for line in capsys.readouterr().out.splitlines()
    )
    assert message == dict(one.prints), (
        "put what is printed into reports/claims.toml, then `python -m tests.simulations --page`"
    )


def test_the_page_of_evidence_has_every_simulated_figure() -> None:
    text = EVIDENCE.read_text(encoding="utf-8")
    assert text.endswith(section(CLAIMS.simulated)), "write it by `python -m tests.simulations --page`"
    assert not text.endswith(section(CLAIMS.simulated[1:]))


def test_every_simulation_s_figures_are_stated() -> None:
    assert {name_of(one) for one in CLAIMS.simulated} == set(SIMULATIONS)
    assert main(["no-such"]) == 2


def test_what_is_stated_without_a_command_or_with_another_s_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Two equal runs are called different in 18 % of trials"
    page = f"{said} (`{CLAIMS.simulated[1].command}`)."
    monkeypatch.setattr("tests.test_simulations.pages", lambda: {"docs/compare.md": page})
    one = replace(CLAIMS.simulated[1], texts=[said])
    assert not wrong_with(one)
    assert wrong_with(replace(one, prints={"called different": "77 %"})) == ["it does not print 18 %"]
    assert any("no simulation" in why for why in wrong_with(replace(one, command=f"{one.command}s")))
    assert any("does not name" in why for why in wrong_with(replace(one, command=f"{one.command}s")))
    assert any("no page says" in why for why in wrong_with(replace(one, texts=["18 % of nothing"])))


def test_every_measured_row_s_command_is_one() -> None:
    for table in CLAIMS.measured:
        commands = commands_of(table)
        assert len(commands) > 15
        for command in commands:
            assert selected_by(command), f"{command} selects no test"
    assert not selected_by("python -m pytest tests/benchmarks/test_startup.py -k nothing_such")
    assert not selected_by("python -m pytest tests/benchmarks/test_nothing.py")


def test_no_result_of_a_simulation_is_called_a_definition() -> None:
    """Words about how often something was seen have no place among definitions and settings."""
    seen = re.compile(
        r"\d %\s+of (?:all splits|histories|comparisons|those found|cases)|would do so in|told apart in"
    )
    assert not [text for text in CLAIMS.stated if FIGURE.search(text) and seen.search(text)]
    assert seen.search("is called different in 1.1 % of all splits")
