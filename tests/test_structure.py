"""The shape of the code: no module imports itself in a cycle, and no function or class is too long to read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from ddpbench.spec import Case
from tests.folders import PACKAGE, modules_of

ROOT = Path(__file__).parents[1]
MOST_LINES = 60
MOST_METHODS = 15
MOST_CLASS_LINES = 200
"""Lines of code without texts, comments and empty lines."""
LARGE = frozenset(
    {
        "analysis/table/result.py:CaseResult",  # a property for each column
        "launch/own_class/dropped.py:_Collected",
        "launch/own_class/effects.py:Effects",
        "launch/own_class/loop_methods.py:LoopMethods",
        "launch/own_class/reading.py:Reading",
        "launch/own_class/rendering.py:_Pass",
        "launch/own_class/tracing.py:Tracer",
        "launch/own_class/writing.py:_Writer",
        "records/rundir.py:RunDir",  # paths
        "spec/case.py:Case",  # data
        "worker/mpi/process_group.py:MpiGroup",  # a process group has a method for each collective
    }
)
"""Larger classes, with the reason; none may be added."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def is_data(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether it only declares: one value is more than half of it, or it adds arguments to a parser."""
    declares = function.name == "add_parser"
    return declares or any(
        isinstance(node, ast.Return) and 2 * lines_of(node) > lines_of(function) for node in function.body
    )


def too_long(text: str) -> list[str]:
    found = functions(ast.parse(text))
    return [each.name for each in found if lines_of(each) > MOST_LINES and not is_data(each)]


def too_large(text: str) -> list[str]:
    """Return the classes with too many methods, not counting Python's own, or too many lines of code."""
    return [
        each.name
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.ClassDef)
        and (methods_of(each) > MOST_METHODS or code_lines_of(each, text.splitlines()) > MOST_CLASS_LINES)
    ]


def methods_of(of: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef) and not each.name.startswith("__") for each in of.body)


def code_lines_of(of: ast.ClassDef, lines: Sequence[str]) -> int:
    texts = {
        number
        for node in ast.walk(of)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.lineno + lines_of(node))
    }
    own = range(of.lineno, of.lineno + lines_of(of))
    code = [lines[number - 1].strip() for number in own if number not in texts]
    return sum(bool(line) and not line.startswith("#") for line in code)


def circle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_function_is_longer_than_a_screen() -> None:
    paths = sorted((ROOT / "ddpbench").rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix(): too_long(path.read_text(encoding="utf-8")) for path in paths}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    ("body", "long"),
    [("    pass\n" * 60, True), ("    pass\n" * 59, False), ("    return [" + "0,\n" * 70 + "]", False)],
)
def test_a_long_function_is_found_unless_it_is_data(body: str, long: bool) -> None:
    assert bool(too_long(f"def work():\n{body}")) is long


def test_no_class_is_larger_than_what_fits_in_a_head() -> None:
    package = ROOT / "ddpbench"
    found = {
        f"{path.relative_to(package).as_posix()}:{name}"
        for path in package.rglob("*.py")
        for name in too_large(path.read_text(encoding="utf-8"))
    }
    assert found == LARGE


@pytest.mark.parametrize(
    ("body", "large"),
    [
        ("    def f(self): ...\n" * 16, True),
        ('    def f(self): ...\n    # why\n\n    "text"\n' * 15, False),
        ("    def __len__(self): ...\n" * 16, False),
        ("    x = 0\n" * 200, True),
        ('    x = 0\n    # why\n\n    "text"\n' * 199, False),
    ],
)
def test_a_large_class_is_found(body: str, large: bool) -> None:
    assert bool(too_large(f"class Work:\n{body}")) is large


def test_no_module_imports_itself_in_a_circle() -> None:
    """Not for its types either, which the import contracts leave out."""
    graph = grimp.build_graph("ddpbench")
    assert not circle({each: graph.find_modules_directly_imported_by(each) for each in graph.modules})


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b", "c"}, "b": {"c"}})


PROSE = ("report", "analysis/findings", "analysis/overview", "analysis/scaling")
"""Folders with code that composes sentences; in features, folders of the same names."""
FORMATS = (
    *(f"report/draw/{name}.py" for name in ("canvas", "marks", "png", "slide", "slim", "texts", "theme")),
    "report/embedded.py",
    "report/templates.py",
)
"""Files in these that write formats: lines as wide as a picture, SVG, PNG, HTML."""
EDITS = {
    *(
        "capitalize",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rpartition",
        "rsplit",
        "split",
        "sub",
    ),
    *("title", "translate"),
}
CUTS = {"lstrip", "rstrip", "strip"}


