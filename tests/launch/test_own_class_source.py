"""`ddpbench init` prints source that parses to the intended statements."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from ddpbench.launch.own_class import read_script, reading, writing, written_class
from ddpbench.launch.own_class.source import MethodLines, source_of

LONG = ", ".join(f"argument_{number}={number}" for number in range(8))
CALLEES = [
    "torch.nn.functional.mse_loss",
    "make(1)",
    "table['a'].b",
    "(lambda *given, **more: given)",
    "(one if wide else other)",
    "(one or other)",
    "(not one)",
    "(one + other)",
    "(-one)",
    "(one < other)",
    "(made := one)",
    "(await one)",
    "[*several][0]",
    "{'a': one}['a']",
    "(one, other)[0]",
    "f'{one}'.format",
]
FILLED = [
    "x, *y",
    "(x for x in y)",
    "*(one or other), **(one or {})",
    "lambda x: (x, x)",
    "(made := one)",
    "(one, other)",
    "'it\\'s', 'a\"b', 'a\\nb', b'c', f'{one!r:>{wide}}'",
]


def meant(node: ast.stmt, lines: list[str]) -> bool:
    """Return whether the lines of a method parse to this statement."""
    text = "\n".join(["class Measured:", *MethodLines("step", lines=lines).text])
    read = ast.parse(text).body[0]
    assert isinstance(read, ast.ClassDef)
    function = read.body[0]
    assert isinstance(function, ast.FunctionDef)
    return ast.unparse(function.body) == ast.unparse(node)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["return ", "x = ", "x, y = z = ", ""])
@pytest.mark.parametrize("callee", CALLEES)
def test_a_long_call_keeps_the_parentheses_of_what_it_calls(callee: str, head: str) -> None:
    tree = ast.parse(f"async def f():\n    {head}{callee}({LONG})").body[0]
    assert isinstance(tree, ast.AsyncFunctionDef)
    node = tree.body[0]
    text = source_of(node)
    assert max(map(len, text.splitlines())) <= 100, "a line each for its arguments"
    assert ast.unparse(ast.parse(text)) == ast.unparse(node)


@pytest.mark.parametrize("given", FILLED)
@pytest.mark.parametrize("callee", CALLEES[:6])
def test_arguments_of_a_long_call_read_as_they_were(callee: str, given: str) -> None:
    for more in ("", f", {LONG}") if not given.startswith("(x for") else ("",):
        name = "a_long_name" * (1 if more else 9)
        node = ast.parse(f"{name} = {callee}({given}{more})").body[0]
        text = source_of(node)
        assert ast.unparse(ast.parse(text)) == ast.unparse(node), text
        assert meant(node, text.splitlines())


def recording(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ast.AST, str]]:
    """Return a list to which each node is added that is printed in a class, with its source."""
    found: list[tuple[ast.AST, str]] = []

    def recorded(node: ast.AST) -> str:
        found.append((node, source_of(node)))
        return found[-1][1]

    monkeypatch.setattr(reading, "source_of", recorded)
    monkeypatch.setattr(writing, "source_of", recorded)
    return found


def check_meant(rendered: list[tuple[ast.AST, str]]) -> None:
    """Check that printed nodes read as what was meant."""
    for node, text in rendered:
        statement = node if isinstance(node, ast.stmt) else ast.Expr(node)  # type: ignore[arg-type]
        assert meant(statement, text.splitlines()), text


@pytest.mark.parametrize(
    ("loss", "collate"),
    [
        ("(F.smooth_l1_loss if x.abs().max() > 3.5 else F.mse_loss)(model(x).squeeze(1), y.to(x.dtype))", ""),
        (
            "F.mse_loss(model(x).squeeze(1), y)",
            ", collate_fn=lambda b: (torch.stack([p for p, _ in b]) * 2, torch.tensor([float(q) for _, q in b]))",
        ),
    ],
)
def test_a_function_that_is_chosen_or_made_in_place_is_called(
    loss: str, collate: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    source = f"""
        import torch
        import torch.nn.functional as F
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        X = torch.randn(64, 4)

        def main():
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in DataLoader(TensorDataset(X, X.sum(1)), batch_size=8{collate}):
                loss = {loss}
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        if __name__ == "__main__":
            main()
        """
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    made = written_class(read_script(path))
    returned = [
        each
        for each in ast.walk(ast.parse(made.text))
        if isinstance(each, ast.Return) and isinstance(each.value, ast.IfExp | ast.Lambda)
    ]
    assert not returned, made.text
