"""`ddpbench init --write` keeps every byte of a script's lines, with any line ending."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ddpbench.cli import run
from ddpbench.launch.own_class import can_guard, inserted, read_script

CLASS = "class Measured:\n    batch = 1\n"
GUARD = 'if __name__ == "__main__":\n    print(x)\n'


def put_in(tmp_path: Path, content: bytes) -> bytes:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    script = read_script(path)
    made = script.encoded(inserted(script, CLASS))
    ast.parse(made)
    return made


@pytest.mark.parametrize(
    "head",
    [
        b"# one\x0c two\nx = 1\n",
        "# one\u2028two \x85 three \x1c four\nx = 1\n".encode(),
        b"\x0c\nx = 1\n",
        b"TEXT = '''a\x0cb\x0bc'''\n",
        b"x = 1\r\ny = 2\nz = 3\r\n",
        b"x = 1\ny = 2\r\n",
        b"x = 1\ry = 2\r",
        "# coding: latin-1\nx = 'caf\xe9 \x85'\n".encode("latin-1"),
        b"\xef\xbb\xbfx = 1\n",
    ],
)
@pytest.mark.parametrize("tail", [GUARD.encode(), GUARD.rstrip().encode(), b""])
def test_every_line_of_the_script_stays_as_it_is(tmp_path: Path, head: bytes, tail: bytes) -> None:
    made = put_in(tmp_path, head + tail)
    assert made.startswith(head)
    assert made.endswith(tail)
    line_end = head[len(head.rstrip(b"\r\n")) :]
    wanted = line_end.join([b"", b"", *CLASS.encode().splitlines(), b""])
    assert made == head + wanted + (2 * line_end + tail if tail else b"")


def test_a_last_line_without_an_end_gets_one_before_the_class(tmp_path: Path) -> None:
    assert put_in(tmp_path, b"y = 0\r\nx = 1").startswith(b"y = 0\r\nx = 1\r\n\r\n\r\nclass Measured:\r\n")


def test_what_is_put_below_a_guard_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"x = 1\r\nfor _ in range(2):\r\n    x += 1  # \x1c \xc2\x85\r\n")
    script = read_script(path)
    ends = script.tree.body[1:]
    assert can_guard(script, ends)
    assert script.encoded(inserted(script, CLASS, ends)).endswith(
        b'\r\n\r\nif __name__ == "__main__":\r\n    for _ in range(2):\r\n        x += 1  # \x1c \xc2\x85\r\n'
    )


def test_what_the_scripts_encoding_lacks_is_an_escape(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    script = read_script(path)
    made = script.encoded(inserted(script, "class Measured:\n    sign = '\u20ac'\n"))
    assert b"\xe9" in made
    assert "\u20ac" in ast.unparse(ast.parse(made))


SCRIPT = """import torch
from torch import nn

data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if __name__ == "__main__":
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_a_class_is_tried_whatever_characters_the_scripts_path_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / '\U0001f680 it\'s "new"'
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    code = run(["init", str(folder / "train.py")])
    assert (code, "tried one step" in capsys.readouterr().err) == (0, True)


@pytest.mark.parametrize(("count", "said"), [(1, "line 2"), (3, "lines 2 to 4")])
def test_the_lines_that_go_below_a_guard_are_named(
    count: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text("def main(): [x.backward() for x in range(2)]\n" + "main()\n" * count)
    run(["init", str(path)])
    assert f"--write inserts it, and puts {said} below a guard" in capsys.readouterr().err
