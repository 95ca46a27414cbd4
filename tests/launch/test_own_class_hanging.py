"""`ddpbench init` on names of a script's top level that hold its model, optimizer or loader."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

X = torch.randn(96, 6)
DATA = TensorDataset(X, X.sum(1, keepdim=True))
loader = DataLoader(DATA, batch_size=8LOADER)

class Penalized(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.weights = list(net.parameters())

    def forward(self, output, target):
        return F.mse_loss(output, target) + sum(each.sum() for each in self.weights)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
BEFORE

def main():
    for x, y in loader:
        loss = LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AFTER

if __name__ == "__main__":
    main()
"""


def written(
    tmp_path: Path, before: str = "", loss: str = "", after: str = "pass", loader: str = ""
) -> Written:
    text = SCRIPT.replace("BEFORE", textwrap.dedent(before)).replace("LOADER", loader).replace("AFTER", after)
    path = tmp_path / "train.py"
    path.write_text(text.replace("LOSS", loss or "F.mse_loss(model(x), y)"), encoding="utf-8")
    return written_class(read_script(path))


@pytest.mark.parametrize(
    ("before", "loss", "name"),
    [
        (
            "def penalty():\n    return sum(each.abs().sum() for each in model.parameters())",
            "F.mse_loss(model(x), y) + penalty()",
            "penalty",
        ),
        ("penalty = lambda: model[0].weight.norm()", "F.mse_loss(model(x), y) + penalty()", "penalty"),
        ("criterion = Penalized(model)", "criterion(model(x), y)", "criterion"),
        (
            "anchor = [each.detach().clone() for each in model.parameters()]",
            "F.mse_loss(model(x), y) + sum((a - b).norm() for a, b in zip(model.parameters(), anchor))",
            "anchor",
        ),
        ("first = model[0]\nstart = first.weight.sum().item()", "F.mse_loss(model(x), y) + start", "start"),
        (
            """
            class Rule:
                def of(self):
                    return model[0].weight.norm()
            rule = Rule()
            """,
            "F.mse_loss(model(x), y) + rule.of()",
            "rule",
        ),
        ("if True:\n    scale = float(model[0].weight.norm())", "F.mse_loss(model(x), y) * scale", "scale"),
        ("rates = [each['lr'] for each in optimizer.param_groups]", "F.mse_loss(model(x), y) * rates[0]", "rates"),
    ],
)  # fmt: skip
def test_a_loss_of_names_that_hold_the_script_s_own_model_is_a_line_to_fill_in(
    before: str, loss: str, name: str, tmp_path: Path
) -> None:
    found = written(tmp_path, before, loss)
    own = "optimizer" if name == "rates" else "model"
    assert found.is_open
    assert any(
        each.startswith("loss():") and f"`{name}` is made from the script's `{own}`" in each
        for each in found.left
    ), found.left


def test_a_schedule_of_schedules_of_the_script_s_own_optimizer_is_a_line_to_fill_in(tmp_path: Path) -> None:
    before = """
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        schedule = torch.optim.lr_scheduler.ChainedScheduler([warm])
    """
    found = written(tmp_path, before, after="schedule.step()")
    assert found.is_open
    assert any("`warm` is made from the script's `optimizer`" in each for each in found.left), found.left


@pytest.mark.parametrize(
    ("before", "loss"),
    [
        (
            "def penalty(model):\n    return model[0].weight.norm()",
            "F.mse_loss(model(x), y) + penalty(model)",
        ),
        ("size = sum(each.numel() for each in model.parameters())", "F.mse_loss(model(x), y) / size"),
        ("device = next(model.parameters()).device", "F.mse_loss(model(x.to(device)), y.to(device))"),
        ("width = model[0].in_features", "F.mse_loss(model(x), y) / width"),
        ("layers = len(model)", "F.mse_loss(model(x), y) / layers"),
        (
            "def penalty(net):\n    model = net[0]\n    return model.weight.norm()",
            "F.mse_loss(model(x), y) + penalty(model)",
        ),
        ("def report():\n    print(model)", "F.mse_loss(model(x), y)"),
    ],
)
def test_what_is_alike_for_every_such_model_may_be_read(before: str, loss: str, tmp_path: Path) -> None:
    found = written(tmp_path, before, loss)
    assert not found.is_open, found.left


def test_a_loader_of_the_top_level_is_told_of_as_one_in_a_function_is(tmp_path: Path) -> None:
    sampler = "WeightedRandomSampler(torch.ones(96), 96)"
    found = written(tmp_path, loader=f", sampler={sampler}, num_workers=2")
    assert [each.text for each in found.dropped if "DataLoader" in each.text] == [
        f"DataLoader(sampler={sampler}, num_workers=2)"
    ]
    assert [(each.key, each.value) for each in found.settings] == [("base.loader_workers", "2")]


def test_what_a_training_at_the_top_level_assigns_is_not_there_when_the_class_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn
            from torch.utils.data import DataLoader

            data = torch.randn(64, 6, 6)
            model = nn.GRU(6, 6, batch_first=True)
            optimizer = torch.optim.Adam(model.parameters())
            h = torch.zeros(1, 8, 6)
            for x in DataLoader(data, batch_size=8, drop_last=True):
                out, h = model(x[:, :-1], h.detach())
                loss = F.mse_loss(out, x[:, 1:])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            """
        ),
        encoding="utf-8",
    )
    found = written_class(read_script(path))
    assert not found.is_open, found.left
