"""Texts of others in files: Markdown, CSV, OpenMetrics and LaTeX show them, without interpreting anything in them."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape as xml_escape

import pandas as pd
import pytest
from markdown_it import MarkdownIt  # rich needs it

import ddpbench
from ddpbench.analysis import load, read_csv, write_csv
from ddpbench.analysis.regression.baselines import machine_folder
from ddpbench.analysis.table.frame import csv_of
from ddpbench.cli import run as command
from ddpbench.cli.lines import say, show
from ddpbench.escaping import (
    escape_csv,
    escape_latex,
    escape_markdown,
    escape_markdown_code,
    escape_openmetrics,
    markdown_row,
    unescape_csv,
)
from ddpbench.records import RunDir
from ddpbench.report.templates import environment
from ddpbench.spec import PlannedCase
from ddpbench.text_safety import clean, on_page, quoted, unprintable
from tests.synthetic import Outcome, case_of, write_launch, write_run

INVISIBLE = "\x00\x07\x1b\x7f\x9b\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u2029"
ATTACK = (
    '<script>alert(1)</script><img src=x onerror="a()"> [click](http://evil.example) ![i](http://e/x.png) '
    "<http://evil.example> **bold** _em_ ~~gone~~ `code` | cell | &lt;b&gt; @octocat $x^2$ \\"
    f"{INVISIBLE}\x1b[2J\x1b]0;title\x07"
)
FORMULA = '=HYPERLINK("http://evil.example","click")'


def parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a renderer makes of Markdown: kinds of elements, with their text."""
    for block in parser().parse(text):
        for one in block.children or [block]:
            yield one.type, one.content


ACTIVE = re.compile(r"html|link|image|^em_|strong|s_open|heading|fence|blockquote|list|hr|code_block")


def acting(text: str) -> set[str]:
    return {kind for kind, _ in tokens(text) if ACTIVE.search(kind)}


def shown(text: str) -> str:
    """Return the text that a reader sees, without white space."""
    content = "".join(
        content for kind, content in tokens(text) if kind in ("text", "code_inline", "text_special")
    )
    return re.sub(r"[\s\u200b]", "", content)


def as_seen(text: str) -> str:
    """Return what should be seen of a text: all except the marks of code."""
    return re.sub(r"\s", "", clean(text))


@pytest.mark.parametrize(
    "text",
    [
        ATTACK,
        "# heading",
        "- item",
        "+ item",
        "1. item",
        "2) item",
        "> quote",
        "---",
        "===",
        "~~~",
        "    code",
        "a\n\n# b",
        "a\n===",
        "[a]: http://evil.example",
        "[a][b]",
        "a ] ( b ](c)",
        "__init__ and _x_ and all_reduce",
        "<!-- comment",
        "<a\nhref='http://evil.example'>",
        "&#60;script&#62;",
        "\\<script>",
        "\\\\`<script>`",
        "*a* **b**",
    ],
)
def test_markdown_shows_a_text_and_acts_on_none(text: str) -> None:
    for written in (escape_markdown(text), f"before {escape_markdown(text)} after"):
        assert not acting(written), written
        assert not unprintable(written)
        assert "\n" not in written
    assert shown(escape_markdown(text)).replace("`", "") == as_seen(text).replace("`", "")


@pytest.mark.parametrize(
    "text",
    [
        "see .@octocat",
        "@@octocat",
        "/@octocat",
        "1.@octocat",
        "é@octocat",
        "fixes owner/repo#12",
        "GH-1",
        "(#3)",
        "closes https://github.com/owner/repo/issues/12",
    ],
)
def test_markdown_names_nobody_and_no_issue(text: str) -> None:
    """GitHub recognizes a name after all but ASCII letters and digits, and closes the issue that a pull request
    fixes."""
    for written in (escape_markdown(text), markdown_row([text])):
        assert not re.search(r"@\w|#[0-9]+(?![0-9;])|GH-[0-9]|issues/[0-9]", written, re.ASCII), written
    assert shown(escape_markdown(text)) == as_seen(text)


def test_code_in_markdown_stays_code() -> None:
    written = escape_markdown("try `ddpbench compare --html <x>` and `` a`b ``, or ` alone")
    assert [content for kind, content in tokens(written) if kind == "code_inline"] == [
        "ddpbench compare --html <x>",
        "a`b",
    ]
    assert written.endswith("or \\` alone")


