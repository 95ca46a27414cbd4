"""Write the source text of the generated class: statements, values and methods."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpbench.launch.own_class.bindings import Path
from ddpbench.launch.own_class.trees import walk

_WIDTH = 100


@dataclass
class MethodLines:
    """The source lines of a method, or the name of a function that becomes the method (`same_as`)."""

    name: str
    parameters: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    same_as: str = ""
    problems: list[str] = field(default_factory=list)
    """A sentence for each error in the lines."""

    @property
    def is_open(self) -> bool:
        """True if the method has a line that the user must fill in."""
        return any(line.startswith("...") or " = ...  #" in line for line in self.lines)

    @property
    def text(self) -> list[str]:
        if self.same_as:
            return [f"    {self.name} = {self.same_as}"]
        head = f"    def {self.name}({', '.join(('self', *self.parameters))}):"
        return [head, *(f"        {line}".rstrip() for line in self.lines)]


def name_of(name: str) -> ast.expr:
    """Return an expression that reads a name."""
    return ast.Name(name, ast.Load())


def comment_of(sentence: str) -> list[str]:
    """Return a sentence as lines of a comment, indented for the body of a class."""
    return textwrap.wrap(sentence, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")


def at_path(node: ast.expr, path: Path) -> ast.expr:
    """Return an expression that reads the element of a value at these indices, such as `made[0][1]`."""
    for index in path:
        node = ast.Subscript(node, ast.Constant(index), ast.Load())
    return node


def source_of(node: ast.AST) -> str:
    """Return a node's source, with strings in double quotes unless they contain quotes or escapes."""
    text = _quoted(_unparsed(ast.fix_missing_locations(node)))
    plain = ast.unparse(node)
    return text if _read_again(text) == plain else plain


def _read_again(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:
        return ""


def _quoted(text: str) -> str:
    """Put strings in double quotes, unless they contain quotes or escapes."""
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token in reversed(tokens):
        (row, start), (_, end) = token.start, token.end
        plain = token.type == tokenize.STRING and token.string.startswith("'")
        if plain and not set('"\\') & set(token.string) and token.start[0] == token.end[0]:
            line = lines[row - 1]
            lines[row - 1] = f'{line[:start]}"{token.string[1:-1]}"{line[end:]}'
    return "".join(lines)


def _unparsed(node: ast.AST) -> str:
    if not isinstance(node, ast.Return | ast.Assign | ast.Expr) or node.value is None:
        return ast.unparse(node)
    value = ast.unparse(node.value)
    head = ast.unparse(node).removesuffix(value)
    if isinstance(node.value, ast.Tuple) and node.value.elts and not isinstance(node, ast.Expr):
        return head + value.removeprefix("(").removesuffix(")")
    if isinstance(node.value, ast.Call) and len(head) + len(value) > _WIDTH:
        arguments = [ast.unparse(each) for each in [*node.value.args, *node.value.keywords]]
        inner = "".join(f"    {each},\n" for each in arguments)
        called = ast.unparse(ast.Call(node.value.func, [], [])).removesuffix(
            ")"
        )  # `(a if b else c)(` keeps its parentheses
        return f"{head}{called}\n{inner})"
    return head + value


def in_order(made: Mapping[str, list[ast.stmt]]) -> list[ast.stmt]:
    """Return the statements that assign these names, each after the names that it depends on."""
    found: dict[str, list[ast.stmt]] = {}

    def take(name: str, around: frozenset[str]) -> None:
        reads = {each.id for node in made[name] for each in walk(node) if isinstance(each, ast.Name)}
        for other in made:
            if other in reads - around - {name} and other not in found:
                take(other, around | {name})
        found.setdefault(name, made[name])

    for name in made:
        take(name, frozenset())
    return [each for statements in found.values() for each in statements]


def folded(made: list[ast.stmt]) -> list[ast.stmt]:
    """Replace `loss = x; return loss` at the end of a method with `return x`."""
    if len(made) < 2:
        return made
    before, end = made[-2], made[-1]
    if (
        isinstance(end, ast.Return)
        and isinstance(before, ast.Assign)
        and len(before.targets) == 1
        and isinstance(before.targets[0], ast.Name)
        and end.value is not None
    ):
        name = before.targets[0].id
        uses = [each for each in walk(end.value) if isinstance(each, ast.Name) and each.id == name]
        if len(uses) == 1 and end.value is uses[0]:
            return [*made[:-2], ast.Return(before.value)]
    return made