def edits(text: str) -> list[str]:
    """Return the calls that remove words from a text, or insert others, and the slices that change its case."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, on = node.func.attr, node.func.value
            sliced = isinstance(on, ast.Subscript) and isinstance(on.slice, ast.Slice)
            cased = called in ("lower", "upper") and sliced
            words = called == "split" and not node.args and not node.keywords
            if (called in EDITS and not words) or cased or (called in CUTS and (node.args or node.keywords)):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_a_report_edits_no_finished_prose() -> None:
    """A sentence is composed once, by code that knows its context: `ddpbench/analysis/sentences.py`."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in modules_of(*PROSE)}
    assert paths.keys() >= set(FORMATS)
    found = {name: edits(path.read_text("utf-8")) for name, path in paths.items() if name not in FORMATS}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    "edit",
    [
        're.sub(rf", {word}", "", caption)',
        'WORD.sub("", caption)',
        'caption.replace("+", "")',
        'caption.partition(". ")[2]',
        'name.removesuffix(" scaling")',
        'caption.lstrip(".,; ")',
        "f'{text[:1].lower()}{text[1:]}'",
    ],
)
def test_an_edit_of_prose_is_found(edit: str) -> None:
    assert edits(f"text = {edit}")
    assert not edits("text = ', '.join(words).strip()\ndataclass = replace(picture, caption=text)")


KEYED = {
    "FACETS": "what sentences call a field of a case",
    "MTBF_S": "times between failures, by their names",
    "allocation.machine": "machine.json",
    "axes.spines": "matplotlib's",
    "context": "machine.json",
    "identity": "machine.json",
    "declared": "CSS",
    "mpl.rcParams": "matplotlib's",
    "node.attrib": "XML's",
    "root.attrib": "XML's",
    "side.identity": "machine.json",
    "side.machine": "machine.json",
    "style.PHASES": "colours of the parts of a step",
    "style.SETTINGS": "matplotlib's",
}
"""Objects that the core's `report/` and features' may look up by a name, and what each of them is: none is a result."""


def keyed(text: str) -> set[str]:
    """Return what is looked up by a text in the code: `x` of `x["a"]`, `x.get("a")` and `getattr(x, "a")`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=str()) | ast.JoinedStr(), ctx=ast.Load()):
                found.add(ast.unparse(of))
            case (
                ast.Call(
                    func=ast.Attribute(value=of, attr="get" | "pop"),
                    args=[ast.Constant(value=str()) | ast.JoinedStr(), *_],
                )
                | ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=str()), *_])
            ):
                found.add(ast.unparse(of))
    return found


def framed(text: str) -> bool:
    """Return whether rows are taken from a table, or pandas is imported to look at them."""
    ways = {"to_dict", "itertuples", "iterrows", "loc", "iloc"}
    return any(isinstance(node, ast.Attribute) and node.attr in ways for node in ast.walk(ast.parse(text)))


def test_the_report_reads_results_as_attributes() -> None:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in modules_of("report")
    }
    found = {path: keyed(text) for path, text in texts.items()}
    assert not {path: names - KEYED.keys() for path, names in found.items() if names - KEYED.keys()}
    assert set.union(*found.values()) == KEYED.keys()
    assert not [path for path, text in texts.items() if framed(text)]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('record["startup_s"]', {"record"}),
        ('row[f"{name}_s"]', {"row"}),
        ('summary.cases["status"].notna()', {"summary.cases"}),
        ('(table or {}).get("mfu", 0)', {"table or {}"}),
        ('values.pop("efficiency")', {"values"}),
        ('getattr(row, "speedup")', {"row"}),
        ("by_id[row.case_id].speedup", set()),
        ("names.get(name)", set()),
        ('files["page"] = text', set()),
    ],
)
def test_a_look_up_by_name_is_found(line: str, names: set[str]) -> None:
    assert keyed(line) == names


@pytest.mark.parametrize("way", ["to_dict('records')", "itertuples()", "iterrows()", "loc[0]"])
def test_a_table_that_is_taken_apart_is_found(way: str) -> None:
    assert framed(f"rows = [row for row in summary.cases.{way}]")
    assert not framed("csv_of(summary.cases)")


SETTINGS = frozenset(one.name for one in fields(Case)) | {
    "env",
    "options",
    "strategy_name",
    "workload_options",
}
NAMED = {
    "launch/devices.py": "a reason why a case cannot run, with the settings to change",
    "launch/external.py": "a reason likewise",
    "launch/profiling.py": "the name of a file",
    "worker/rank/rank.py": "what a user's own code lacks",
}
"""Modules that write several settings of a case in one text, with what each of these texts is: none is a name."""
OWNERS = ("collectives", "naming.py", "records", "spec", "strategies", "workloads")
"""Names are made in `naming.py`, from declarations in the layers below."""


RAW = {"env_json", "options_json", "workload_options_json", "workload_with_options"}
"""Fields that hold several settings as JSON, which no text shows."""


def settings_in(text: ast.AST) -> dict[str, set[str]]:
    """Return the settings that are read from each case."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(text):
        if isinstance(node, ast.Attribute) and node.attr in SETTINGS:
            of = ast.unparse(node.value)
            if of.rpartition(".")[2] == "case":
                found.setdefault(of, set()).add(node.attr)
    return found


