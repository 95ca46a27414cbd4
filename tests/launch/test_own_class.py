"""`ddpbench init`: the class that it writes for a training script, which it reads and never runs."""

from __future__ import annotations

import ast
import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli import run
from ddpbench.launch.own_class import read_script, written_class

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "experiments/own_script"


def written(tmp_path: Path, source: str) -> tuple[str, list[str]]:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(source))
    found = written_class(read_script(path))
    return found.text, found.left


def methods(text: str) -> dict[str, str]:
    """Return the content of a class by name, without its layout."""
    (found,) = ast.parse(text).body
    assert isinstance(found, ast.ClassDef)
    return {
        each.name if isinstance(each, ast.FunctionDef) else ast.unparse(each.targets[0]): ast.unparse(each)
        for each in found.body
        if isinstance(each, ast.FunctionDef | ast.Assign)
    }


def class_of(path: Path) -> str:
    (found,) = (
        e for e in ast.parse(path.read_text()).body if isinstance(e, ast.ClassDef) and e.name == "Measured"
    )
    return ast.unparse(found)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("train", {"batch": "batch = 128"}),
        (
            "gpt",
            {
                "loss": "def loss(self, model, batch):\n    tokens, targets = batch\n"
                "    _, loss = model(tokens, targets)\n    return loss"
            },
        ),
        ("gan", {}),
        ("cnn", {}),
    ],
)
def test_the_examples_get_the_class_that_a_person_wrote(name: str, other: dict[str, str]) -> None:
    found = written_class(read_script(EXAMPLES / f"{name}_before.py"))
    assert methods(found.text) == methods(class_of(EXAMPLES / f"{name}_after.py")) | other
    assert found.left == []


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["train", "gpt", "gan", "cnn"])
def test_a_script_with_its_class_inserted_passes_inspection(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddpbench.worker.verify.inspection import inspect_workload
    from tests.worker.test_own_loops import case_of

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    script = tmp_path / f"{name}_own.py"
    script.write_text((EXAMPLES / f"{name}_before.py").read_text())
    assert run(["init", str(script), "--write"]) == 0
    monkeypatch.setattr("tests.worker.test_own_loops.FILE", script)
    found: dict[str, Any] = inspect_workload(case_of("Measured"))
    assert "problem" not in found, found
    assert found.get("step", False) == (name in ("gan", "cnn"))


MIN_GPT = """
    import torch
    from torch.utils.data import DataLoader
    from mingpt import GPT, Sorted

    class TrainConfig:
        def __init__(self):
            self.learning_rate = 3e-4
            self.batch_size = 64
            self.grad_norm_clip = 1.0

    class Trainer:
        def __init__(self, config, model, train_dataset):
            self.config = config
            self.model = model
            self.optimizer = None
            self.train_dataset = train_dataset
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
            self.model = self.model.to(self.device)
            self.iter_num = 0

        def run(self):
            model, config = self.model, self.config
            self.optimizer = model.configure_optimizers(config)
            train_loader = DataLoader(self.train_dataset, batch_size=config.batch_size, num_workers=2)
            model.train()
            data_iter = iter(train_loader)
            while True:
                try:
                    batch = next(data_iter)
                except StopIteration:
                    data_iter = iter(train_loader)
                    batch = next(data_iter)
                batch = [t.to(self.device) for t in batch]
                x, y = batch
                logits, self.loss = model(x, y)
                model.zero_grad(set_to_none=True)
                self.loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)
                self.optimizer.step()
                self.trigger_callbacks('on_batch_end')
                self.iter_num += 1

    if __name__ == '__main__':
        model = GPT(vocabulary=3)
        train_config = TrainConfig()
        train_config.learning_rate = 5e-4
        trainer = Trainer(train_config, model, Sorted('train'))
        trainer.run()
"""


def test_a_trainer_class_is_followed_through_self_and_its_constructor(tmp_path: Path) -> None:
    text, left = written(tmp_path, MIN_GPT)
    assert text == textwrap.dedent("""\
        class Measured:
            batch = 64

            def model(self):
                return GPT(vocabulary=3)

            def dataset(self):
                return Sorted("train")

            def loss(self, model, batch):
                x, y = batch
                logits, loss = model(x, y)
                return loss

            def optimizer(self, model):
                train_config = TrainConfig()
                train_config.learning_rate = 0.0005
                return model.configure_optimizers(train_config)

            def before_update(self, model):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """)
    assert left == []


HUGGING_FACE = """
    import argparse
    import torch
    from datasets import load_dataset
    from torch.utils.data import DataLoader
    from transformers import AutoModelForSequenceClassification, default_data_collator, get_scheduler
    from tqdm.auto import tqdm

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--model_name", default="bert-base-uncased")
        parser.add_argument("--lr", type=float, default=5e-5)
        parser.add_argument("--epochs", type=int, default=3)
        parser.add_argument("--batch-size", type=int, default=8)
        args = parser.parse_args()
        raw = load_dataset("imdb")
        loader = DataLoader(raw["train"], batch_size=args.batch_size, collate_fn=default_data_collator)
        model = AutoModelForSequenceClassification.from_pretrained(args.model_name, num_labels=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        schedule = get_scheduler("linear", optimizer, 0, args.epochs * len(loader))
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        model.to(device)
        for epoch in range(args.epochs):
            for step, batch in enumerate(tqdm(loader)):
                batch = {k: v.to(device) for k, v in batch.items()}
                outputs = model(**batch)
                loss = outputs.loss
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    if __name__ == "__main__":
        main()
"""


def test_outputs_with_a_loss_and_a_schedule_of_unknown_length(tmp_path: Path) -> None:
    text, left = written(tmp_path, HUGGING_FACE)
    assert text == textwrap.dedent("""\
        class Measured:
            # `updates_per_epoch` in optimizer() is right for the class's batch and one process per rank.
            # With another local_batch, or under data_parallel, the number of steps per epoch differs.
            collate = default_data_collator
            batch = 8

            def model(self):
                return AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)

            def dataset(self):
                return load_dataset("imdb")["train"]

            def loss(self, model, batch):
                outputs = model(**batch)
                return outputs.loss

            def optimizer(self, parameters):
                import os
                updates_per_epoch = max(1, len(self.dataset()) // (self.batch * int(os.environ["WORLD_SIZE"])))
                optimizer = torch.optim.AdamW(parameters, lr=5e-05)
                return optimizer, get_scheduler("linear", optimizer, 0, 3 * updates_per_epoch)
        """)
    assert left == []
    text, left = written(tmp_path, HUGGING_FACE.replace("DataLoader(raw", "make_loader(raw"))
    assert "updates_per_epoch = ...  # in the script, len(loader)" in text
    assert "optimizer(): say what `updates_per_epoch` is (in the script, len(loader))." in left


FLAT = """
    import torch
    import torch.nn as nn
    import torch.optim as optim
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    x = torch.randn(512, 10)
    loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=4, shuffle=True)

    class Net(nn.Module):
        def __init__(self, hidden):
            super().__init__()

    net = Net(64)
    net.to(device)
    criterion = nn.MSELoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    for epoch in range(2):
        running_loss = 0.0
        for i, data in enumerate(loader, 0):
            inputs, labels = data[0].to(device), data[1].to(device)
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            if i % 2000 == 1999:
                print(f'[{epoch + 1}] loss: {running_loss / 2000:.3f}')
"""


def test_a_flat_script_is_told_that_it_trains_when_it_is_imported(tmp_path: Path) -> None:
    text, left = written(tmp_path, FLAT)
    assert text == textwrap.dedent("""\
        class Measured:
            batch = 4

            def model(self):
                return Net(64)

            def dataset(self):
                return TensorDataset(x, x.sum(1))

            def loss(self, model, batch):
                inputs, labels = batch[0], batch[1]
                outputs = model(inputs)
                return nn.functional.mse_loss(outputs, labels)

            def optimizer(self, parameters):
                return optim.SGD(parameters, lr=0.001, momentum=0.9)
        """)
    assert len(left) == 1
    assert left[0].startswith("The script trains when it is imported: move the training below")


ACCUMULATES = """
    import argparse, torch
    from torch import nn
    from torch.utils.data import DataLoader
    from parts import ResNet, make_dataset

    def get_args():
        p = argparse.ArgumentParser()
        p.add_argument("--opt", default="sgd")
        p.add_argument("--accum", type=int, default=4)
        return p.parse_args()

    def train(loader, model, criterion, optimizer, device, args):
        for i, (images, target) in enumerate(loader):
            images = images.to(device, non_blocking=True)
            noise = torch.randn(4, device=device)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(images + noise), target.cuda()) / args.accum
            loss.backward()
            if (i + 1) % args.accum == 0:
                optimizer.step()
                optimizer.zero_grad()
            if i % 10 == 0:
                print(loss.item())

    def loaders():
        return DataLoader(make_dataset("train"), 32), DataLoader(make_dataset("val"), 32)

    if __name__ == "__main__":
        args = get_args()
        device = torch.device("cuda")
        train_loader, val_loader = loaders()
        model = nn.parallel.DistributedDataParallel(ResNet(depth=50).to(device))
        if args.opt == "adam":
            optimizer = torch.optim.Adam(model.parameters())
        else:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(train_loader, model, nn.CrossEntropyLoss(label_smoothing=0.1), optimizer, device, args)
"""


def test_accumulation_becomes_a_step_that_counts_its_batches(tmp_path: Path) -> None:
    text, left = written(tmp_path, ACCUMULATES)
    assert text == textwrap.dedent("""\
        class Measured:
            batch = 32

            def __init__(self):
                self.batches = 0

            def model(self):
                return ResNet(depth=50)

            def dataset(self):
                return make_dataset("train")

            def step(self, model, batch, optimizer):
                images, target = batch
                noise = torch.randn(4, device=images.device)
                with torch.autocast(images.device.type, torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(images + noise), target, label_smoothing=0.1) / 4
                loss.backward()
                if (self.batches + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                self.batches += 1
                return loss

            def optimizer(self, model):
                return torch.optim.SGD(model.parameters(), 0.1)
        """)
    assert left == []


TWO_NETWORKS = """
    from torch import nn, optim
    from torch.utils.data import DataLoader
    from parts import Pictures, noise_like

    class Generator(nn.Module): ...
    class Critic(nn.Module): ...

    def main(root):
        netG, netD = Generator(), Critic()
        criterion = nn.BCELoss()
        optD = optim.Adam(netD.parameters(), lr=2e-4)
        optG = optim.Adam(netG.parameters(), lr=1e-4)
        for real in DataLoader(Pictures(root), batch_size=16):
            netD.zero_grad()
            fake = netG(noise_like(real))
            lossD = criterion(netD(real), 1) + criterion(netD(fake.detach()), 0)
            lossD.backward()
            optD.step()
            netG.zero_grad()
            lossG = criterion(netD(fake), 1)
            lossG.backward()
            optG.step()
"""


BY_EPOCH = """
    import torch
    from nets import Net, Pairs
    from torch.utils.data import DataLoader

    def pretrain(net, loader):
        rough = torch.optim.SGD(net.parameters(), lr=0.5)
        for x, y in loader:
            rough.zero_grad()
            net(x, y).backward()
            rough.step()

    def train(net, loader):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        plan = torch.optim.lr_scheduler.StepLR(optimizer, 30)
        for epoch in range(90):
            for x, y in loader:
                optimizer.zero_grad()
                net(x, y).backward()
                optimizer.step()
            plan.step()

    if __name__ == "__main__":
        net = Net()
        loader = DataLoader(Pairs(), batch_size=16)
        pretrain(net, loader)
        train(net, loader)
"""


def test_a_schedule_by_epoch_and_a_second_loop_are_told_and_stand_in_the_class(tmp_path: Path) -> None:
    text, left = written(tmp_path, BY_EPOCH)
    loops, schedule = left
    assert loops == (
        "The script trains in 2 loops, in lines 8 and 17. This class is for the loop in line 8; "
        "another loop needs another class."
    )
    assert schedule == (
        "`plan.step()` in line 21 is outside the loop over batches and is left out, so the learning "
        "rate never changes. To change it with every update, return (optimizer, scheduler) "
        "from optimizer()."
    )
    head = list(itertools.takewhile(lambda line: line.startswith("    # "), text.splitlines()[1:]))
    assert max(map(len, head)) <= 100
    assert " ".join(line.removeprefix("    # ") for line in head) == " ".join(left)


def test_a_schedule_within_the_loop_over_batches_is_not_told_to_be_left_out(tmp_path: Path) -> None:
    text, left = written(tmp_path, BY_EPOCH.replace("            plan.step()", "                plan.step()"))
    assert not any("plan" in each for each in left)
    alone = textwrap.dedent(BY_EPOCH).replace("        rough.step()\n", "")
    text, left = written(tmp_path, alone.replace("net(x, y).backward()\n", "pass\n", 1))
    assert [each.partition(" in line")[0] for each in left] == ["`plan.step()`"]
    assert "lr=0.1" in text


def test_two_networks_become_a_dict_and_a_step(tmp_path: Path) -> None:
    text, left = written(tmp_path, TWO_NETWORKS)
    found = methods(text)
    assert "return {'netD': Critic(), 'netG': Generator()}" in found["model"]
    assert "netD, netG = (model['netD'], model['netG'])" in found["step"]
    assert "optD, optG = optimizer" in found["step"]
    assert "fake = netG(noise_like(batch))" in found["step"]
    assert "optim.Adam(model['netG'].parameters(), lr=0.0001)" in found["optimizer"]
    assert left == ["dataset(): say what `root` is (as in the script, in main())."]


def test_what_is_not_there_is_a_line_that_says_what_belongs_there(tmp_path: Path) -> None:
    text, left = written(tmp_path, "import torch\n")
    assert text.count("...  # ") == 4
    assert [each.partition("(")[0] for each in left] == ["loss", "model", "dataset", "optimizer"]


NESTED = """
    from dataclasses import dataclass, field
    from pydantic import Field
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    @dataclass
    class Optim:
        lr: float = 1e-2

    @dataclass
    class Config:
        batch: int = field(default=8, metadata={})
        optim: Optim = field(default_factory=Optim)
        decay: Optim = field(default_factory=lambda: Optim(lr=0.25))
        clip: float = Field(0.5, gt=0)

    def main(cfg):
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=cfg.optim.lr, weight_decay=cfg.decay.lr)
        for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=cfg.batch):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()

    if __name__ == "__main__":
        main(Config())
"""


def test_fields_that_an_instance_alone_has_are_followed_to_what_makes_them(tmp_path: Path) -> None:
    text, left = written(tmp_path, NESTED)
    found = methods(text)
    assert found["batch"] == "batch = 8"
    assert "lr=Optim.lr, weight_decay=0.25" in found["optimizer"]
    assert "clip_grad_norm_(model.parameters(), 0.5)" in found["before_update"]
    assert left == []


@pytest.mark.parametrize("field", ["Field(..., gt=0)", "Field(default=..., gt=0)", "Field(gt=0)", "field()"])
def test_a_field_that_must_be_given_is_what_the_instance_has(field: str, tmp_path: Path) -> None:
    """Neither pydantic's mark of a required field nor an attribute that the class lacks."""
    required = NESTED.replace("Field(0.5, gt=0)", field)
    text, left = written(tmp_path, required.replace("main(Config())", "main(Config(clip=0.25))"))
    assert "clip_grad_norm_(model.parameters(), 0.25)" in methods(text)["before_update"]
    assert left == []
    text, _ = written(tmp_path, required.replace("main(Config())", 'main(Config(**read("a.yaml")))'))
    assert 'clip_grad_norm_(model.parameters(), Config(**read("a.yaml")).clip)' in text


AVERAGED = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from elsewhere import Average

    def main(averaged=True):
        model = nn.Linear(8, 1)
        average = Average(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y) / 2
            loss.backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
                if averaged:
                    average.update(model)

    if __name__ == "__main__":
        main()
"""


def test_an_average_of_weights_that_a_step_leaves_out_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(AVERAGED), encoding="utf-8")
    found = written_class(read_script(path))
    assert "def step(self" in found.text
    assert "average" not in found.text.partition("def step(self")[2]
    said = "`average.update(model)` in the loop is left out: if it is part of a step, add it to step()."
    assert said in found.left
    assert [each.group for each in found.dropped if each.text == "average.update(model)"] == [
        "what else is done to the model"
    ]


def test_what_a_loop_does_to_its_model_besides_is_told(tmp_path: Path) -> None:
    source = HUGGING_FACE.replace("schedule.step()", "average.update(model)\n                schedule.step()")
    _, left = written(tmp_path, source)
    assert any(each.startswith("`average.update(model)` in the loop is left out") for each in left)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "there is no file {path}"),
        ("def broken(:\n", "{path}, line 1: not valid Python: "),
        ("x = 1\n\n\nclass Measured:\n    pass\n", "{path} already has a class Measured, in line 4"),
        ("x = '\0'\n", "{path}: not valid Python: "),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--write"]])
def test_a_script_that_cannot_be_read_is_refused_in_a_sentence(
    source: str | None, said: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    if source is not None:
        path.write_text(source)
    assert run(["init", str(path), *flags]) == 2
    out, message = capsys.readouterr()
    assert out == ""
    assert message.startswith("ddpbench: " + said.format(path=path).rpartition(", line")[0])
    assert message.count("\n") == 1
    assert source is None or path.read_text() == source


def test_a_notebook_and_its_commands_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text('{"cells": []}', encoding="utf-8")
    assert run(["init", str(path)]) == 2
    said = f"ddpbench: {path} is a notebook: export it (jupyter nbconvert --to script), and give the script\n"
    assert capsys.readouterr().err == said
    script = tmp_path / "train.py"
    for line in ("%matplotlib inline", "!pip install tqdm"):
        script.write_text(f"import torch\n{line}\n", encoding="utf-8")
        assert run(["init", str(script)]) == 2
        wanted = (
            f"{script}, line 2: not valid Python: invalid syntax (remove the notebook's command `{line}`)"
        )
        assert wanted in capsys.readouterr().err


@pytest.mark.ranks
def test_a_script_with_relative_imports_is_tried_and_named_in_its_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "src" / "mine" / "loops"
    folder.mkdir(parents=True)
    whole = (EXAMPLES / "train_before.py").read_text(encoding="utf-8")
    network, start, training = whole.partition("def train_epoch")
    (folder.parent / "data.py").write_text(network, encoding="utf-8")
    top = (
        "import argparse, time\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n"
    )
    script = folder / "train.py"
    script.write_text(
        f"{top}from ..data import Ratings, Recommender\n\n\n{start}{training}", encoding="utf-8"
    )
    assert run(["init", str(script)]) == 0
    _, said = capsys.readouterr()
    assert said.endswith(
        f"try it in {tmp_path / 'src'}: ddpbench sweep quick --workload mine.loops.train:Measured\n"
    )
    monkeypatch.chdir(tmp_path / "src")
    (tmp_path / "src" / "mine" / "__init__.py").touch()
    assert run(["init", "mine/loops/train.py"]) == 0
    assert "try it: ddpbench sweep quick --workload mine.loops.train:Measured\n" in capsys.readouterr().err


@pytest.mark.ranks
def test_the_class_is_printed_and_where_it_goes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / "train_before.py"
    before = path.read_text()
    assert run(["init", str(path)]) == 0
    out, message = capsys.readouterr()
    ast.parse(out)
    assert out.startswith("class Measured:\n")
    assert f'goes into {path} before `if __name__ == "__main__":`, line 85; --write inserts it' in message
    assert f"try it: ddpbench sweep quick --workload {path}:Measured" in message
    assert path.read_text() == before


def test_write_inserts_it_above_the_guard_and_its_comment(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = textwrap.dedent(MIN_GPT).replace("if __name__", "# starts here\nif __name__")
    path.write_bytes(source.replace("\n", "\r\n").encode())
    assert run(["init", str(path), "--write"]) == 1  # mingpt is not installed
    text = path.read_bytes().decode()
    assert text.count("\n") == text.count("\r\n")
    head, _, tail = text.replace("\r\n", "\n").partition("\n\n\nclass Measured:")
    assert head == source.partition("\n# starts here")[0].rstrip()
    assert tail.endswith("\n\n\n# starts here" + source.partition("# starts here")[2])
    ast.parse(text)


def test_a_model_that_its_function_moves_is_still_the_one_it_was_given(tmp_path: Path) -> None:
    text, left = written(
        tmp_path,
        """
        from torch import optim
        from torch.nn import functional as F
        from parts import Net, loader_of, pairs

        def train(model, loader, device):
            model = model.to(device)
            optimizer = optim.Adam(model.parameters())
            for x, y in loader:
                F.mse_loss(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
                optimizer.zero_grad()

        if __name__ == "__main__":
            train(Net(3), loader_of(pairs), "cuda:0")
        """,
    )
    found = methods(text)
    assert "return Net(3)" in found["model"]
    assert found["loss"].endswith("x, y = batch\n    return F.mse_loss(model(x), y)")
    assert left == ["dataset(): return the dataset: a sample for each index, not yet a batch."]