@pytest.mark.parametrize("name", ["plain", "a`b", "``", "`", "a|b", "<script>", "a\nb\x1b[2J", "`x"])
def test_a_name_is_code_whatever_it_holds(name: str) -> None:
    found = list(tokens(f"Base: {escape_markdown_code(name)}."))
    (code,) = [content for kind, content in found if kind == "code_inline"]
    assert code.strip() == clean(name).replace("\n", " ").strip()
    assert not acting(escape_markdown_code(name))


def test_a_row_has_as_many_cells_as_were_given() -> None:
    cells = [ATTACK, "a|b", "`a|b`", "\\|", "x\ny", ""]
    table = f"{markdown_row('abcdef')}\n|{'---|' * 6}\n{markdown_row(cells)}\n"
    kinds = [token.type for token in parser().parse(table)]
    assert kinds.count("td_open") == 6
    assert kinds.count("tr_open") == 2
    assert not acting(table)


def test_no_random_text_acts_in_markdown() -> None:
    draw = random.Random(50)
    pieces = [*"`*_[]()<>!|#~\\&;:- \n\t\x1b\x00\u202eab1.=+@$", "<b>", "](u)", "```", "&lt;", "http://e"]
    for _ in range(1_000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 14)))
        for written in (escape_markdown(text), escape_markdown(f"own `word` {text} own `word`")):
            assert not acting(written), (text, written)
            assert not unprintable(written)


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", "\tx", "\nx", " =1", "'x", "'=x", "\uff1d1", "''"]
)
def test_a_text_that_a_spreadsheet_takes_for_a_formula_is_marked(text: str) -> None:
    assert escape_csv(text) == f"'{text}"
    assert unescape_csv(escape_csv(text)) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("needs 2;=WEBSERVICE(A1)", "needs 2;'=WEBSERVICE(A1)"),
        ('a;"=1";\t-2', "a;\"'=1\";\t'-2"),
        ("a\t'+1", "a\t''+1"),
        ("=1\n @x", "'=1\n '@x"),
    ],
)
def test_a_formula_is_marked_where_another_separator_begins_its_cell(text: str, written: str) -> None:
    assert escape_csv(text) == written
    assert unescape_csv(written) == text


def test_random_texts_of_csv_are_read_back_and_hold_no_formula() -> None:
    draw = random.Random(6)
    for _ in range(2_000):
        text = clean("".join(draw.choices("=+-@;|\t\n '\"a,", k=draw.randint(0, 10))))
        written = escape_csv(text)
        assert unescape_csv(written) == text
        for cell in re.split(r"[;|\t\n]", written):
            assert not cell.lstrip().lstrip('" ').startswith(tuple("=+-@")), (text, written)


@pytest.mark.parametrize("text", ["ddp", "a=b", "x\ny", "a'b", "1 - 2", "\N{MINUS SIGN}1", "", 'ü, "q"'])
def test_other_texts_of_csv_are_as_they_are(text: str) -> None:
    assert escape_csv(text) == text == unescape_csv(text)


def test_a_return_and_other_control_characters_are_replaced_in_csv() -> None:
    assert escape_csv("\r=1") == "\N{REPLACEMENT CHARACTER}=1"
    assert not unprintable(escape_csv(ATTACK))


def test_labels_of_openmetrics_and_latex_have_no_control_characters() -> None:
    assert escape_openmetrics('a"b\\c\nd\x1b[2J\x00') == 'a\\"b\\\\c\\nd\N{REPLACEMENT CHARACTER}'
    assert escape_latex("\\input{x}\x1b[2J\x00\u200e%") == r"\textbackslash{}input\{x\}??\%"


EVERY = [chr(number) for number in range(0x10000)] + [
    chr(plane << 16 | end) for plane in range(1, 17) for end in (0, 1, 0xFFFD, 0xFFFE, 0xFFFF)
]
"""Each code point of the first plane, and the ends of the others."""


def _latex(text: str) -> str:
    return "".join(
        map(escape_latex, text)
    )  # which replaces characters that no font has by question marks, one by one


def _page(text: str) -> str:
    return environment().from_string("{{ text }}{{ [text] }}").render(text=text)


