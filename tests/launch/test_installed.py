"""Strategies, workloads and algorithms that installed packages register by entry points."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.cli import run
from ddpbench.errors import ExperimentError, RequestError
from ddpbench.installed import GROUPS, listed, path_of
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.doctor import Host, carry_out
from ddpbench.launch.doctor.training import packages
from ddpbench.launch.own_workloads import with_located
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.verify import verification_cases
from ddpbench.report import write_report
from ddpbench.spec import Case, Devices, PlannedCase, expand, parse_experiment
from ddpbench.strategies import TABLE
from tests.synthetic import case_of, write_run

STRATEGY = """
from pydantic import BaseModel

from ddpbench.strategies import Job, NoOptions, Replica, Strategy


class Options(BaseModel, extra="forbid", frozen=True):
    ratio: float = 0.5


class TopK(Strategy[Options]):
    options = Options

    def build(self, job, options):
        raise NotImplementedError


class Mine:
    pass


class ToEach:
    pass
"""
SOUND = {
    "ddpbench.strategies": {"topk": "ddp_topk:TopK", "single": "ddp_topk:Hides"},
    "ddpbench.workloads": {"forecast": "ddp_topk:Mine"},
    "ddpbench.algorithms": {"to_each": "ddp_topk:ToEach"},
}
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of one module, as pip would, in a new folder."""
    before = {*sys.modules}
    monkeypatch.chdir(tmp_path)

    def installed(groups: dict[str, dict[str, str]], text: str = STRATEGY, *, name: str = "ddp-topk") -> Path:
        folder = tmp_path / f"site-{name}"
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name.replace('-', '_')}.py").write_text(text, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items())
            for group, each in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        return folder

    yield installed
    for each in {*sys.modules} - before:
        if str(getattr(sys.modules[each], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[each]


def cases_of(text: str) -> list[Case]:
    found = with_located(parse_experiment(text, TableCatalog(), name="own"), Path.cwd())
    planned = expand(found, TableCatalog(), Devices(kind="cpu", gpus=0, cores=4))
    return [one.case for one in planned if not one.added_as_baseline]


def test_a_registered_name_is_another_name_of_its_class(install: Install) -> None:
    install(SOUND)
    text = """
        [base]
        world_size = 2
        [axes]
        workload = ["forecast", "mlp"]
        strategy = ["topk", "ddp"]
        algorithm = ["default", "to_each"]
        [options.topk]
        ratio = 0.25
        [options.forecast]
        width = 3
        [[exclude]]
        strategy = "topk"
        workload = "mlp"
    """
    found = {(case.workload, case.strategy, case.algorithm): case for case in cases_of(text)}
    assert set(found) == {
        ("ddp_topk:Mine", "ddp_topk:TopK", ""),
        ("ddp_topk:Mine", "ddp", "all_reduce"),
        ("ddp_topk:Mine", "ddp", "ddp_topk:ToEach"),
        ("mlp:small", "ddp", "all_reduce"),
        ("mlp:small", "ddp", "ddp_topk:ToEach"),
    }
    (own,) = (case for case in found.values() if case.strategy != "ddp")
    assert (own.options, own.workload_options) == ({"ratio": 0.25}, {"width": 3})
    assert own.label.startswith("TopK · 2 ranks")


def test_shipped_names_stay_and_cost_no_look_at_packages(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(SOUND)
    assert "single" not in listed("strategy", TABLE)
    assert listed("strategy", TABLE)["topk"] == "of the package ddp-topk"

    def looked(_: object) -> None:
        raise AssertionError("packages were looked at")

    monkeypatch.setattr("ddpbench.installed._registered", looked)
    text = '[base]\nworld_size = 2\nworkload = "gpt:nano"\n[axes]\nstrategy = ["single", "ddp"]\nalgorithm = ["ring"]\n'
    assert {case.strategy for case in cases_of(text)} >= {"ddp"}


def test_a_name_that_ddpbench_has_too_is_warned_of(
    install: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install(
        {
            "ddpbench.strategies": {"ddp": "ddp_topk:TopK", "topk": "ddp_topk:TopK"},
            "ddpbench.workloads": {"mlp": "ddp_topk:Mine"},
            "ddpbench.algorithms": {"ring": "ddp_topk:ToEach"},
            "ddpbench.commands": {"show": "ddp_topk:add_parser"},
        }
    )
    own = "too, but this name means ddpbench's own: "
    of_classes = [
        f"the package ddp-topk has a workload 'mlp' {own}name the package's class by its path, 'ddp_topk:Mine'",
        f"the package ddp-topk has a strategy 'ddp' {own}name the package's class by its path, 'ddp_topk:TopK'",
        f"the package ddp-topk has an algorithm 'ring' {own}name the package's class by its path, 'ddp_topk:ToEach'",
    ]
    of_command = f"the package ddp-topk has a command 'show' {own}give it another name in the package"
    assert run(["list", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [*of_classes, of_command]
    json.loads(out)
    found = carry_out(packages, Host(), "Training")
    assert [f"{one.found}: {one.advice}" for one in found] == of_classes
    experiment = tmp_path / "own.toml"
    experiment.write_text('[base]\nworkload = "mlp:small"\nstrategy = "single"\n[axes]\nworld_size = [1]\n')
    prepared = prepare(SweepRequest(experiment=experiment, out=tmp_path / "out"))
    assert [note for note in prepared.notes if "package" in note] == of_classes[:1]


@pytest.mark.parametrize(
    ("groups", "text", "said"),
    [
        (
            {"ddpbench.strategies": {"topk": "ddp_topk:TopK"}},
            "raise RuntimeError('broken')\nTopK = 1\n",
            r"'topk' of the package ddp-topk: ddp_topk cannot be imported: RuntimeError: broken",
        ),
        (
            {"ddpbench.strategies": {"topk": "ddp_topk"}},
            STRATEGY,
            r"the strategy 'topk' of ddp-topk is registered as 'ddp_topk': a class was expected",
        ),
        (
            {"ddpbench.strategies": {"topk": "ddp_topk:Mine"}},
            STRATEGY,
            r"class Mine in ddp_topk is not a strategy",
        ),
        ({}, STRATEGY, r"unknown strategy 'topk'"),
    ],
)
def test_a_broken_one_is_one_problem_and_stops_no_other(
    install: Install, groups: dict[str, dict[str, str]], text: str, said: str
) -> None:
    install(groups, text)
    with pytest.raises(ExperimentError, match=said) as error:
        cases_of('[base]\nstrategy = "topk"\nworkload = "mlp"\nworld_size = 2\n')
    assert len(error.value.problems) == 1
    assert cases_of('[base]\nstrategy = "ddp"\nworkload = "mlp"\nworld_size = 2\n')


def test_two_packages_with_one_name_are_both_told(install: Install) -> None:
    install({"ddpbench.workloads": {"forecast": "ddp_topk:Mine"}})
    install({"ddpbench.workloads": {"forecast": "other:Mine"}}, name="other")
    with pytest.raises(
        ValueError, match=r"ddp-topk and other both have a workload 'forecast'.*'ddp_topk:Mine' or"
    ):
        path_of("workload", "forecast")
    install({"ddpbench.algorithms": {"mean": "third:Mean"}}, name="third")
    install({"ddpbench.algorithms": {"mean": "fourth:Mean"}}, name="fourth")
    with pytest.raises(ValueError, match=r"fourth and third both have an algorithm 'mean': name it"):
        path_of("algorithm", "mean")
    said = "of fourth and third, so it is ambiguous: name it by its path, 'fourth:Mean' or 'third:Mean'"
    assert listed("algorithm", []) == {"mean": said}
    with pytest.raises((ExperimentError, RequestError), match="both have a workload 'forecast'"):
        cases_of('[base]\nstrategy = "ddp"\nworkload = "forecast"\nworld_size = 2\n')


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("strategy", ["topk", "ddp_topk:TopK"]),
        ("strategy", ["topk", "best_k"]),
        ("workload", ["ddp_topk:Mine", "forecast"]),
        ("algorithm", ["to_each", "ddp_topk:ToEach"]),
    ],
)
def test_one_class_under_two_names_is_refused(install: Install, kind: str, names: list[str]) -> None:
    install(SOUND | {"ddpbench.strategies": dict.fromkeys(("topk", "best_k"), "ddp_topk:TopK")})
    start = "" if kind == "strategy" else '[base]\nstrategy = "ddp"\n'
    with pytest.raises(
        RequestError, match=f"{names[0]!r} and {names[1]!r} are the same {kind}: leave one out"
    ):
        cases_of(f"{start}[axes]\n{kind} = {names}")


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ('strategy = "Topk"', "unknown strategy 'Topk'; did you mean 'topk'?"),
        ('workload = "forecas"', "unknown workload 'forecas'; did you mean 'forecast'?"),
        ('algorithm = "to_eac"', "ddp has no \"to_eac\"; did you mean 'to_each'?"),
        ('[[exclude]]\nstrategy = "Topk"', "unknown strategy 'Topk'; did you mean 'topk'?"),
    ],
)
def test_names_of_packages_are_among_those_that_may_be_meant(install: Install, base: str, said: str) -> None:
    install(SOUND)
    start = "" if "strategy" in base[:9] else 'strategy = "ddp"'
    with pytest.raises(RequestError) as error:
        cases_of(f"[base]\nworld_size = 2\n{start}\n{base}\n")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"strategies": ["Topk"]}, "--strategy: unknown strategy 'Topk'; did you mean 'topk'?"),
        ({"workloads": ["forecas"]}, "--workload: unknown workload 'forecas'; did you mean 'forecast'?"),
        ({"algorithms": ["to_eac"]}, "ddp has no \"to_eac\"; did you mean 'to_each'?"),
    ],
)
def test_verify_asks_whether_a_packages_name_was_meant(
    install: Install, asked: dict[str, list[str]], said: str
) -> None:
    install(SOUND)
    with pytest.raises(RequestError) as error:
        verification_cases(
            asked.get("strategies", ["ddp"]),
            asked.get("workloads", ["mlp"]),
            [2],
            "gloo",
            algorithms=asked.get("algorithms"),
        )
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("base", "table", "said"),
    [
        ('strategy = "topk"', "ddp_topk:TopK", "this experiment has it as 'topk': write [options.topk]"),
        ('strategy = "ddp_topk:TopK"', "topk", 'write [options."ddp_topk:TopK"]'),
        ('workload = "forecast"', "ddp_topk", "this experiment has it as 'forecast'"),
        ('workload = "forecast"', "ddp_topk:Mine", "this experiment has it as 'forecast'"),
        ('workload = "ddp_topk:Mine"', "forecast", "write [options.ddp_topk]"),
        ('strategy = "mine.py:TopK"', "./mine.py:TopK", 'write [options."mine.py:TopK"]'),
        ('workload = "mine.py:Mine"', "./mine.py", 'write [options."mine.py"]'),
        ('workload = "mine.py:Mine"', "mine.py:Mine", 'write [options."mine.py"]'),
        ('workload = "gpt:nano"', "gpt:nano", "write [options.gpt]"),
        ('workload = "mlp"', "topk", "'topk' is not used by this experiment; known: ddp, mlp"),
        ('workload = "mlp"', "mine.py", "'mine.py' is not used by this experiment; "),
        ('workload = "mlp"', "bottomk", "'bottomk' is not a strategy or workload; known: ddp, mlp"),
    ],
)
def test_options_under_another_name_are_told_under_which(
    install: Install, tmp_path: Path, base: str, table: str, said: str
) -> None:
    install(SOUND)
    (tmp_path / "mine.py").write_text(STRATEGY, encoding="utf-8")
    start = "" if "strategy" in base else 'strategy = "ddp"'
    with pytest.raises(ExperimentError) as error:
        cases_of(f'[base]\n{start}\n{base}\n[options."{table}"]\nratio = 0.25\n')
    assert [str(one).startswith(f"options.{table}: ") for one in error.value.problems] == [True]
    assert said in str(error.value)


