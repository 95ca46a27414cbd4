"""`ddpbench init` on settings that a script reads from a file, and on batches that a function draws."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.launch.own_class import Written, read_script, written_class

SCRIPT = """
import json
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TOP
def make_data(width):
    x = torch.randn(96, width)
    return TensorDataset(x, x.sum(1, keepdim=True))

def train(given):
    INNER
    model = nn.Sequential(nn.Linear(given["width"], given["hidden"]), nn.Linear(given["hidden"], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=given["rate"])
    for x, y in DataLoader(make_data(given["width"]), batch_size=16):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    train(GIVEN)
"""
OPENED = "with open(PATH) as file:\n    settings = json.load(file)"
CLOSED = "file = open(PATH)\nsettings = json.load(file)\nfile.close()"


def made(source: str, tmp_path: Path) -> tuple[Written, Any]:
    """Return the result for a script, and its class."""
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    found = written_class(read_script(path))
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(source + "\n" + found.text, "train.py", "exec"), names)
    return found, names["Measured"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the class leaves the file open
@pytest.mark.parametrize(
    ("where", "read"),
    [
        ("TOP", OPENED),
        ("TOP", CLOSED),
        ("TOP", OPENED.replace("json.load(file)", "json.loads(file.read())")),
        ("INNER", OPENED),
        ("INNER", OPENED.replace("json.load(file)", "json.loads(file.read())")),
        ("INNER", CLOSED.removesuffix("\nfile.close()")),
    ],
)
def test_settings_of_a_file_are_read_once(where: str, read: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"width": 5, "hidden": 7, "rate": 0.25}), encoding="utf-8")
    put = {"TOP": "", "INNER": "", where: read.replace("PATH", repr(str(file)))}
    source = SCRIPT.replace("TOP", put["TOP"]).replace("INNER", textwrap.indent(put["INNER"], "    ").strip())
    if where == "INNER":
        source = source.replace('given["', 'settings["').replace("GIVEN", "None")
    found, measured = made(source.replace("GIVEN", "settings"), tmp_path)
    assert (found.left, found.is_open) == ([], False)
    own = measured()
    file.unlink()  # what is read later would fail
    model = own.model()
    assert [each.out_features for each in model] == [7, 1]
    assert len(own.dataset()[0][0]) == 5
    assert own.optimizer(model.parameters()).defaults["lr"] == 0.25


DRAWN = """
import torch
import torch.nn.functional as F
from torch import nn

def draw():
    x = torch.randn(12, 3)
    y = x.sum(1, keepdim=True)
    RETURN

def train():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        TARGET = draw()
        loss = F.mse_loss(model(X), Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    train()
"""


@pytest.mark.parametrize(
    ("returns", "target", "x", "y"),
    [
        ("return x, y", "x, y", "x", "y"),
        ("return x, y", "given", "given[0]", "given[1]"),
        ("pair = (x, y)\n    return pair", "given", "given[0]", "given[1]"),
        ('return {"x": x, "y": y}', "given", 'given["x"]', 'given["y"]'),
        ("return dict(x=x, y=y)", "given", 'given["x"]', 'given["y"]'),
        ("return torch.cat([x, y], 1)", "given", "given[:, :3]", "given[:, 3:]"),
    ],
)
def test_samples_of_drawn_batches_are_of_their_kind(
    returns: str, target: str, x: str, y: str, tmp_path: Path
) -> None:
    source = DRAWN.replace("RETURN", returns).replace("TARGET", target)
    found, measured = made(source.replace("model(X)", f"model({x})").replace("Y)", f"{y})"), tmp_path)
    assert (found.left, found.is_open) == ([], False)
    own = measured()
    samples = own.dataset()
    assert len(samples) == 64 * 12
    batch = torch.utils.data.default_collate(samples[:8])
    model = nn_with_sum()
    assert own.loss(model, batch).item() == pytest.approx(0.0, abs=1e-10)


def nn_with_sum() -> torch.nn.Linear:
    """Return the model whose loss is 0, which sums its inputs."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    return model


def test_batches_whose_parts_differ_in_length_are_refused(tmp_path: Path) -> None:
    """A batch of 9 time steps with one target per token has no samples along its first dimension."""
    source = DRAWN.replace("RETURN", "return torch.randn(9, 12, 3), torch.randn(108, 1)")
    source = (
        source.replace("TARGET", "x, y").replace("model(X)", "model(x).flatten(0, 1)").replace("Y)", "y)")
    )
    found, measured = made(source, tmp_path)
    with pytest.raises(ValueError, match=r"zip\(\)"):
        measured().dataset()
    assert "which lie along the first dimension" in str(found.notes)
