"""Training scripts of common shapes with lines deleted, swapped, renamed or moved into functions, by name."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

SCRIPTS = {path.stem: path for path in sorted((Path(__file__).parent / "scripts").glob("*.py"))}


def _blocks(tree: ast.Module) -> list[list[ast.stmt]]:
    return [
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse")
        if isinstance(block := getattr(node, name, None), list) and block and isinstance(block[0], ast.stmt)
    ]


def _deleted(tree: ast.Module, chance: random.Random) -> None:
    block = chance.choice([each for each in _blocks(tree) if len(each) > 1])
    del block[chance.randrange(len(block))]


def _swapped(tree: ast.Module, chance: random.Random) -> None:
    block = chance.choice([each for each in _blocks(tree) if len(each) > 1])
    place = chance.randrange(len(block) - 1)
    block[place], block[place + 1] = block[place + 1], block[place]


def _renamed(tree: ast.Module, chance: random.Random) -> None:
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    chance.choice(names).id = chance.choice(
        [*{each.id for each in names}, "nowhere", "model", "batch", "loss"]
    )


def _renamed_everywhere(tree: ast.Module, chance: random.Random) -> None:
    names = sorted({each.id for each in ast.walk(tree) if isinstance(each, ast.Name)})
    old, new = (
        chance.choice(names),
        chance.choice(["batch", "model", "optimizer", "self", "renamed", "backward", "step"]),
    )
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and each.id == old:
            each.id = new
        elif isinstance(each, ast.arg) and each.arg == old:
            each.arg = new
        elif isinstance(each, ast.FunctionDef) and each.name == old:
            each.name = new


def _wrapped(tree: ast.Module, chance: random.Random) -> None:
    block = chance.choice(_blocks(tree))
    first = chance.randrange(len(block))
    last = chance.randrange(first, len(block)) + 1
    inner = ast.parse("def wrapped():\n    pass\nwrapped()").body
    inner[0].body = block[first:last]  # type: ignore[attr-defined]
    block[first:last] = inner


def _under_a_condition(tree: ast.Module, chance: random.Random) -> None:
    block = chance.choice(_blocks(tree))
    place = chance.randrange(len(block))
    made = ast.parse(
        chance.choice(["if unknown:\n    pass", "while True:\n    pass", "with open(0):\n    pass"])
    ).body[0]
    made.body = [block[place]]  # type: ignore[attr-defined]
    block[place] = made


def _replaced(tree: ast.Module, chance: random.Random) -> None:
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    call = chance.choice(calls)
    what = chance.randrange(4)
    if what == 0 and call.args:
        call.args.pop()
    elif what == 1:
        call.func = ast.Name("anything", ast.Load())
    elif what == 2:
        call.args.insert(0, ast.Starred(ast.Name("given", ast.Load()), ast.Load()))
    else:
        call.keywords.append(ast.keyword(None, ast.Name("more", ast.Load())))


MUTATIONS = [_deleted, _swapped, _renamed, _renamed_everywhere, _wrapped, _under_a_condition, _replaced]


def mutant(name: str, seed: int) -> tuple[str, str] | None:
    """Return the changes made to a script, and its source; None if that is not valid Python."""
    chance = random.Random(f"{name}-{seed}")
    tree = ast.parse(SCRIPTS[name].read_text(encoding="utf-8"))
    done = []
    for _ in range(chance.randint(1, 3)):
        mutation = chance.choice(MUTATIONS)
        done.append(mutation.__name__)
        mutation(tree, chance)
    try:
        source = ast.unparse(ast.fix_missing_locations(tree))
        compile(source, name, "exec")
    except (SyntaxError, ValueError):
        return None
    return f"{seed} {' '.join(done)}", source


def mutants(name: str, count: int) -> Iterator[tuple[str, str]]:
    """Yield the changes and the source of a script's first mutants."""
    yield from filter(None, (mutant(name, seed) for seed in range(count)))