def test_options_of_one_class_under_two_names_are_refused_as_a_class(install: Install) -> None:
    install({"ddpbench.strategies": dict.fromkeys(("topk", "best_k"), "ddp_topk:TopK")})
    axes = '"options.topk.ratio" = [0.1]\n"options.best_k.ratio" = [0.2]\n'
    said = "'options.topk.ratio' and 'options.best_k.ratio' name the same class: use only one of these names"
    with pytest.raises(RequestError, match=said):
        cases_of(f'[axes]\nstrategy = ["topk", "best_k"]\n{axes}')


def test_groups_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8")
    assert [group for group in GROUPS.values() if f'[project.entry-points."{group}"]' not in page] == []


MORE = """
def add_parser(commands):
    parser = commands.add_parser("count-cases", help="count the cases of a run")
    parser.add_argument("folder")
    parser.set_defaults(run=lambda arguments: print("counted", arguments.folder) or 3)


def with_run(commands):
    parser = commands.add_parser("of-run")
    parser.add_argument("run")
    parser.set_defaults(run=lambda arguments: print("of", arguments.run) or 4)


def with_flag(commands):
    parser = commands.add_parser("flagged")
    parser.set_defaults(run=lambda arguments: print("flag", arguments.run) or 5)
    parser.add_argument("--run")


def nested(commands):
    below = commands.add_parser("nested").add_subparsers(required=True).add_parser("inner")
    below.add_argument("run")
    below.set_defaults(run=lambda arguments: print("inner", arguments.run) or 6)


def broken(*given):
    raise KeyError("of mine")


def without_run(commands):
    commands.add_parser("idle")


def unreadable(summary, rows):
    from ddpbench.errors import RecordError

    raise RecordError("a record of mine")


def section(summary, rows):
    from ddpbench.report.parts import Cell, Column, Section, Table

    table = Table(caption="Cases.", columns=(Column("Cases", number=True),), rows=((Cell.count(len(rows)),),))
    return Section(anchor="of-mine", title="Counted <b>cases</b>", question="How many?", tables=(table,))


def scaling(summary, rows):
    from ddpbench.report.parts import Section

    return Section(anchor="scaling", title="Mine", absent="Nothing.")
"""