def _terminal(text: str) -> str:
    stream = io.StringIO()
    show(text, file=stream)
    say(text, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        *(clean, on_page, quoted, escape_csv, escape_markdown, escape_markdown_code, escape_openmetrics),
        *(_latex, _page, _terminal),
    ],
)
def test_no_format_has_a_character_that_xml_forbids_or_unicode_has_none_for(
    write: Callable[[str], str],
) -> None:
    """A parser refuses an SVG with one of these characters."""
    for start in range(0, len(EVERY), 4096):
        written = write("x".join(EVERY[start : start + 4096]))
        written.encode("utf-8")
        assert not unprintable(written)
        assert [one for one in written if not _in_xml(one)] == []
        ElementTree.fromstring(f"<a>{xml_escape(written)}</a>")


def _in_xml(one: str) -> bool:
    """Return whether XML 1.0 allows a character, and Unicode assigns it."""
    number = ord(one)
    legal = one in "\t\n\r" or 0x20 <= number <= 0xD7FF or 0xE000 <= number <= 0xFFFD or number >= 0x10000
    return legal and not 0xFDD0 <= number <= 0xFDEF and number & 0xFFFE != 0xFFFE


def test_what_clean_changes_is_unprintable() -> None:
    changed = [one for one in EVERY if clean(one) != one]
    assert changed == [one for one in EVERY if unprintable(one)]
    assert {one for one in EVERY if not _in_xml(one)} <= set(changed)
    assert len(changed) == 2191  # few others: surrogates, controls, directions


@pytest.mark.parametrize(
    "command", ["##vso[task.prependpath]/tmp", "##[set-env name=PATH;]/tmp", "###[x]", "##teamcity[x 'y']"]
)
def test_no_text_is_a_command_to_the_service_that_runs_a_build(command: str) -> None:
    """Azure Pipelines, GitHub Actions and TeamCity carry out commands that a build prints."""
    for text in (command, f"a name {command}"):
        assert clean(text) == text.replace("##vso", "# #vso").replace("##[", "# #[").replace("##t", "# #t")
        assert command not in _terminal(text)
    assert clean("## a heading, ##") == "## a heading, ##"


@pytest.mark.parametrize("before", ["", "  ", "\t", "first\n", "first\n  "])
def test_no_line_is_a_command_to_github_actions(before: str) -> None:
    assert not re.search(r"^\s*::", _terminal(f"{before}::stop-commands::x"), re.MULTILINE)
    assert "test_a.py::test_b" in _terminal("test_a.py::test_b")
    assert not re.match(r"\s*::", escape_markdown(f"{before}::stop-commands::x"))


def test_bidi_marks_are_not_shown_anywhere() -> None:
    assert clean(f"a{INVISIBLE}b") == f"a{chr(0xFFFD) * len(INVISIBLE)}b"


# Every writer.


TWO = "two <img src=x onerror=alert(1)> `@octocat` [a](b) \x1b[2J | =1"
"""A run directory's name."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two runs whose free texts attack each format."""
    folder = tmp_path_factory.mktemp("hostile")
    for seed, name in enumerate(("one", TWO)):
        bare = ATTACK.replace("\x00", "")  # of a plan that holds one nothing is read
        cases = [
            PlannedCase(case=case_of(strategy, world, workload=f"{bare}:Evil"))
            for strategy, world in (("single", 1), ("ddp", 2), ("ddp", 4))
        ]
        skipped = case_of("ddp", 8, workload=f"{bare}:Evil")
        run = write_run(
            folder / name,
            [*cases, PlannedCase(case=skipped, skip_reason=FORMULA + bare)],
            rounds=5,
            seed=seed,
        )
        bad = Outcome(status="failed", error=FORMULA + bare, phase="warm-up", last_log_line=FORMULA + bare)
        for number in range(2):
            shutil.rmtree(run.launch(cases[2].case.case_id, "measure", number).path)
            write_launch(run, cases[2].case, number, outcome=bad)
        machine = json.loads(run.machine.read_text(encoding="utf-8"))
        machine["context"]["git_commit"] = bare
        machine["context"]["started_utc"] = f"2026-11-0{seed + 1}T10:00:00+00:00"
        run.machine.write_text(json.dumps(machine), encoding="utf-8")
    return folder


