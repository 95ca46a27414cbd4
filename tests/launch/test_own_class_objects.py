"""`ddpbench init` follows the changes that methods make to their object, under any name of its parameter."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(64, 6)

class Temperature:
    def __init__(this, start=1.0):
        this.value = start

    def lower(this):
        this.value *= 0.9

    def words(this):
        return f"{this.value}"

class Net(nn.Module):
    def __init__(this):
        super().__init__()
        this.layer = nn.Linear(6, 1)
        this.register_buffer("noise", torch.zeros(6))
        this.scale = 1.0

    def redraw(this):
        this.noise.normal_()

    def anneal(this):
        this.scale = max(0.1, this.scale * 0.9)

    def project(this):
        with torch.no_grad():
            this.layer.weight.div_(this.layer.weight.norm())

    def size(this):
        return sum(p.numel() for p in this.parameters())

    def forward(this, x):
        return this.layer(x + this.noise) / this.scale

TOP

def main():
    BEFORE
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16):
        FIRST
        loss = F.mse_loss(model(x)LOSS, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AFTER

if __name__ == "__main__":
    main()
"""
PLAIN = {"TOP": "", "BEFORE": "pass", "FIRST": "pass", "LOSS": "", "AFTER": "pass"}


def made(tmp_path: Path, name: str, **put: str) -> Written:
    source = SCRIPT.replace("this", name)
    for word, text in {**PLAIN, **put}.items():
        source = source.replace(word, text)
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    return written_class(read_script(path))


@pytest.mark.parametrize("name", ["self", "this", "s", "_", "me"])
@pytest.mark.parametrize(
    ("put", "does"),
    [
        (
            {
                "BEFORE": "temperature = Temperature()",
                "LOSS": " / temperature.value",
                "AFTER": "temperature.lower()",
            },
            ["temperature.lower()"],
        ),
        (
            {"TOP": "T = Temperature(2.0)", "LOSS": " / T.value", "AFTER": "T.lower()"},
            ["T.lower()"],
        ),
        ({"FIRST": "model.redraw()"}, ["model.redraw()"]),
        ({"AFTER": "model.project()"}, ["model.project()"]),
        ({"FIRST": "model.redraw()", "AFTER": "model.anneal()"}, ["model.redraw()", "model.anneal()"]),
    ],
)
def test_what_a_method_does_to_its_object_is_to_be_done_in_a_step(
    name: str, put: dict[str, str], does: list[str], tmp_path: Path
) -> None:
    found = made(tmp_path, name, **put)
    assert found.is_open, found.text
    for each in does:
        assert any(f"`{each}`" in line for line in found.left), found.left
        assert f"does: {each}" in found.text


LOWERED = {
    "global": ("scale = 1.0\ndef after():\n    global scale\n    scale *= 0.9", "scale", "after()"),
    "bound": ("scale = 1.0\ndef after(by):\n    global scale\n    scale = by", "scale", "after(2.0)"),
    "by way of another": (
        "scale = 1.0\ndef lower():\n    global scale\n    scale *= 0.9\ndef after():\n    lower()",
        "scale",
        "after()",
    ),
    "read in a function": (
        "scale = 1.0\ndef now():\n    return scale\ndef after():\n    global scale\n    scale *= 0.9",
        "now()",
        "after()",
    ),
    "entry": ("state = {'a': 1.0}\ndef after():\n    state['a'] *= 0.9", "state['a']", "after()"),
    "object": ("T = Temperature()\ndef after():\n    T.lower()", "T.value", "after()"),
    "class method": (
        "class Of:\n    scale = 1.0\n    @classmethod\n    def lower(cls):\n        cls.scale *= 0.9",
        "Of.scale",
        "Of.lower()",
    ),
    "static method": (
        "class Of:\n    scale = 1.0\n    @staticmethod\n    def lower(by):\n        Of.scale *= by",
        "Of.scale",
        "Of.lower(0.5)",
    ),
}