def test_a_command_of_a_package_is_run_and_a_broken_one_stops_no_other(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "count-cases": "add_parser",
        "breaks": "broken",
        "list": "broken",
        "idle": "without_run",
    }
    install({"ddpbench.commands": {name: f"ddp_topk:{function}" for name, function in names.items()}}, MORE)
    assert run(["count-cases", "here"]) == 3
    assert capsys.readouterr().out == "counted here\n"
    assert run(["breaks"]) == 2
    assert "'breaks' of the package ddp-topk failed: KeyError: 'of mine' (" in capsys.readouterr().err
    assert run(["idle"]) == 2
    assert "command 'idle' of the package ddp-topk has no function to run" in capsys.readouterr().err
    assert run(["list"]) == 0
    capsys.readouterr()
    for words, said in (
        (["no-such-command"], "known: allocation, baseline, bisect, breaks, compare, count-cases, doctor"),
        (["count-case"], "did you mean 'count-cases'?"),
    ):
        with pytest.raises(SystemExit):
            run(words)
        assert said in capsys.readouterr().err
    for words in (["--help"], ["-h"], []):
        with contextlib.suppress(SystemExit):
            run(words)
        shown = capsys.readouterr().out
        assert "commands of installed packages:\n  breaks  of the package ddp-topk\n  count-cases" in shown
        assert "  list  of the package" not in shown
    with pytest.raises(SystemExit):
        run(["sweep", "--help"])
    assert "installed packages" not in capsys.readouterr().out