def test_a_table_of_cases_holds_no_formula_and_is_read_back(hostile: Path) -> None:
    run = RunDir(hostile / "one")
    frame = load(run)
    assert list(frame["status"]) == ["ok", "ok", "failed", "skipped"]
    assert frame["error"].str.startswith(FORMULA).sum() == 1
    text = write_csv(frame, run).read_text(encoding="utf-8")
    assert not unprintable(text)
    rows = list(csv.DictReader(io.StringIO(text)))
    numbers = 0
    for row in rows:
        for cell in row.values():
            try:
                float(cell)
                numbers += 1
            except ValueError:
                assert not cell.startswith(tuple("=+-@\t\r")), cell
    assert numbers > 100
    back = read_csv(run.table)
    for name in ("error", "workload"):
        assert [clean(one) for one in frame[name].dropna()] == list(back[name].dropna())


def test_negative_numbers_stay_numbers() -> None:
    frame = pd.DataFrame({"a": pd.Series([-1.5, 2.0]), "b": pd.Series(["-x", None], dtype="string")})
    assert csv_of(frame) == "a,b\n-1.5,'-x\n2.0,\n"


@pytest.mark.parametrize("kind", ["csv", "openmetrics", "pytest-benchmark"])
def test_what_is_exported_holds_no_control_characters(hostile: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    assert command(["export", str(hostile / "one"), "--format", kind, "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "alert(1)" in text
    assert not unprintable(text)
    if kind == "csv":
        assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(text)) for cell in row)


@pytest.mark.parametrize("name", ["compare", "history"])
def test_markdown_of_a_strangers_runs_shows_text_alone(hostile: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.md"
    runs = [str(hostile / "one"), str(hostile / TWO)]
    assert command([name, *runs, "--markdown", str(out)]) in (0, 1)
    text = out.read_text(encoding="utf-8")
    assert not unprintable(text)
    assert "alert(1)" in text
    assert {
        kind for kind, _ in tokens(text) if re.search("html|link|image|^em_|s_open|heading|fence", kind)
    } == set()
    shown_as_text = [content for kind, content in tokens(text) if kind == "text"]
    assert any("<script>" in one or "<img" in one for one in shown_as_text)
    tables = [block.type for block in parser().parse(text)]
    heads, cells = tables.count("th_open"), tables.count("td_open")
    assert cells % heads == 0


def test_the_allocation_pages_of_a_strangers_run_show_text_alone(hostile: Path, tmp_path: Path) -> None:
    assert command(["allocation", str(hostile / "one"), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "allocation.md").read_text(encoding="utf-8")
    assert not unprintable(text)
    assert "alert(1)" in text
    assert {kind for kind, _ in tokens(text) if re.search("html|link|^em_|s_open|fence", kind)} == set()
    assert [kind for kind, _ in tokens(text)].count("image") == 1
    latex = (tmp_path / "allocation.tex").read_text(encoding="utf-8")
    assert not unprintable(latex)
    assert "<script>" not in latex


FORGED = "x\nFORGED all cases are ok\r\n\tFORGED"


@pytest.fixture(scope="module")
def forging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two runs whose texts have line breaks, the name of one too."""
    folder = tmp_path_factory.mktemp("forging")
    for seed, name in enumerate(("one", "two\nFORGED")):
        cases = [
            PlannedCase(case=case_of(strategy, world, workload=f"{FORGED}:Evil"))
            for strategy, world in (("single", 1), ("ddp", 2), ("ddp", 4))
        ]
        skipped = PlannedCase(case=case_of("ddp", 8, workload=f"{FORGED}:Evil"), skip_reason=FORGED)
        run = write_run(folder / name, [*cases, skipped], rounds=5, seed=seed)
        bad = Outcome(status="failed", error=FORGED, phase="warm-up", last_log_line=FORGED)
        for number in range(2):
            shutil.rmtree(run.launch(cases[2].case.case_id, "measure", number).path)
            write_launch(run, cases[2].case, number, outcome=bad)
        (run.case(cases[1].case.case_id) / "launch-xx\nFORGED").mkdir()
        text = json.loads(run.machine.read_text(encoding="utf-8"))
        text["context"] |= {"git_commit": FORGED, "started_utc": f"2026-11-0{seed + 1}T10:00:00+00:00"}
        text["identity"]["cpu"] = f"{FORGED}{seed}"
        run.machine.write_text(json.dumps(text), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{one}"],
        ["compare", "{one}", "{two}", "--across"],
        ["history", "{one}", "{two}", "--across"],
        ["history", "{folder}", "--across"],
        ["history", "{folder}"],
        ["history", "{two}"],
        ["compare", "{two}", "{two}"],
        ["report", "{two}"],
        ["report", "{two}/none"],
        ["allocation", "{two}", "--out", "{new}"],
        ["export", "{two}/none", "--format", "csv"],
        ["merge", "{two}", "{two}", "--out", "{new}"],
        ["pack", "{two}/none"],
        ["submit", "{two}"],
        ["plan", "{two}"],
        ["sweep", "{two}"],
        ["noise", "--workload", "{two}"],
        ["profile", "{two}:Class", "--out", "{new}"],
    ],
)
def test_no_line_on_a_terminal_begins_with_a_strangers_text(
    words: list[str], forging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It could pass for a line of ddpbench's own, such as a verdict."""
    one, two = sorted(map(str, forging.iterdir()))
    names = {"one": one, "two": two, "folder": Path(one).parent, "new": forging.with_name("new\nFORGED")}
    command([word.format(**names) for word in words])
    lines = [line for text in capsys.readouterr() for line in text.splitlines()]
    assert any("FORGED" in line for line in lines)
    begun = [line for line in lines if line.lstrip().startswith("FORGED")]
    assert begun == []


def test_no_line_begins_with_a_key_of_a_plan_or_a_baselines_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run("run", [PlannedCase(case=case_of("single", 1))], rounds=1)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["budget"]["x\nFORGED"] = 1
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    other = write_run("other", [PlannedCase(case=case_of("single", 1))], rounds=1, seed=1)
    machine = json.loads(other.machine.read_text(encoding="utf-8"))
    machine["identity"]["x\nFORGED"] = 1
    other.machine.write_text(json.dumps(machine), encoding="utf-8")
    third = write_run("third", [PlannedCase(case=case_of("single", 1))], rounds=1, seed=2)
    machine["identity"].pop("x\nFORGED")
    third.machine.write_text(json.dumps(machine), encoding="utf-8")
    (tmp_path / "x.toml").write_text('question = "q"\n[base]\n"a\\nFORGED" = 1\n', encoding="utf-8")
    saved = tmp_path / ".benchmarks" / machine_folder()
    saved.mkdir(parents=True)
    (saved / "0001_x\nFORGED.json").write_text("{}", encoding="utf-8")
    for words in (
        "report run",
        "sweep x.toml --dry-run",
        "baseline list",
        "baseline remove 7",
        "history .benchmarks",
        "history run 7",
        "compare other third",
        "merge other third --out merged",
        "sweep other",
    ):
        command(words.split())
        printed = "".join(capsys.readouterr())
        assert "FORGED" in printed, words
        assert not [line for line in printed.splitlines() if line.lstrip().startswith("FORGED")], words


@pytest.mark.parametrize("words", [["report", "run"], ["pack", "run"], ["history", "run", "run"]])
def test_no_line_begins_with_the_name_of_what_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run("run", [PlannedCase(case=case_of("single", 1))], rounds=1)
    os.mkfifo(run.cases / "x\nFORGED")
    command(words)
    lines = [line for text in capsys.readouterr() for line in text.splitlines()]
    assert [line for line in lines if line.lstrip().startswith("FORGED")] == []
    assert lines


OWNERS = {
    "escaping.py": "the owner",
    "text_safety.py": "the owner of what is clean",
    "analysis/table/frame.py": "the one that writes CSV",
}


def test_formats_are_escaped_in_one_place() -> None:
    """No other module writes CSV, or replaces what Markdown, CSV or LaTeX acts on."""
    root = Path(ddpbench.__file__).parent
    own_pages = {"cli/commands_page.py", "launch/settings_page.py"}  # of this package's own words
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name in OWNERS or name in own_pages:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            assert called != "to_csv", f"{name}:{node.lineno}: use csv_of"
            first = node.args[0] if node.args else None
            assert not (
                called == "replace"
                and isinstance(first, ast.Constant)
                and first.value in ("|", "<", "&", "`", "*")
            ), f"{name}:{node.lineno}: use ddpbench.escaping"
