"""A small malicious file costs neither gigabytes nor minutes."""

from __future__ import annotations

import ast
import json
import random
import re
import signal
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ddpbench
from ddpbench import naming
from ddpbench.analysis import summarize
from ddpbench.analysis.regression.saved import read_saved
from ddpbench.cli import run as command
from ddpbench.errors import IdentityError, RecordError, RequestError
from ddpbench.escaping import (
    escape_csv,
    escape_latex,
    escape_markdown,
    escape_markdown_code,
    escape_openmetrics,
    unescape_csv,
)
from ddpbench.launch.slurm.request import Request
from ddpbench.records import RunDir, pack
from ddpbench.records.archive import unpack
from ddpbench.records.plan import read_plan, repeated
from ddpbench.records.schema import check_digits
from ddpbench.report.rows import rows_of
from ddpbench.report.series import panels_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.claims import PlannedClaim
from ddpbench.spec.grouping import varied
from ddpbench.text_safety import clean, on_one_line, on_page
from tests.records.test_archive import write_archive
from tests.synthetic import case_of, write_plan, write_run

PATIENCE_S = 30
"""Seconds: far more than any of these takes, and far less than what grows with the square of a text's length."""


@contextmanager
def patience() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"not done within {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


LONG = 400_000
SHAPES = {
    "tabs": "a" + "\t" * LONG + "b",
    "lines": "a" + "\n" * LONG + "b",
    "spaces": "a" + " " * LONG + "b",
    "quotes": "a;" + '"' * LONG + "b",
    "apostrophes": "a;" + "'" * LONG + "b",
    "cells": "a" + ";\t'" * LONG + "b",
    "backquotes": " ".join("`" * number for number in range(1, 2_000)),
    "pairs of backquotes": "`a``" * LONG,
    "entities": "&#" + "a" * LONG,
    "ampersands": "&a" * LONG,
    "underscores": "_" * LONG,
    "brackets": "](" * LONG,
    "digits": "1" * LONG,
    "hyphens": "-" * LONG,
    "colours": "\x1b[" + "0;" * LONG,
    "escapes": "\x1b[0" * LONG,
    "words": "a" * LONG,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "shown",
    [
        clean,
        on_one_line,
        on_page,
        escape_csv,
        unescape_csv,
        escape_markdown,
        escape_markdown_code,
        escape_latex,
        escape_openmetrics,
    ],
    ids=lambda function: function.__name__,
)
def test_no_text_takes_long_to_be_shown(shape: str, shown: Callable[[str], str]) -> None:
    with patience():
        assert shown(SHAPES[shape])


PACKAGE = Path(ddpbench.__file__).parent
TEXT = 20_000
EVERYWHERE = (
    "a",
    "1",
    " ",
    "\n",
    "\t",
    '"',
    "'",
    ".",
    "-",
    "_",
    "[",
    "(",
    ";",
    "1.",
    "a.",
    "a ",
    " a",
    "a\n",
    "\n ",
)
SHORT = {
    "report/draw/slim.py": "matplotlib's own numbers",
    "launch/own_class/models.py": "names in a script that its user has asked about",
    "units.py": "texts of 64 characters at most",
}
"""Files whose patterns may take a time that grows with the square of a text's length, each with its texts."""


def patterns_of(path: Path) -> Iterator[tuple[int, re.Pattern[Any], set[str]]]:
    """Yield the line of each pattern in a file, the pattern, and the names of the methods that search with it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    used: dict[str, set[str]] = {}
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        used.setdefault(ast.unparse(call.func.value), set()).add(call.func.attr)
    named = {
        id(node.value): ast.unparse(node.targets[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
    }
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        if (
            ast.unparse(call.func.value) != "re"
            or not call.args
            or not isinstance(call.args[0], ast.Constant)
        ):
            continue
        is_compiled = call.func.attr == "compile"
        given = [one.value for one in call.keywords if one.arg == "flags"] + call.args[1:] * is_compiled
        flags = eval(ast.unparse(given[0])) if given else 0
        methods = used.get(named.get(id(call), ""), set()) if is_compiled else {call.func.attr}
        yield call.lineno, re.compile(call.args[0].value, flags), methods


class SlowError(Exception):
    """A pattern takes too long."""


@contextmanager
def within_processor_s(seconds: float) -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise SlowError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def takes_long(pattern: re.Pattern[Any], methods: set[str]) -> str:
    """Return what, repeated, makes a text in which the pattern takes long; empty if nothing is found."""
    is_bytes = isinstance(pattern.pattern, bytes)
    own = re.findall('[A-Za-z_:;#&@$"/ -]{2,}', pattern.pattern.decode() if is_bytes else pattern.pattern)
    for unit in (*EVERYWHERE, *dict.fromkeys(own)):
        text: Any = unit * (TEXT // len(unit)) + "\x01"
        text = text.encode() if is_bytes else text
        try:
            with within_processor_s(0.5):
                pattern.match(text)
                pattern.fullmatch(text)
                if methods - {"match", "fullmatch"}:
                    sum(1 for _ in pattern.finditer(text))
        except SlowError:
            return unit
    return ""


def test_a_slow_pattern_is_found() -> None:
    assert takes_long(re.compile(r"^\s+x", re.MULTILINE), {"search"}) == "\n"
    assert takes_long(re.compile(r"\s*[^.\n]*WORDS"), {"sub"}) == "a"
    assert takes_long(re.compile(r"^[ \t]+x", re.MULTILINE), {"search"}) == ""


def test_no_pattern_takes_long_on_a_long_text() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}": unit
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in SHORT
        for line, pattern, methods in patterns_of(path)
        if (unit := takes_long(pattern, methods))
    }
    assert found == {}


CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
"""A single pattern for code in Markdown, whose time grows with the square of a text's length."""