def test_a_command_of_a_package_may_have_an_argument_named_run(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"of-run": "with_run", "flagged": "with_flag", "nested": "nested"}
    install({"ddpbench.commands": {name: f"ddp_topk:{function}" for name, function in names.items()}}, MORE)
    for words, code, out in (
        (["of-run", "reports/a"], 4, "of reports/a"),
        (["flagged"], 5, "flag None"),
        (["flagged", "--run", "b"], 5, "flag b"),
        (["nested", "inner", "c"], 6, "inner c"),
    ):
        assert run(words) == code
        assert capsys.readouterr().out == f"{out}\n"


def test_sections_of_packages_stand_on_the_page_and_broken_ones_say_why(
    install: Install, tmp_path: Path
) -> None:
    sections = {"counted": "ddp_topk:section", "breaks": "ddp_topk:broken", "again": "ddp_topk:scaling"}
    sections |= {"twice": "ddp_topk:section", "unread": "ddp_topk:unreadable"}
    install({"ddpbench.sections": sections}, MORE)
    cases = [PlannedCase(case=case_of(name, world)) for name, world in (("single", 1), ("ddp", 2))]
    found = write_run(tmp_path / "run", cases, blocks=2, steps=4)
    page = write_report(summarize(found), found).read_text(encoding="utf-8")
    assert "Counted &lt;b&gt;cases&lt;/b&gt;" in page
    assert re.search(r"breaks.{1,9} of the package ddp-topk failed: KeyError: ", page)
    for name in ("again", "twice"):
        assert re.search(
            rf"{name}.{{1,9}} of the package ddp-topk has the anchor .{{5,20}}, which another part", page
        )
    assert "a record of mine." in page
    anchors = re.findall(r'<(?:h2|dt)[^>]* id="([^"]+)"', page)
    assert len(anchors) == len({*anchors}) > 5


