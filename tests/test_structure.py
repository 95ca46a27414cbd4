"""The shape of the code: no module imports itself in a circle, and no function is longer than a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
MOST_LINES = 60


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


def test_no_module_imports_itself_in_a_circle() -> None:
    """Not for its types either, which the import contracts leave out."""
    graph = grimp.build_graph("ddpbench")
    assert not circle({each: graph.find_modules_directly_imported_by(each) for each in graph.modules})


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b", "c"}, "b": {"c"}})