def test_code_between_backquotes_is_what_the_slow_pattern_finds() -> None:
    draw = random.Random(5)
    for _ in range(3_000):
        text = "".join(draw.choices("`` a", k=draw.randrange(24))).strip()
        code = "".join(found[0] for found in CODE_SPAN.finditer(text))
        plain = CODE_SPAN.sub("", text)
        shown = escape_markdown(text)
        assert shown.count("\\`") == plain.count("`"), text
        assert shown.count("`") == plain.count("`") + code.count("`"), text


@pytest.mark.parametrize("unit", [b"a", rb"\"", rb"a\\"])
def test_looking_for_long_numbers_takes_no_more_memory_than_the_record(unit: bytes) -> None:
    line = b'{"kind": "outcome", "error": "%s", "finished_ns": 1234567890123456789}' % (unit * 500_000)
    tracemalloc.start()
    try:
        check_digits(line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(line)
    with pytest.raises(ValueError, match="a whole number of 20 digits"):
        check_digits(line.replace(b"1234567890123456789", b"12345678901234567890"))
    check_digits(line.replace(b'a"', b'a 99999999999999999999"'))  # in a text


def test_an_archive_of_very_many_empty_files_is_refused_before_any_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three million of them make an archive of 1 GiB, but take 16 GiB and six million names on a disk."""
    import tarfile

    monkeypatch.setattr("ddpbench.records.archive._MOST_ON_DISK", 12_288 * 50)
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    names = [f"cases/x{number}/launch-00/launch.json" for number in range(51)]
    write_archive(run, [(tarfile.TarInfo(name), b"") for name in names])
    with pytest.raises(RecordError, match="would take more than 614,400 bytes on a disk"):
        unpack(run)
    write_archive(run, [(tarfile.TarInfo(name), b"") for name in names[:50]])
    monkeypatch.undo()
    unpack(run)
    assert len(list(run.cases.glob("*/*/*"))) == 50
    monkeypatch.setattr("ddpbench.records.archive._MOST_ON_DISK", 12_288 * 50 - 1)
    with pytest.raises(RequestError, match="too many to pack"):
        pack(run)


def test_a_saved_benchmark_of_very_many_failed_launches_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2, rounds=3, blocks=1, steps=2)
    saved = tmp_path / "saved.json"
    assert command(["export", str(run.path), "--format", "pytest-benchmark", "--out", str(saved)]) == 0
    data = json.loads(saved.read_text(encoding="utf-8"))
    assert len(data["benchmarks"]) == 2
    for one in data["benchmarks"]:
        one["extra_info"]["launches_failed"] = 60_000
    saved.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(IdentityError, match="launches_failed: 120,000 in total; must be 100,000 at"):
        read_saved(saved)


class Counted(str):
    """An id that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_a_case_that_very_many_others_come_before_is_found_twice() -> None:
    many = 1_000
    ids = [Counted(f"{number:012x}") for number in (*range(many), many - 1)]
    Counted.compared = 0
    assert repeated(ids) == f"{many - 1:012x}"
    assert Counted.compared < 10 * many
    assert repeated(ids[:-1]) is None


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the number of cases of each call of `grouping.differing`."""
    counts: list[int] = []
    differing = grouping.differing

    def counted(cases: Iterable[Case], names: Iterable[str]) -> list[str]:
        every = list(cases)
        counts.append(len(every))
        return differing(every, names)

    for module in (grouping, naming):
        monkeypatch.setattr(module, "differing", counted)
    return counts


def test_the_names_of_very_many_cases_take_one_look_at_all_of_them(
    tmp_path: Path, looked_at: list[int]
) -> None:
    many = 300
    run = RunDir(tmp_path / "run")
    write_plan(run, [case_of("single", 1, seed=seed) for seed in range(many)])
    panels = panels_of(rows_of(summarize(run)))
    assert len({panel.name for panel in panels}) == len(panels) == many
    assert sum(looked_at) < 10 * many


def test_a_claim_of_very_many_pairs_takes_one_look_at_all_of_them(
    tmp_path: Path, looked_at: list[int]
) -> None:
    run = RunDir(tmp_path / "run")
    cases = [case_of("ddp", world, seed=seed) for seed in range(20) for world in (2, 4)]
    many = [(a.case_id, b.case_id) for a in cases for b in cases if a != b]
    claim = PlannedClaim(
        says="all is well", source="", kind="faster", margin=0.0, of="step time", pairs=tuple(many)
    )
    write_plan(run, cases, claims=[claim])
    looked_at.clear()
    (decided,) = summarize(run).conclusions.claims
    assert len({held.place for held in decided.pairs}) == len(many)
    assert 0 < sum(looked_at) < 10 * len(many)


@pytest.mark.parametrize("field", ["options_json", "workload_options_json", "env_json"])
def test_a_plan_of_very_many_options_is_refused(tmp_path: Path, field: str) -> None:
    """Each may become a column, and is searched for in every case."""

    def planned(*counts: int) -> RunDir:
        run = RunDir(tmp_path / "-".join(map(str, counts)))
        tables = [
            {f"K{index}_{number}": "1" for number in range(count)} for index, count in enumerate(counts)
        ]
        write_plan(run, [case_of("ddp", **{field: json.dumps(table)}) for table in tables])
        return run

    assert len(read_plan(planned(600, 400)).cases) == 2
    with pytest.raises(IdentityError, match=r"1,001 different .*; must be 1,000 at most"):
        read_plan(planned(600, 401))
    with pytest.raises(IdentityError, match=r"has 1,001 keys; must be 1,000 at most"):
        read_plan(planned(1_001))


LINKED: dict[str, Any] = {"fabric": "10 Gbit/s", "compute": "synthetic"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": 2**53}, "nodes: must be a whole number, 1 to 4,096"),
        ({"nodes": 129, **LINKED}, "a network of 129 nodes; must be 128 at most on one machine"),
        ({"ranks_per_node": 4097}, "ranks_per_node: .* 1 to 4,096"),
        ({"threads_per_rank": 2**53}, "threads_per_rank: .* 1 to 4,096"),
        ({"loader_workers": 129}, "loader_workers: .* 0 to 128"),
        ({"local_batch": 10**9 + 1}, "local_batch: .* 1 to 1,000,000,000"),
        ({"global_batch": 2**53}, "global_batch: .* 1 to 4,096,000,000,000"),
        ({"replicate": 1000}, "replicate: .* 0 to 999"),
        ({"agents": 2**53}, "agents: .* 1 to 4,096"),
        ({"snapshot_every": 2**53}, "snapshot_every: .* 1 to 100,000"),
        ({"dilation": 1e8}, "dilation: must be 1 to 1,000"),
        ({"collective_timeout": 1e8}, "collective_timeout: .* 1 s to 1 day"),
        ({"collective_timeout": "10 s"}, "collective_timeout: .* 1 s to 1 day"),
        ({"fabric": "10 Gbit/s; 129 racks"}, "racks out of range: must be a whole number, 1 to 128"),
        ({"fabric": f"10 Gbit/s; {10**400} racks"}, "racks out of range: must be a whole number, 1 to 128"),
        ({"fabric": "10 Gbit/s; latency 1e9 µs"}, "a latency out of range: must be from 0 s and below 10 s"),
        ({"fabric": "10 Gbit/s; loss 100 %"}, "losses out of range: must be from 0 and below 1"),
    ],
    ids=str,
)
def test_a_plan_of_numbers_that_no_sweep_has_is_refused(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    """Nodes are visited one by one, and a step is divided by the dilation."""
    usual = {"nodes": 2, "dilation": 1000.0, "global_batch": 10**9, **LINKED}
    run = RunDir(tmp_path / "run")
    write_plan(run, [case_of("ddp", 2, **usual)])
    assert len(read_plan(run).cases) == 1
    write_plan(run, [case_of("ddp", 2, **fields)])
    with pytest.raises(IdentityError, match=said):
        read_plan(run)


def test_options_are_read_once_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        case_of("ddp", options_json=json.dumps({f"k{key}": key + case for key in range(50)}))
        for case in range(4)
    ]
    read: list[str] = []
    loads = json.loads
    monkeypatch.setattr("ddpbench.spec.case.json.loads", lambda text: read.append(text) or loads(text))
    varied(cases, "options_json")
    assert len(read) == len(cases)


def test_a_case_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, rounds=3, blocks=1, steps=2)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["cases"].append(plan["cases"][-1])
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(IdentityError, match=f"it has the case {plan['cases'][-1]['case_id']} twice"):
        read_plan(run)


def test_a_folder_of_many_variables_is_refused_at_once() -> None:
    with patience(), pytest.raises(RequestError, match="give an absolute path on the nodes"):
        Request(sizes=(1,), ranks_per_node=1, local="/" + "$aaa" * 1_000 + "!")
    assert Request(sizes=(1,), ranks_per_node=1, local="/scratch/$USER/${JOB}_x-1.d$a").local
