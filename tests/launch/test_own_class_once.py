"""`ddpbench init` makes the class draw once what a script draws once, for all places that read it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.launch.own_class import Written, read_script, written_class

SCRIPT = """
import argparse
import random
import time
from dataclasses import dataclass, field
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

X = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)

class Meter:
    def __init__(self):
        self.value = 1.0
    def push(self, value):
        self.value = value

class Chosen:
    def __init__(self):
        self.rate, self.width = random.uniform(1e-4, 1e-2), 6

@dataclass
class Settings:
    rate: float = field(default_factory=random.random)
    other: float = field(default_factory=lambda: random.random())

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1))
    def forward(self, x):
        return x.sum() * 0 + self.scale.sum()

class Net(nn.Module):
    def __init__(self, meter):
        super().__init__()
        self.meter, self.layer = meter, nn.Linear(6, 1)
    def forward(self, x):
        return self.layer(x)

def drawn():
    def inner():
        return np.random.rand()
    return inner()

def make_data(width=6):
    x = torch.randn(128, width)
    return TensorDataset(x, x.sum(1, keepdim=True))

def main():
    data = TensorDataset(X, Y)
    BEFORE
    model = MODEL
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in DataLoader(DATA, batch_size=16, shuffle=True):
        loss = LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
PLAIN = {
    "BEFORE": "pass",
    "MODEL": "nn.Linear(6, 1)",
    "RATE": "0.1",
    "DATA": "data",
    "LOSS": "F.mse_loss(model(x), y)",
}


def made(tmp_path: Path, **put: str) -> tuple[Written, Any]:
    """Return the result for the script with these parts, and its class."""
    source = SCRIPT
    for name, text in {**PLAIN, **put}.items():
        source = source.replace(name, textwrap.indent(text, "    ").strip())
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    found = written_class(read_script(path))
    names: dict[str, Any] = {"__name__": __name__}  # the name of an existing module, which dataclasses need
    exec(compile(source + "\n" + found.text, "train.py", "exec"), names)
    return found, names["Measured"]


@pytest.mark.parametrize(
    "before",
    [
        """
        order = torch.randperm(len(data)).tolist()
        held_out = order[:32]
        training = [i for i in order if i not in held_out]
        """,
        """
        held_out = torch.randperm(128).tolist()[:32]
        training = [i for i in range(128) if i not in held_out]
        """,
        """
        held_out = torch.randperm(128)[:32]
        listed = held_out.tolist()
        training = list(filter(lambda i: i not in listed, range(128)))
        """,
        """
        places = np.random.permutation(128)
        held_out = {int(i) for i in places[:32]}
        training = [int(i) for i in places if int(i) not in held_out]
        """,
        """
        start = int(time.time_ns()) % 96
        training = [i for i in range(128) if i not in range(start, start + 32)]
        """,
    ],
)
def test_a_part_of_the_data_that_is_drawn_once_has_the_script_s_number_of_samples(
    before: str, tmp_path: Path
) -> None:
    found, measured = made(tmp_path, BEFORE=textwrap.dedent(before).strip(), DATA="Subset(data, training)")
    assert found.left == []
    for _ in range(3):
        indices = list(measured().dataset().indices)
        assert len(indices) == len(set(indices)) == 96, found.text


