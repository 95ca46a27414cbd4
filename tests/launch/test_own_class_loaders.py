"""`ddpbench init` on what scripts do to their loaders, datasets and models before they train."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.launch.own_class import Written, inserted, read_script, written_class

SCRIPT = """
    import itertools
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Subset, TensorDataset, random_split
    from torch.utils.data.distributed import DistributedSampler

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)
        def forward(self, x):
            return self.head(self.body(x))

    def weights_init(module):
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.25)

    def main():
        data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
        DATA
        loader = DataLoader(data, batch_size=8SAMPLER)
        model = Net()
        MODEL
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda made: 1 - made / LENGTH)
        for epoch in range(2):
            model.train()
            EPOCH
            for x, y in LOADER:
                FIRST
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
        END

    if __name__ == "__main__":
        main()
"""
PARTS = {"LOADER": "loader", "LENGTH": "10", "SAMPLER": ""}


def written(tmp_path: Path, **put: str) -> Written:
    text = textwrap.dedent(SCRIPT)
    for part in ("DATA", "MODEL", "EPOCH", "FIRST", "END", *PARTS):
        text = text.replace(part, put.get(part, PARTS.get(part, "pass")), 1)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    return written_class(read_script(tmp_path / "train.py"))


def made(tmp_path: Path, found: Written) -> Any:
    """Return an object of the class in its script."""
    module: dict[str, Any] = {"__name__": "train"}
    exec(inserted(read_script(tmp_path / "train.py"), found.whole), module)
    return module["Measured"]()


@pytest.mark.parametrize(("ranks", "updates"), [("1", 12), ("3", 4), ("99", 1)])
@pytest.mark.parametrize("sampler", ["", ", sampler=DistributedSampler(data)"])
def test_an_epoch_is_a_ranks_share_of_the_batches(
    ranks: str, updates: int, sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(tmp_path, LENGTH="len(loader)", SAMPLER=sampler)
    assert not found.is_open, found.left
    monkeypatch.setenv("WORLD_SIZE", ranks)
    _, scheduler = made(tmp_path, found).optimizer([nn_parameter()])
    assert scheduler.lr_lambdas[0](1) == 1 - 1 / updates
    assert any(
        "or under data_parallel, the number of steps per epoch differs" in each for each in found.notes
    )
    assert not written(tmp_path).notes


def nn_parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("loader", ["itertools.islice(loader, 3)", "itertools.islice(loader, 0, None, 2)"])
def test_a_part_of_the_batches_has_their_size_and_a_note(loader: str, tmp_path: Path) -> None:
    found = written(tmp_path, LOADER=loader)
    assert not found.is_open, found.left
    assert "    batch = 8\n" in found.text
    (note,) = found.notes
    assert note.startswith(f"The script goes through only some batches, `{loader}` (line ")


@pytest.mark.parametrize(
    ("line", "samples"),
    [
        ("data = Subset(data, range(24))", 24),
        ("data = torch.utils.data.Subset(data, range(24))", 24),
        ("data, rest = random_split(data, [64, 32])", 64),
        ("rest, data = random_split(data, [64, 32])", 32),
        ("data = Subset(data, range(24)); data, _ = random_split(data, [16, 8])", 16),
    ],
)
def test_a_part_of_the_dataset_is_what_the_class_trains_on(line: str, samples: int, tmp_path: Path) -> None:
    found = written(tmp_path, DATA=line)
    assert not found.is_open, found.left
    assert len(made(tmp_path, found).dataset()) == samples
    assert not [each.text for each in found.dropped if "Subset" in each.text or "split" in each.text]


def test_a_part_that_may_not_be_taken_is_listed_with_what_differs(tmp_path: Path) -> None:
    found = written(tmp_path, DATA="if len(data) > 90: data = Subset(data, range(24))")
    assert not found.is_open, found.left
    assert "data = Subset(data, range(24)): dataset() has all samples" in [
        each.text for each in found.dropped
    ]


@pytest.mark.parametrize("line", ["model.apply(weights_init)", "if True: model.apply(weights_init)"])
def test_weights_that_a_function_of_the_script_begins_with_are_the_classs(line: str, tmp_path: Path) -> None:
    found = written(tmp_path, MODEL=line)
    assert not found.is_open, found.left
    assert torch.equal(made(tmp_path, found).model().head.weight, torch.full((1, 4), 0.25))
    assert not {each.group for each in found.dropped} & {
        "what else is done to the model",
        "other statements",
    }


def test_what_is_done_to_a_model_after_training_is_left_out(tmp_path: Path) -> None:
    found = written(tmp_path, END="model.apply(weights_init)")
    assert not found.is_open, found.left
    assert "weights_init" not in found.text


def test_each_of_two_models_begins_as_in_the_script(tmp_path: Path) -> None:
    text = textwrap.dedent("""
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        def weights_init(module):
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.25)

        if __name__ == "__main__":
            maker = nn.Linear(4, 4)
            maker.apply(weights_init)
            judge = nn.Linear(4, 1)
            makers = torch.optim.SGD(maker.parameters(), lr=0.1)
            judges = torch.optim.SGD(judge.parameters(), lr=0.1)
            for (x,) in DataLoader(TensorDataset(torch.randn(96, 4)), batch_size=8):
                judges.zero_grad()
                loss = judge(maker(x).detach()).mean() - judge(x).mean()
                loss.backward()
                judges.step()
                makers.zero_grad()
                cost = -judge(maker(x)).mean()
                cost.backward()
                makers.step()
    """)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    found = written_class(read_script(tmp_path / "train.py"))
    assert not found.is_open, found.left
    models = made(tmp_path, found).model()
    assert torch.equal(models["maker"].weight, torch.full((4, 4), 0.25))
    assert not torch.equal(models["judge"].weight, torch.full((1, 4), 0.25))


@pytest.mark.parametrize("line", ["model.body.eval()", "model.body.train(False)"])
def test_a_part_that_each_batch_puts_into_evaluation_is_there_in_the_loss(line: str, tmp_path: Path) -> None:
    found = written(tmp_path, FIRST=line)
    assert not found.is_open, found.left
    own = made(tmp_path, found)
    model = own.model()
    own.loss(model, (torch.randn(8, 4), torch.randn(8, 1)))
    assert not model.body.training
    assert model.head.training


def test_a_part_that_is_put_into_evaluation_once_an_epoch_is_a_line_to_fill_in(tmp_path: Path) -> None:
    found = written(tmp_path, EPOCH="model.body.eval()")
    assert [each.split(" line")[0] for each in found.left] == ["model(): do there what"]
    assert not written(tmp_path, END="model.body.eval()").is_open