@pytest.mark.parametrize("kind", LOWERED)
def test_what_a_function_sets_in_the_module_is_to_be_done_in_a_step(kind: str, tmp_path: Path) -> None:
    top, read, after = LOWERED[kind]
    found = made(tmp_path, "self", TOP=top, LOSS=f" / {read}", AFTER=after)
    (left,) = found.left
    wanted = f"step(): do there what line {line_of(tmp_path, after)} does: `{after}`"
    assert re.fullmatch(rf"{re.escape(wanted)}( \(line \d+: `.* (\*=|=) .*`\))?\.", left), left
    assert "(line " in left or "method" in kind
    assert found.is_open
    other = made(tmp_path, "self", TOP=top, AFTER=after)
    assert other.left == [], "of what no step reads"


def line_of(tmp_path: Path, text: str) -> int:
    lines = (tmp_path / "train.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line == f"        {text}")


@pytest.mark.parametrize("name", ["self", "this"])
@pytest.mark.parametrize(
    "put",
    [
        {"AFTER": "print(model.size())"},
        {
            "BEFORE": "temperature = Temperature()",
            "LOSS": " / temperature.value",
            "AFTER": "temperature.words()",
        },
    ],
)
def test_a_method_that_only_reads_leaves_nothing_to_do(
    name: str, put: dict[str, str], tmp_path: Path
) -> None:
    found = made(tmp_path, name, **put)
    assert found.left == []
    assert not found.is_open


@pytest.mark.parametrize("name", ["self", "this"])
def test_what_a_method_changes_is_read_of_the_object(name: str, tmp_path: Path) -> None:
    """Its first value differs from its value in a later step."""
    put = {
        "BEFORE": "temperature = Temperature()",
        "LOSS": " / temperature.value",
        "AFTER": "temperature.lower()",
    }
    found = made(tmp_path, name, **put)
    assert "/ self.temperature.value" in found.text


def test_a_static_method_has_no_object(tmp_path: Path) -> None:
    """Its first parameter keeps its name, as does one that the method rebinds, or that precedes a parameter `self`."""
    path = tmp_path / "train.py"
    path.write_text(
        "class A:\n"
        "    @staticmethod\n    def one(x):\n        return x\n"
        "    @classmethod\n    def two(kind):\n        return kind\n"
        "    def three(x):\n        x = 1\n        return x\n"
        "    def four(x, self):\n        return x, self\n"
        "    def five(x):\n        return [x for x in range(3)], lambda x: x\n"
        "    def six(x):\n        return lambda: x.y\n",
        encoding="utf-8",
    )
    (own,) = read_script(path).tree.body
    assert isinstance(own, ast.ClassDef)
    firsts = [each.args.args[0].arg for each in own.body if isinstance(each, ast.FunctionDef)]
    assert firsts == ["x", "kind", "x", "x", "x", "self"]
    assert "self.y" in ast.unparse(own)


SET_LATER = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(64, 6)

class Trainer:
    def __init__(this, model, scale=1.0):
        this.model = model
        this.scale = scale
        this.optimizer = torch.optim.SGD(this.model.parameters(), lr=0.1)
        INSIDE
    def rescale(this, scale):
        this.scale = SCALE
    def fit(this, loader):
        for x, y in loader:
            this.optimizer.zero_grad()
            loss = this.scale * F.l1_loss(this.model(x), y)
            loss.backward()
            this.optimizer.step()

def main():
    trainer = Trainer(nn.Linear(6, 1))
    OUTSIDE
    trainer.fit(DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("own", ["this", "self"])
@pytest.mark.parametrize("scale", ["scale", "this.scale * scale"])
@pytest.mark.parametrize(
    ("inside", "outside"), [("this.rescale(0.5)", "pass"), ("pass", "trainer.rescale(0.5)")]
)
def test_what_a_method_sets_later_is_not_what_init_gives(
    own: str, scale: str, inside: str, outside: str, tmp_path: Path
) -> None:
    source = SET_LATER.replace("SCALE", scale).replace("INSIDE", inside).replace("OUTSIDE", outside)
    path = tmp_path / "train.py"
    path.write_text(source.replace("this", own), encoding="utf-8")
    found = written_class(read_script(path))
    assert "1.0 *" not in found.text
    assert found.is_open
    assert any("`scale`" in each for each in found.left)


def test_what_no_call_sets_later_is_what_init_gives(tmp_path: Path) -> None:
    source = SET_LATER.replace("SCALE", "scale").replace("INSIDE", "pass").replace("OUTSIDE", "pass")
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    assert "return 1.0 * F.l1_loss(" in written_class(read_script(path)).text