@pytest.mark.parametrize(
    ("before", "rate"),
    [
        ("rate = 10 ** random.uniform(-4, -2)", "rate"),
        ("drawn_rate = random.uniform(1e-4, 1e-2)\nrate = 2 * drawn_rate", "drawn_rate * 2"),
        ("settings = {'rate': random.uniform(1e-4, 1e-2)}\nrate = settings['rate']", "settings['rate']"),
        ("rate = drawn()", "rate"),
        ("rate = float(time.perf_counter_ns() % 1000 + 1)", "rate"),
        ("generator = random.Random()\nrate = generator.random()", "rate"),
        ("chosen = Chosen()\nrate = chosen.rate", "chosen.rate"),
        ("settings = Settings()\nrate = settings.rate", "settings.rate"),
        ("settings = Settings()\nrate = settings.other * settings.rate", "settings.rate * settings.other"),
        (
            "p = argparse.ArgumentParser()\np.add_argument('--a', default=random.random())\nrate = p.parse_args().a",
            "rate",
        ),
    ],
)
def test_a_rate_that_the_loss_reads_too_is_drawn_once(before: str, rate: str, tmp_path: Path) -> None:
    found, measured = made(tmp_path, BEFORE=before, RATE=rate, LOSS="model(x).sum() * 0 + rate")
    assert found.left == []
    own = measured()
    model = own.model()
    for _ in range(3):
        (group,) = own.optimizer(model.parameters()).param_groups
        loss = own.loss(model, (torch.ones(2, 6), torch.ones(2, 1))).item()
        assert loss == pytest.approx(group["lr"], rel=1e-5), found.text


def test_data_that_the_model_is_made_for_are_the_ones_that_it_trains_on(tmp_path: Path) -> None:
    found, measured = made(
        tmp_path,
        BEFORE="data = make_data()\nwidth = int(data.tensors[0].abs().sum() * 1e3)",
        MODEL="nn.Linear(6, width % 97 + 1)",
    )
    own = measured()
    width = int(own.dataset().tensors[0].abs().sum() * 1e3) % 97 + 1
    assert own.model().out_features == width, found.text
    assert own.dataset() is own.dataset()


def test_an_object_that_methods_change_is_one_for_the_model_and_the_loss(tmp_path: Path) -> None:
    found, measured = made(
        tmp_path, BEFORE="meter = Meter()", MODEL="Net(meter)", LOSS="F.mse_loss(model(x), y) * meter.value"
    )
    own = measured()
    model = own.model()
    model.meter.push(0.0)
    assert own.loss(model, (torch.ones(2, 6), torch.zeros(2, 1))).item() == 0, found.text


def test_a_parameter_of_a_criterion_is_the_criterion_s(tmp_path: Path) -> None:
    """It must not be another one that is made in the same way."""
    found, measured = made(
        tmp_path, BEFORE="criterion = Scaled()", RATE="criterion.scale.item()", LOSS="criterion(model(x))"
    )
    own = measured()
    with torch.no_grad():
        model = own.model()
        (group,) = own.optimizer(model.parameters()).param_groups
        loss = own.loss(model, (torch.ones(2, 6), torch.zeros(2, 1))).item()
    assert loss == pytest.approx(group["lr"], rel=1e-5), found.text


def test_what_a_collate_function_reads_is_drawn_for_all_batches(tmp_path: Path) -> None:
    found, measured = made(
        tmp_path,
        BEFORE="shift = torch.randn(6)\nput = lambda b: torch.stack([x for x, _ in b]) + shift",
        DATA="data, collate_fn=put",
    )
    own, samples = measured(), [(torch.zeros(6), 0)] * 2
    assert torch.equal(own.collate(samples), own.collate(samples)), found.text


def test_a_rate_that_the_optimizer_alone_reads_is_drawn_alike_for_each_model(tmp_path: Path) -> None:
    found, measured = made(tmp_path, BEFORE="rate = random.uniform(1e-4, 1e-2)", RATE="rate")
    own = measured()
    rates = {own.optimizer(own.model().parameters()).param_groups[0]["lr"] for _ in range(3)}
    assert len(rates) == 1, found.text


def test_a_batch_size_that_is_drawn_is_to_be_filled_in(tmp_path: Path) -> None:
    """Each rank would draw a different one when it imports the class."""
    source = SCRIPT.replace("batch_size=16", "batch_size=size")
    for name, text in {**PLAIN, "BEFORE": "size = random.choice([8, 16])"}.items():
        source = source.replace(name, text)
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    found = written_class(read_script(path))
    assert "batch = " not in found.text.replace("= batch", "")
    assert found.left == ["The batch size was not found: add `batch = N` to the class."]