def names_made(text: str) -> list[str]:
    """Return what names a case: texts of several settings or all options, its label, its strategy's name."""
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr() | ast.Call(func=ast.Attribute(attr="join"), args=[ast.List()]):
                if any(len(names) > 1 for names in settings_in(node).values()):
                    found.append(ast.unparse(node))
            case ast.Attribute(attr="label", value=ast.Attribute(attr="case") | ast.Name(id="case") as of):
                # a case's history has a label, too
                if isinstance(of, ast.Attribute) or re.search(r"import .*\bCase\b", text):
                    found.append(ast.unparse(node))
            case ast.Attribute(attr="spoken" | "display", value=ast.Call()):
                found.append(ast.unparse(node))
            case ast.FormattedValue(value=ast.Attribute(attr=name)) if name in RAW:
                found.append(ast.unparse(node))
            case ast.GeneratorExp() | ast.ListComp() if any(
                names & {"env", "options", "workload_options"} for names in settings_in(node).values()
            ):
                found += [ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.JoinedStr)]
            case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Name(), *_]) if isinstance(of, ast.Name):
                if of.id == "case" and is_formatted(node, tree):
                    found.append(ast.unparse(node))
    return found


def is_formatted(node: ast.AST, tree: ast.AST) -> bool:
    return any(node in ast.walk(text) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr))


def test_cases_are_named_in_one_place() -> None:
    """Otherwise one page calls a case `decay=0.05` and the next `decay of 0.05`."""
    package = ROOT / "ddpbench"
    paths = {path.relative_to(package): path for path in package.rglob("*.py")}
    found = {
        path.as_posix(): names_made(file.read_text("utf-8"))
        for path, file in paths.items()
        if path.parts[0] not in OWNERS
    }
    assert not {path: names for path, names in found.items() if names and path not in NAMED}
    assert {path for path, names in found.items() if names} == NAMED.keys()


@pytest.mark.parametrize(
    "name",
    [
        'f"{case.strategy}, {case.world_size} ranks"',
        "f\"{run.case.workload} at {counted(run.case.world_size, 'rank')}\"",
        'f"{case.nodes} x {case.ranks_per_node}"',
        '", ".join([row.case.strategy_name, str(row.case.bucket_cap_mb)])',
        '", ".join(f"{key}={value}" for key, value in run.case.workload_options.items())',
        '[f"{key} of {value}" for key, value in case.options.items()]',
        'f"{name} = {getattr(case, name)}"',
        "entry.case.label",
        "f'{entry.case.workload_with_options}: {why}'",
        "traits_of(run.case).spoken",
    ],
)
def test_another_owner_of_names_is_found(name: str) -> None:
    assert names_made(f"text = {name}")
    assert not names_made(
        "text = f'{names.full(case)} took {seconds} s at {ranks_of(case)}, {case.workload}'"
    )


SHARED_NAMES = {"Master": "an algorithm, and the strategy that is named after it"}
"""Public classes and type aliases whose name another module may have, too, each with the reason."""


def public_types(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes and type aliases that a module defines, without its type variables."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign) and "TypeVar(" not in ast.unparse(node.value):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_no_two_modules_define_a_public_type_of_one_name() -> None:
    package = Path(__file__).parents[1] / "ddpbench"
    places: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for name in public_types(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(name, set()).add(str(path.relative_to(package)))
    assert len(places) > 500
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert set(twice) == set(SHARED_NAMES), twice


def test_public_types_are_classes_and_aliases() -> None:
    text = 'class Pair: ...\nclass _Own: ...\nKind = Literal["a"]\nT = TypeVar("T")\nMOST = 3\n'
    assert list(public_types(ast.parse(text))) == ["Pair", "Kind"]


def unfilled(source: str) -> list[str]:
    """Return the placeholders that strings show as they are, such as `"{row.name}"` without an `f`."""
    return [
        found[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in re.finditer(r"\{[a-z_]\w*[.\[(][^{}]*\}", node.value)
    ]


def test_the_report_fills_in_every_placeholder() -> None:
    report = PACKAGE / "report"
    found = {path.name: unfilled(path.read_text(encoding="utf-8")) for path in report.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {}


def test_a_placeholder_without_an_f_is_found() -> None:
    source = """text = ("for {rows[0].name}: " f"{rows[1].name}", "{row.name}")"""
    assert unfilled(source) == ["{row.name}", "{rows[0].name}"]
