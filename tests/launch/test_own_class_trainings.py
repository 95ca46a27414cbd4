"""`ddpbench init` on scripts that train more than once, and on their changes to the model between and after."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class
from ddpbench.launch.own_class.dropped import DONE
from ddpbench.units import series_of

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(64, 6)
DATA = TensorDataset(X, X.sum(1, keepdim=True))
small, big = DataLoader(DATA, batch_size=8), DataLoader(DATA, batch_size=32)

PARTS
def main(several=False):
    model = nn.Linear(6, 1)
    BODY

if __name__ == "__main__":
    main()
"""
FIT = """
def fit(model, loader, criterion, lr=0.1, train=True, optimizer=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in loader:
        loss = criterion(model(x), y)
        if CONDITION:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
BOTH = f"""{FIT}
def both(model, lr):
    fit(model, small, F.l1_loss, lr)
"""
TRAINER = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            F.l1_loss(self.model(x), y).backward()
            self.optimizer.step()
"""


def made(tmp_path: Path, body: str, condition: str = "train") -> Written:
    parts = BOTH if "both(" in body else TRAINER if "Trainer(" in body else FIT
    source = SCRIPT.replace("PARTS", parts.replace("CONDITION", condition))
    source = source.replace("BODY", textwrap.indent(body, "    ").strip())
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    return written_class(read_script(path))


def lines_of(path: Path, call: str) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [str(number) for number, line in enumerate(lines, 1) if line.lstrip().startswith(call)]


@pytest.mark.parametrize(
    ("body", "call", "count"),
    [
        ("fit(model, small, F.l1_loss)\nfit(model, big, F.mse_loss, 0.01)", "fit", 2),
        ("fit(model, small, F.l1_loss)\nfit(model, big, F.mse_loss)\nfit(model, big, F.l1_loss)", "fit", 3),
        ("both(model, 0.1)\nboth(model, 0.01)", "both", 2),
        (
            "for _ in X:\n    fit(model, small, F.l1_loss)\nfor _ in X:\n    fit(model, big, F.l1_loss)",
            "fit",
            2,
        ),
        ("trainer = Trainer(model)\ntrainer.run(small)\ntrainer.run(big)", "trainer.run", 2),
        ("Trainer(model).run(small)\nTrainer(model).run(big)", "Trainer(model).run", 2),
    ],
)
def test_a_function_that_trains_again_is_told(body: str, call: str, count: int, tmp_path: Path) -> None:
    found = made(tmp_path, body)
    lines = lines_of(tmp_path / "train.py", f"{call}(")
    assert len(lines) == count
    sentence = (
        f"The script trains in {count} calls of {call.rpartition('.')[2]}(), in lines "
        f"{series_of(lines)}. This class is for the one of line {lines[0]}; another call needs another "
        "class."
    )
    assert sentence in found.left
    assert "The script trains in" in found.text, "also a comment at the head of the class"


def test_two_calls_of_one_line_are_told(tmp_path: Path) -> None:
    found = made(tmp_path, "fit(model, small, F.l1_loss); fit(model, big, F.mse_loss, 0.01)")
    (line,) = lines_of(tmp_path / "train.py", "fit(")
    assert f"The script trains in 2 calls of fit(), in line {line}. This class is for the first one" in str(
        found.left
    )


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ("fit(model, small, F.l1_loss)", "train"),
        ("for rate in (0.1, 0.01):\n    fit(model, small, F.l1_loss)", "train"),
        ("fit(model, small, F.l1_loss)\nfit(model, big, F.l1_loss, train=False)", "train"),
        ("fit(model, small, F.l1_loss)\nwith torch.no_grad():\n    fit(model, big, F.l1_loss)", "train"),
        ("fit(model, small, F.l1_loss)\nmodel.eval()\nfit(model, big, F.l1_loss)", "model.training"),
        ("fit(model, small, F.l1_loss)\nfit(model, big, F.l1_loss)", "torch.is_grad_enabled()"),
        ("if several:\n    fit(model, small, F.l1_loss)\nelse:\n    fit(model, big, F.l1_loss)", "train"),
        ("fit(model, small, F.l1_loss)\nif several:\n    fit(model, big, F.l1_loss)", "train"),
    ],
)
def test_a_call_that_does_not_train_or_is_not_made_is_not_told(
    body: str, condition: str, tmp_path: Path
) -> None:
    found = made(tmp_path, body, condition)
    assert not [each for each in found.left if "The script trains" in each]


TWO = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(64, 6)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.body(x))

def main():
    model = Net()
    BEFORE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        EPOCH
        for (x,) in DataLoader(TensorDataset(X), batch_size=8):
            loss = (model(x) - 1).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    AFTER

if __name__ == "__main__":
    main()