def test_values_that_stay_the_same_are_written_where_they_are_read(tmp_path: Path) -> None:
    """Only values that may differ when recomputed go into the constructor."""
    found, _ = made(
        tmp_path,
        BEFORE="width = max(1, len(range(3)))",
        MODEL="nn.Linear(6, width)",
        RATE="0.1 / width",
    )
    assert "__init__" not in found.text
    assert "0.1 / max(1, len(range(3)))" in found.text


@pytest.mark.parametrize(
    "before",
    [
        "x = X * 3 + torch.ones(6)\nmu = x.mean(0)\nsd = x.std(0)\nz = (x - mu) / sd",
        "x = X.clone()\nlow = x.min(0).values\nhigh = x.max(0).values\nz = (x - low) / (high - low) + low * high",
        "a = X.abs()\nb = a.sum(0)\nc = a / b\nd = c.mean(0)\nz = (a - b) * (c - d) / (d.max() - c.min())",
    ],
)
def test_names_are_made_before_those_that_are_made_of_them(before: str, tmp_path: Path) -> None:
    found, measured = made(
        tmp_path, BEFORE=f"{before}\ndata = TensorDataset(z, (z.sum(1, keepdim=True) > 0).float())"
    )
    assert found.left == []
    script: dict[str, Any] = {}
    exec(SCRIPT.partition("class Meter")[0] + textwrap.dedent(before), script)
    assert torch.equal(measured().dataset().tensors[0], script["z"]), found.text


def test_two_values_of_one_name_are_two(tmp_path: Path) -> None:
    source = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        def fit(y):
            x = y.abs() + 1
            model = nn.Linear(6, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for a, b in DataLoader(TensorDataset(x, x.sum(1)), batch_size=2):
                loss = (model(a).squeeze(1) - b).abs().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        def main():
            x = torch.arange(24.0).reshape(4, 6)
            fit(x / x.sum())

        if __name__ == "__main__":
            main()
        """
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    found = written_class(read_script(path))
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(textwrap.dedent(source) + "\n" + found.text, "train.py", "exec"), names)
    x = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(names["Measured"]().dataset().tensors[0], x / x.sum() + 1), found.text


def test_what_is_typed_in_is_to_be_filled_in(tmp_path: Path) -> None:
    found, _ = made(tmp_path, BEFORE="rate = float(input())", RATE="rate")
    assert "input()" not in found.text.replace("# in the script, float(input())", "")
    assert found.left == ["optimizer(): say what `rate` is (in the script, float(input()))."]


DRAWN_IN_TURN = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

DATA = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))

def main():
    g = torch.Generator().manual_seed(3)
    DRAWS
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(train, batch_size=8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, weight=w).backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
SPLIT, WEIGHTS = "train, rest = random_split(DATA, [50, 14], generator=g)", "w = torch.rand(3, generator=g)"


@pytest.mark.parametrize("draws", [(SPLIT, WEIGHTS), (WEIGHTS, SPLIT)])
def test_a_generator_that_two_methods_draw_from_in_turn_is_to_be_filled_in(
    draws: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(DRAWN_IN_TURN.replace("DRAWS", "\n    ".join(draws)), encoding="utf-8")
    found = written_class(read_script(path))
    assert found.is_open
    assert "generator=self.g" not in found.text
    assert (
        found.text.count("g = ...  # in the script, torch.Generator().manual_seed(3), from which several")
        == 2
    )


def test_a_generator_that_one_method_draws_from_is_seeded_there(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(DRAWN_IN_TURN.replace("DRAWS", f"{SPLIT}\n    w = torch.ones(3)"), encoding="utf-8")
    found = written_class(read_script(path))
    assert not found.is_open
    assert "generator=torch.Generator().manual_seed(3))[0]" in found.text
