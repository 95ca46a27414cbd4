"""`ddpbench init` on scripts that give a name another value before they use it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class


def of(source: str, tmp_path: Path) -> Written:
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    return written_class(read_script(path))


HEAD = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    WIDE = True

    def build(width):
        return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))

    def doubled(samples):
        x, y = zip(*samples)
        return torch.stack(x) * 2, torch.stack(y)
"""
MADE = """
data = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
{0}model = build(4)
{0}model = build(5)
{0}loss_of = nn.CrossEntropyLoss()
{0}loss_of = nn.CrossEntropyLoss(label_smoothing=0.5)
{0}optimizer = torch.optim.SGD({0}model.parameters(), lr=0.1)
{0}optimizer = torch.optim.Adam({0}model.parameters(), lr=0.2)
{0}loader = DataLoader(data, batch_size=4)
{0}loader = DataLoader(data, batch_size=8, collate_fn=doubled)
"""
LOOP = """
for x, y in {0}loader:
    loss = {0}loss_of({0}model(x), y)
    {0}optimizer.zero_grad()
    loss.backward()
    {0}optimizer.step()
"""
AFTER = """
model = build(6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
"""


def indented(text: str, by: int) -> str:
    return textwrap.indent(text.strip("\n") + "\n", " " * by)


PLACES = {
    "at the top": MADE.format("") + LOOP.format("") + AFTER,
    "below a guard": 'if __name__ == "__main__":\n' + indented(MADE.format("") + LOOP.format("") + AFTER, 4),
    "around a function": "def train():\n"
    + indented(LOOP.format(""), 4)
    + MADE.format("")
    + "train()\n"
    + AFTER,
    "in a function": "def train():\n" + indented(MADE.format("") + LOOP.format("") + AFTER, 4) + "train()\n",
    "in attributes": (
        "class Trainer:\n    def __init__(self):\n"
        + indented(MADE.format("self."), 8)
        + "    def fit(self):\n"
        + indented(LOOP.format("self."), 8)
        + "Trainer().fit()\n"
    ),
    "where the defaults lead": MADE.format("").replace("model = build(5)", "if WIDE: model = build(5)")
    + LOOP.format(""),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_has_the_value_that_it_was_given_last(place: str, tmp_path: Path) -> None:
    written = of(textwrap.dedent(HEAD) + PLACES[place], tmp_path)
    for said in ("build(5)", "label_smoothing=0.5", "torch.optim.Adam(parameters, lr=0.2)", "batch = 8"):
        assert said in written.text
    assert "doubled" in written.text


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("try:\n    lr = 0.1\nexcept ValueError:\n    lr = 0.2", "lr=0.1"),
        ("lr = 0.1\nif torch.cuda.is_available():\n    lr = 0.2", "lr=0.1"),
        ("lr = 0.1\nif not WIDE:\n    lr = 0.2", "lr=0.1"),
        ("if WIDE:\n    lr = 0.1\n    lr = 0.2", "lr=0.2"),
        ("lr, n = 0.1, 3\nlr, n = 0.2, 4", "lr=0.2"),
        ("lr = 0.1\nlr = None", "lr=0.1"),
    ],
)
def test_a_value_is_the_last_one_that_is_sure(lines: str, said: str, tmp_path: Path) -> None:
    rest = f"{lines}\n" + MADE.format("").replace("lr=0.2", "lr=lr") + LOOP.format("")
    made = textwrap.dedent(HEAD) + "def train():\n" + indented(rest, 4) + "train()\n"
    assert said in of(made, tmp_path).text