"""


def trained(tmp_path: Path, **put: str) -> Written:
    source = TWO
    for word in ("BEFORE", "EPOCH", "AFTER"):
        source = source.replace(word, put.get(word, "pass"))
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    return written_class(read_script(path))


@pytest.mark.parametrize(
    "after", ["model.requires_grad_(False)", "model.body = nn.Identity()", "model.head.requires_grad_(False)"]
)
def test_what_comes_after_the_training_is_nothing_to_do(after: str, tmp_path: Path) -> None:
    found = trained(tmp_path, AFTER=after)
    assert found.left == [], found.text
    assert any(after in each.text for each in found.dropped)
    before = trained(tmp_path, BEFORE=after)
    assert before.left, "the same line before it"


def test_what_a_later_epoch_does_is_to_be_decided(tmp_path: Path) -> None:
    """If it ran before the first training, it would undo the line that the script first trains with."""
    found = trained(
        tmp_path,
        BEFORE="model.body.requires_grad_(False)",
        EPOCH="if epoch == 2:\n            model.body.requires_grad_(True)",
    )
    first, second = found.left
    assert first == "model(): do there what line 16 does: `model.body.requires_grad_(False)`."
    assert second == (
        "model(): decide whether the class trains as before or as after line 20, which runs during "
        "an epoch: `model.body.requires_grad_(True)`."
    )
    assert found.is_open


def test_a_first_call_that_evaluates_is_not_told_as_one_that_trains(tmp_path: Path) -> None:
    body = "fit(model, big, F.l1_loss, train=False)\nfit(model, small, F.l1_loss)"
    assert not [each for each in made(tmp_path, body).left if each.startswith("The script trains in")]


@pytest.mark.parametrize(
    ("before", "main", "once"),
    [
        ("", "setup()\nfit(model, small, F.l1_loss)", True),
        ("", "for _ in range(3):\n    setup()\n    fit(model, small, F.l1_loss)", False),
        ("setup()", "fit(model, small, F.l1_loss)", True),
    ],
)
def test_what_a_script_does_once_before_the_loop_is_no_part_of_a_step(
    before: str, main: str, once: bool, tmp_path: Path
) -> None:
    setup = f"WEIGHT = [1.0]\ndef setup():\n    global WEIGHT\n    WEIGHT = [0.5]\n{before}\n"
    parts = setup + FIT.replace("CONDITION", "train").replace(
        "= criterion(model(x), y)", "= WEIGHT[0] * (model(x) - y).sum()"
    )
    source = SCRIPT.replace("PARTS", parts).replace("BODY", textwrap.indent(main, "    ").strip())
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    found = written_class(read_script(path))
    line = lines_of(path, "setup()")[0]
    if once and not before:
        where = f"line {lines_of(path, 'WEIGHT = [0.5]')[0]}"
        assert (
            f"loss(): use what line {line} sets once, before the loop: `setup()` ({where}: `WEIGHT = [0.5]`)."
            in found.left
        )
        done = f"what line {line} sets once, before the loop: setup() ({where}: WEIGHT = [0.5])"
        assert f"...  # use {done}" in found.text
    assert any("in place of this loss()" in each for each in found.text.splitlines()) is not once


GAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
DATA = TensorDataset(torch.randn(64, 2))

def helper(optimizer, loss):
    loss.backward()
    optimizer.step()

def never(optimizer):
    optimizer.step()

def main():
    made, judge = nn.Linear(2, 2), nn.Linear(2, 1)
    judging = torch.optim.Adam(judge.parameters(), 1e-4)
    making = torch.optim.Adam(made.parameters(), 1e-4)
    for epoch in range(10):
        for (x,) in DataLoader(DATA, batch_size=8):
            judging.zero_grad()
            loss = judge(made(x).detach()).mean() - judge(x).mean()
            loss.backward()
            judging.step()
        AFTER

if __name__ == "__main__":
    main()
"""
FOOLED = "making.zero_grad()\nfooled = -judge(made(torch.randn(8, 2))).mean()\n"


@pytest.mark.parametrize(
    ("after", "call"),
    [
        (f"{FOOLED}fooled.backward()\nmaking.step()", "making.step()"),
        (f"{FOOLED}helper(making, fooled)", "optimizer.step()"),
    ],
)
def test_updates_outside_the_loop_over_batches_are_to_be_done(after: str, call: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GAN.replace("AFTER", textwrap.indent(after, " " * 8).strip()), encoding="utf-8")
    found = written_class(read_script(path))
    line = next(line for line in lines_of(path, call) if call != "optimizer.step()" or int(line) < 12)
    sentence = (
        f"`{call}` in line {line} is outside the loop over batches and is left out: if each step or epoch needs "
        "this update, write it in step()."
    )
    assert sentence in found.left
    done = [each for each in found.dropped if each.group == DONE]
    assert int(line) not in {each.line for each in done}, "no sweep makes this update"


def test_a_last_update_of_the_same_optimizer_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GAN.replace("AFTER", "judging.step()"), encoding="utf-8")
    found = written_class(read_script(path))
    assert not [each for each in found.left if "outside the loop" in each]
    assert "the class updates only within the loop" in str(found.notes)
    assert "optimizer.step()" not in str(found.notes), "never() is never called"