PAGE = """
import os
import sys

from ddpbench.report.parts import Cell, Column, Picture, Section, Table


def table(*cells, **more):
    return Table(caption="Mine.", columns=(Column("A"),), rows=tuple((cell,) for cell in cells), **more)


def picture(paint, file_name="of-mine", **more):
    given = {"heading": "Mine", "caption": "Mine.", "alt": "Mine.", "table": table(Cell(text="a"))}
    given |= {"width_in": 4, "height_in": 2.0, "missing": {}, **more}
    return Picture(file_name=file_name, paint=paint, **given)


def fine(sheet):
    sheet.axes(1, 1, 2, 1)


def fails(sheet):
    raise KeyError("in paint")


def ends(*_):
    sys.exit(7)


class Odd(BaseException):
    def __str__(self):
        raise ValueError


def odd(*_):
    raise Odd


def shown(anchor, *, paint=fine, tables=(), notes=(), **more):
    return Section(anchor=anchor, title="Mine", pictures=(picture(paint, **more),), tables=tables, notes=notes)


SECTIONS = {
    "sound": lambda: shown("of-mine", file_name="mine"),
    "exits": ends,
    "odd": odd,
    "paint_fails": lambda: shown("a", paint=fails),
    "paint_exits": lambda: shown("b", paint=ends),
    "narrow_fails": lambda: shown("c", narrow=fails, narrow_in=(2, 2)),
    "number_in_cell": lambda: shown("d", tables=(table(Cell(text=3)),)),
    "none_in_row": lambda: shown("e", tables=(table(None),)),
    "number_in_table": lambda: shown("f", table=table(Cell(text=3))),
    "no_caption": lambda: shown("g", caption=None),
    "number_in_notes": lambda: shown("h", notes=(1,)),
    "title": lambda: Section(anchor="i", title=4, absent="Nothing."),
    "figure": lambda: shown("j", file_name="Scaling"),
    "elsewhere": lambda: shown("k", file_name="../elsewhere"),
    "twice": lambda: shown("l", file_name="mine"),
    "summary": lambda: shown("summary", file_name="m"),
    "fold": lambda: shown("experiment", file_name="n"),
    "first_figure": lambda: shown("figure-1", file_name="o"),
    "row": lambda: shown("p", file_name="p", tables=(table(Cell(text="a"), row_ids=("terms",)),)),
    "spaces": lambda: shown("q r", file_name="q"),
    "short_ids": lambda: shown("r", file_name="r", tables=(table(Cell(text="a"), Cell(text="b"), row_ids=("x",)),)),
    "last": lambda: shown("of-mine-too", file_name="last"),
}


def __getattr__(name):
    return lambda summary, rows: SECTIONS[name]()
"""
SAID = {
    "exits": "failed: it ends the process, SystemExit: 7",
    "odd": "failed: Odd: ",
    "paint_fails": "failed: KeyError: 'in paint' (",
    "paint_exits": "failed: it ends the process, SystemExit: 7",
    "narrow_fails": "failed: KeyError: 'in paint'",
    "number_in_cell": "returned a section whose tables[0].rows[0][0].text is 3, where a str was expected",
    "none_in_row": "returned a section whose tables[0].rows[0][0] is None, where a Cell was expected",
    "number_in_table": "returned a section whose pictures[0].table.rows[0][0].text is 3, where a str",
    "no_caption": "returned a section whose pictures[0].caption is None, where a str was expected",
    "number_in_notes": "returned a section whose notes[0] is 1, where a str was expected",
    "title": "returned a section whose title is 4, where a str was expected",
    "figure": "has the file name 'Scaling' of another figure: choose another",
    "elsewhere": "has the file name '../elsewhere': give one of letters",
    "twice": "has the file name 'mine' of another figure",
    "summary": "has the anchor 'summary', which another part of the page has",
    "fold": "has the anchor 'experiment', which another part",
    "first_figure": "has the anchor 'figure-1', which another part",
    "row": "has the id 'terms', which another part",
    "spaces": "has the id 'q r': give one without spaces",
    "short_ids": "failed: UndefinedError: ",
}


