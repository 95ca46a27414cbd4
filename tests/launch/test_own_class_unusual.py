"""`ddpbench init` on loops that do not clear, go backward, update and schedule once per batch."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.own_class import Written, inserted, read_script, written_class
from ddpbench.launch.own_class.dropped import DONE

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

def data():
    return TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.body(x))

def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    kept = {p: p.detach().clone() for p in model.parameters()}
    done = 0
    for epoch in range(3):
        EPOCH
        for x, y in DataLoader(data(), batch_size=8):
            BATCH

if __name__ == "__main__":
    main()
"""
USUAL = """
loss = F.cross_entropy(model(x), y)
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


def written(tmp_path: Path, batch: str, epoch: str = "pass") -> Written:
    text = HEAD.replace("        EPOCH", textwrap.indent(epoch.strip(), " " * 8))
    if "clear(optimizer)" in batch:
        text = text.replace("def main", "def clear(optimizer):\n    optimizer.zero_grad()\n\ndef main")
    text = text.replace("            BATCH", textwrap.indent(textwrap.dedent(batch).strip(), " " * 12))
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return written_class(read_script(path))


def methods(found: Written) -> dict[str, str]:
    made = ast.parse(found.text).body[0]
    assert isinstance(made, ast.ClassDef)
    return {each.name: ast.unparse(each) for each in made.body if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize(
    "clearing",
    [
        "optimizer.zero_grad()",
        "model.zero_grad(set_to_none=False)",
        "clear(optimizer)",
        "for p in model.parameters():\n    p.grad = None",
        "if done % 2 == 0:\n    optimizer.zero_grad()",
        "[p.grad.zero_() for p in model.parameters() if p.grad is not None]",
    ],
)
def test_gradients_that_are_cleared_in_some_way_are(tmp_path: Path, clearing: str) -> None:
    found = written(tmp_path, USUAL.replace("optimizer.zero_grad()", clearing))
    assert not any("when to clear gradients" in each for each in found.left), found.left


@pytest.mark.parametrize(
    ("epoch", "when"),
    [("optimizer.zero_grad()", "outside the loop over batches, in line"), ("pass", "nowhere")],
)
def test_gradients_that_no_batch_clears_are_a_line_to_fill_in(tmp_path: Path, epoch: str, when: str) -> None:
    found = written(tmp_path, USUAL.replace("optimizer.zero_grad()", "pass"), epoch)
    assert found.is_open
    (line,) = [each for each in found.left if "when to clear gradients" in each]
    assert when in line


@pytest.mark.parametrize(
    "backward", ["loss.backward(inputs=list(model.head.parameters()))", "loss.backward(torch.tensor(0.5))"]
)
def test_a_backward_with_arguments_of_its_own_is_kept(tmp_path: Path, backward: str) -> None:
    found = methods(written(tmp_path, USUAL.replace("loss.backward()", backward)))
    assert backward in found["step"]


@pytest.mark.parametrize("backward", ["loss.backward(retain_graph=True)", "accelerator.backward(loss)"])
def test_a_backward_of_the_whole_loss_is_left_to_the_strategy(tmp_path: Path, backward: str) -> None:
    found = methods(written(tmp_path, USUAL.replace("loss.backward()", backward)))
    assert found["loss"].endswith("return F.cross_entropy(model(x), y)")


def test_a_schedule_that_not_every_update_moves_on_is_kept(tmp_path: Path) -> None:
    found = methods(written(tmp_path, f"{USUAL}done += 1\nif done % 10 == 0:\n    scheduler.step()"))
    assert "if self.done % 10 == 0:" in found["step"]
    assert "loss" in methods(written(tmp_path, f"{USUAL}scheduler.step()"))


def test_clipping_under_a_condition_and_a_second_update_are_kept(tmp_path: Path) -> None:
    clip = "if epoch > 0:\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()"
    found = methods(written(tmp_path, USUAL.replace("optimizer.step()", clip)))
    assert "if epoch > 0:" in found["step"]
    assert "before_update" not in found
    found = methods(written(tmp_path, f"{USUAL}optimizer.step()"))
    assert found["step"].count("optimizer.step()") == 2
    plain = methods(written(tmp_path, USUAL.replace("optimizer.step()", clip.replace("epoch > 0", "True"))))
    assert "clip_grad_norm_" in plain["before_update"]


def test_batches_that_the_script_skips_are_noted(tmp_path: Path) -> None:
    skip = "if len(x) < 4:\n    continue\n"
    found = written(tmp_path, f"{skip}{USUAL}if done:\n    continue\nprint(loss.item())")
    assert found.notes == ["The script skips a batch where `len(x) < 4` (line 27); the class trains on all."]
    assert not written(tmp_path, USUAL).notes


def test_weights_that_the_keys_of_a_dict_are_are_followed(tmp_path: Path) -> None:
    slow = "with torch.no_grad():\n    for p, slow in kept.items():\n        p.copy_(slow)"
    found = written(tmp_path, f"{USUAL}{slow}")
    assert found.is_open
    assert any("`p.copy_(slow)`" in each for each in found.left)
    kept = "for p, slow in kept.items():\n    slow.copy_(p.detach())"
    assert not written(tmp_path, f"{USUAL}{kept}").is_open


def test_a_loss_that_is_made_in_pieces_is_noted(tmp_path: Path) -> None:
    pieces = """
    optimizer.zero_grad()
    for a, b in zip(x.chunk(2), y.chunk(2)):
        loss = F.cross_entropy(model(a), b) / 2
        loss.backward()
    optimizer.step()
    """
    assert written(tmp_path, pieces).notes == [
        "step() returns only the last `loss` of its loop, not the loss of the whole batch."
    ]


def test_a_type_that_the_script_sets_is_a_setting_of_the_experiment(tmp_path: Path) -> None:
    found = written(tmp_path, USUAL, "torch.set_default_dtype(torch.float64)")
    assert [(each.key, each.value) for each in found.settings] == [("base.dtype", "float64")]


def test_a_model_that_is_put_into_evaluation_is_a_line_to_fill_in(tmp_path: Path) -> None:
    found = written(tmp_path, USUAL, "model.eval()")
    assert found.left == ["model(): do there what line 24 does: `model.eval()`."]
    assert not written(tmp_path, USUAL, "model.eval()\nmodel.train()").is_open
    assert written(tmp_path, USUAL, "model.train(False)").left == [
        "model(): do there what line 24 does: `model.train(False)`."
    ]


@pytest.mark.parametrize("change", ["model.eval()", "model.train(mode=False)"])
def test_a_model_that_the_loop_puts_into_evaluation_is_a_line_to_fill_in(change: str, tmp_path: Path) -> None:
    found = written(tmp_path, USUAL + change)
    assert [each.split(" line")[0] for each in found.left] == ["loss(): do there what"], found.left


@pytest.mark.parametrize(
    "cast", ["model.to(torch.float64)", "model.to(x.device, dtype=torch.bfloat16)", "model.half()"]
)
def test_a_model_that_is_cast_is_a_line_to_fill_in(tmp_path: Path, cast: str) -> None:
    found = written(tmp_path, USUAL, cast)
    assert found.left == [f"model(): do there what line 24 does: `{cast}`."]
    assert not written(tmp_path, USUAL, "model.to('cuda')\nmodel.float()").is_open


def test_a_statement_of_the_scripts_loop_is_not_one_of_the_method(tmp_path: Path) -> None:
    tried = f"try:\n{textwrap.indent(USUAL.strip(), '    ')}\nexcept RuntimeError:\n    continue"
    found = written(tmp_path, tried)
    assert any("`continue` is outside any loop of the method" in each for each in found.left)
    compile(found.text, "class", "exec")


def test_a_class_that_python_would_not_take_is_not_inserted(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(RequestError, match="would not be valid Python"):
        inserted(read_script(path), "class Measured:\n    def step(self):\n        continue\n")
    assert "class Measured" in inserted(read_script(path), "class Measured:\n    batch = 4\n")


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ("parser.set_defaults(lr=0.5)\nargs = parser.parse_args()", "lr=0.5"),
        ("args = parser.parse_args(['--lr', '0.3'])", "lr = ..."),
        ("args = parser.parse_args('--lr 0.3'.split())", "lr = ..."),
        ("args = parser.parse_args(['--other=1'])", "lr=0.1"),
        ("args = parser.parse_args([])", "lr=0.1"),
        ("args = parser.parse_args(args=None)", "lr=0.1"),
    ],
)
def test_what_a_script_gives_its_options_comes_before_their_defaults(
    tmp_path: Path, options: str, rate: str
) -> None:
    head = f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=0.1)\n{options}\n"
    text = HEAD.replace("lr=0.1", "lr=args.lr").replace("EPOCH", "pass")
    text = text.replace("            BATCH", textwrap.indent(USUAL.strip(), " " * 12))
    text = text.replace("def main():\n", "def main():\n" + textwrap.indent(head, "    "))
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    assert rate in written_class(read_script(path)).text


def test_a_function_that_is_named_after_a_device_is_called(tmp_path: Path) -> None:
    helper = "def to_device(batch, device):\n    x, y = batch\n    return x.to(device) / 255, y\n\n"
    text = HEAD.replace("EPOCH", "pass").replace("for x, y in", "for batch in")
    moved = 'x, y = to_device(batch, "cpu")\n' + USUAL.strip()
    text = text.replace("            BATCH", textwrap.indent(moved, " " * 12))
    path = tmp_path / "train.py"
    path.write_text(text.replace("def main", helper + "def main"), encoding="utf-8")
    assert "x, y = to_device(batch, 'cpu')" in methods(written_class(read_script(path)))["loss"]


PSEUDO = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def label(model, x):
        model.eval()
        with torch.no_grad():
            t = model(x)
        model.train()
        return t

    class Trainer:
        def __init__(self):
            self.model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))

        def label(self, x):
            self.model.eval()
            t = self.model(x).detach()
            self.model.train()
            return t

        def fit(self):
            model = self.model
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8):
                FIRST
                loss = (model(x) - y).square().mean() + (model(x) - t).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                LAST

    if __name__ == "__main__":
        Trainer().fit()
"""