def test_whatever_a_section_of_a_package_does_the_page_is_made_and_has_the_reason(
    install: Install, tmp_path: Path
) -> None:
    cases = [
        PlannedCase(case=case_of(name, world)) for name, world in (("single", 1), ("ddp", 2), ("ddp", 4))
    ]
    found = write_run(tmp_path / "run", cases, blocks=2, steps=4)
    write_report(summarize(found), found)
    before = (found.figures / "scaling.png").read_bytes()
    names = re.findall(r'^    "(\w+)": ', PAGE, re.MULTILINE)
    # in the order of their names: the valid ones are first and last
    points = {f"{place:02}-{name}": f"ddp_topk:{name}" for place, name in enumerate(names)}
    install({"ddpbench.sections": points}, PAGE)
    page = html.unescape(write_report(summarize(found), found).read_text(encoding="utf-8"))
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    assert {*SAID} == {*names} - {"sound", "last"}
    reasons = dict(re.findall(r"'\d\d-(\w+)' of the package ddp-topk ([^<]*)", page))
    assert {name: words[: len(SAID[name])] for name, words in reasons.items()} == SAID
    assert (found.figures / "scaling.png").read_bytes() == before
    assert {path.stem for path in found.figures.iterdir()} >= {"mine", "last"}
    assert not list(found.path.glob("elsewhere*"))
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len({*ids})
    assert {"of-mine", "of-mine-too"} < {*ids}


def test_an_interrupt_within_a_section_of_a_package_stays_one(install: Install, tmp_path: Path) -> None:
    install({"ddpbench.sections": {"mine": "ddp_topk:stop"}}, "def stop(*_):\n    raise KeyboardInterrupt\n")
    found = write_run(tmp_path / "run", [PlannedCase(case=case_of("single", 1))], blocks=2, steps=4)
    with pytest.raises(KeyboardInterrupt):
        write_report(summarize(found), found)


def test_a_command_of_a_package_that_ends_the_process_is_said_to(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install({"ddpbench.commands": {"ends": "ddp_topk:ends"}}, PAGE)
    assert run(["ends"]) == 2
    assert (
        "'ends' of the package ddp-topk failed: it ends the process, SystemExit: 7" in capsys.readouterr().err
    )


@pytest.mark.multiprocess
def test_ranks_find_it_too(install: Install) -> None:
    own = Path(__file__).parents[1] / "strategies/own_hooks.py"
    folder = install(
        {"ddpbench.strategies": {"averages": "ddp_topk:Averages"}}, own.read_text(encoding="utf-8")
    )
    for more in ("", " --json"):
        command = f"verify --strategy averages --world-size 2 --workload mlp{more}"
        done = subprocess.run(
            [sys.executable, "-m", "ddpbench", *command.split()],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if not more:
            assert [line.split()[:4] for line in done.stdout.splitlines()[1:2]] == [
                ["averages", "mlp:small", "2", "ok"]
            ]
    (found,) = json.loads(done.stdout)
    assert (found["strategy"], found["result"]) == ("ddp_topk:Averages", "ok")