def with_label(tmp_path: Path, first: str, last: str = "pass") -> Written:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PSEUDO).replace("FIRST", first).replace("LAST", last))
    return written_class(read_script(path))


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("model.eval(); t = model(x); model.train()", "model.eval()"),
        (
            "self.model.train(False); t = self.model(x).detach(); self.model.train()",
            "self.model.train(False)",
        ),
        ("model[1].eval(); t = model(x); model[1].train()", "model[1].eval()"),
    ],
)
def test_a_target_that_is_computed_in_evaluation_is_to_be_filled_in(
    first: str, said: str, tmp_path: Path
) -> None:
    found = with_label(tmp_path, first)
    line = 1 + (tmp_path / "train.py").read_text().split("\n").index(f"            {first}")
    assert f"        ...  # what line {line} does: {said}" in found.text
    assert found.left == [f"loss(): do there what line {line} does: `{said}`."]
    assert all(each.line != line for each in found.dropped if each.group == DONE)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("t = label(model, x)", "pass"),
        ("t = self.label(x)", "pass"),
        ("model.train(); t = x", "model.eval(); print(model(x)); model.train()"),
        ("model.train(); t = x", "model.eval(); print(model(x))"),
    ],
)
def test_a_function_that_evaluates_and_a_validation_leave_nothing_to_fill_in(
    first: str, last: str, tmp_path: Path
) -> None:
    found = with_label(tmp_path, first, last)
    assert found.left == []
    assert not found.is_open
