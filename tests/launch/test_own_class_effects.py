"""`ddpbench init` on scripts that change their model, data, optimizer or state in a way that the class does not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class

SCRIPT = """
    import copy
    import time
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from elsewhere import adapt, averages, count_flops, writer

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
        def forward(self, x):
            return self.f(x)
        def slim(self):
            self.f[2] = nn.Identity()
        def describe(self):
            return len(self.f)

    class Low(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
        def forward(self, x):
            return self.base(x)

    class Meter:
        def __init__(self):
            self.mean, self.n = torch.zeros(1), 0
        def push(self, value):
            self.mean.mul_(0.9).add_(0.1 * value)
            self.n += 1
        def read(self):
            return self.n

    class Average:
        def __init__(self, model):
            self.kept = {name: value.clone() for name, value in model.state_dict().items()}
        def follow(self, model):
            for name, value in model.state_dict().items():
                self.kept[name].mul_(0.9).add_(value, alpha=0.1)

    class Best:
        def __call__(self, model, rank=0):
            self.kept = copy.deepcopy(model.state_dict())
            if rank:
                model.rank = rank

    class Scaled:
        def __init__(self, inner):
            self.inner = inner
        def step(self):
            self.inner.step()
        def zero_grad(self):
            self.inner.zero_grad()

    def inject(module):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Low(child))
            else:
                inject(child)

    def inject_all(nets):
        for net in nets:
            inject(net)

    def quiet(module):
        for each in module.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0

    def size(module):
        return sum(p.numel() for p in module.parameters())

    def validate(module, loader):
        module.eval()
        with torch.no_grad():
            found = sum(float(module(x).sum()) for x, _ in loader)
        module.train()
        return found

    def scale_(grads, by):
        for grad in grads:
            grad.mul_(by)

    def main():
        inputs = torch.randn(64, 8)
        data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
        loader = DataLoader(data, batch_size=8)
        model = Net()
        meter, averaged, seen = Meter(), Average(model), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        BEFORE
        for epoch in range(2):
            for x, y in loader:
                error = (model(x) - y).pow(2)
                loss = LOSS
                optimizer.zero_grad()
                loss.backward()
                BETWEEN
                optimizer.step()
                AFTER
            EPOCH
        END

    if __name__ == "__main__":
        main()
"""
PLACES = ("BEFORE", "BETWEEN", "AFTER", "EPOCH", "END")


def written(tmp_path: Path, loss: str = "error.mean()", **put: str) -> Written:
    text = textwrap.dedent(SCRIPT).replace("LOSS", loss)
    for place in PLACES:
        line = next(each for each in text.splitlines() if each.strip() == place)
        indent = line[: len(line) - len(line.lstrip())]
        text = text.replace(line, textwrap.indent(put.get(place, "pass"), indent), 1)
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return written_class(read_script(path))


def lines_of(tmp_path: Path, change: str) -> list[int]:
    """Return the lines of the script that equal the last line of a change."""
    lines = (tmp_path / "train.py").read_text(encoding="utf-8").splitlines()
    return [number for number, each in enumerate(lines, 1) if each.strip() == change.splitlines()[-1].strip()]


CHANGES = [
    ("BEFORE", "inject(model)", "model"),
    ("BEFORE", "inject_all([model])", "model"),
    ("BEFORE", "quiet(model.f)", "model"),
    ("BEFORE", "model.slim()", "model"),
    ("BEFORE", "adapt(model, rank=4)", "model"),
    ("BEFORE", "setattr(model, 'f', nn.Linear(8, 1))", "model"),
    ("BEFORE", "nn.utils.parametrizations.weight_norm(model.f[0])", "model"),
    ("BEFORE", "for p in model.parameters():\n    nn.init.normal_(p, std=0.02)", "model"),
    ("BEFORE", "for p in model.parameters():\n    p.register_hook(lambda g: g.clamp(-1, 1))", "model"),
    ("BEFORE", "for m in model.modules():\n    m.p = 0.5", "model"),
    ("BEFORE", "model.register_forward_hook(lambda *given: None)", "model"),
    ("BEFORE", "model.f[2].eval()", "model"),
    ("BEFORE", "for _ in range(2): model.apply(quiet)", "model"),
    ("AFTER", "model.apply(quiet)", "step"),
    ("AFTER", "optimizer.state.clear()", "step"),
    ("EPOCH", "optimizer.state.clear()", "optimizer"),
    ("AFTER", "[each.eval() for each in model.f.modules()]", "loss"),
    ("AFTER", "for each in model.modules():\n    each.eval()", "loss"),
    ("BEFORE", "{'lora': inject}['lora'](model)", "model"),
    ("BEFORE", "Best()(model.f[0], rank=4)", "model"),
    ("BEFORE", "Net.forward = lambda self, x: self.f(x)", "model"),
    ("EPOCH", "model.f[0].bias.requires_grad_(False)", "model"),
    ("BEFORE", "[p.data.zero_() for name, p in model.named_parameters()]", "model"),
    ("BEFORE", "optimizer.param_groups[0]['weight_decay'] = 0.1", "optimizer"),
    ("BEFORE", "for group in optimizer.param_groups:\n    group['momentum'] = 0.5", "optimizer"),
    ("BEFORE", "optimizer.add_param_group({'params': [nn.Parameter(torch.zeros(1))]})", "optimizer"),
    ("BEFORE", "optimizer.register_step_post_hook(lambda *given: None)", "optimizer"),
    ("BEFORE", "optimizer = Scaled(optimizer)", "optimizer"),
    ("BEFORE", "data.tensors = data.tensors[:1]", "dataset"),
    ("BEFORE", "inputs.mul_(2)", "dataset"),
    ("BEFORE", "loader.dataset.tensors[0].mul_(2)", "dataset"),
    (
        "BETWEEN",
        "for p in model.parameters():\n    p.grad = p.grad / (p.grad.norm() + 1e-6)",
        "before_update",
    ),
    ("BETWEEN", "scale_([p.grad for p in model.parameters()], 0.5)", "before_update"),
    (
        "BETWEEN",
        "grads = [p.grad for p in model.parameters()]\ntorch._foreach_mul_(grads, 0.5)",
        "before_update",
    ),
    ("AFTER", "model.f[0].weight.data.clamp_(-1, 1)", "step"),
    ("AFTER", "adapt(model)", "step"),
    ("EPOCH", "model.slim()", "model"),
]


@pytest.mark.parametrize(("place", "change", "method"), CHANGES, ids=[change for _, change, _ in CHANGES])
def test_what_a_script_does_and_the_class_does_not_is_to_be_filled_in(
    tmp_path: Path, place: str, change: str, method: str
) -> None:
    found = written(tmp_path, **{place: change})
    assert found.is_open
    message = [each for each in found.left if each.startswith(f"{method}(): do there what line ")]
    assert len(message) == 1, found.left
    assert int(message[0].split("what line ")[1].split()[0]) in lines_of(tmp_path, change)
    assert any(line.strip().startswith("...  # ") for line in found.text.splitlines())


@pytest.mark.parametrize(
    ("loss", "change"),
    [
        ("error.mean() / (1 + meter.n)", "meter.push(error.detach().mean())"),
        ("(error * (error.detach() > meter.mean)).mean()", "meter.push(error.detach().mean())"),
        ("error.mean() * meter.read()", "meter.push(1.0)"),
    ],
)
def test_state_that_a_method_changes_after_the_update_is_to_be_kept(
    tmp_path: Path, loss: str, change: str
) -> None:
    assert not written(tmp_path, loss).is_open
    found = written(tmp_path, loss, AFTER=change)
    assert found.is_open
    assert [each for each in found.left if each.startswith("step(): do there what line ")]
    (line,) = lines_of(tmp_path, change)
    assert f"for a step() in place of this loss(), what line {line} does: {change}" in found.text


def test_an_attribute_of_an_object_that_each_batch_sets_is_kept_with_the_object(tmp_path: Path) -> None:
    found = written(tmp_path, "error.mean() * meter.n", AFTER="meter.n = meter.n + 1")
    assert not found.is_open, found.left
    assert "loss = error.mean() * self.meter.n" in found.text
    assert "self.meter.n = self.meter.n + 1" in found.text


def test_an_entry_that_each_batch_sets_is_read_where_it_is_kept(tmp_path: Path) -> None:
    found = written(
        tmp_path, 'error.mean() * heat["t"]', BEFORE='heat = {"t": 1.0}', AFTER='heat["t"] *= 0.9'
    )
    assert not found.is_open, found.left
    assert 'error.mean() * self.heat["t"]' in found.text
    assert 'self.heat["t"] *= 0.9' in found.text


def test_a_criterion_that_is_changed_is_to_be_said(tmp_path: Path) -> None:
    before = "criterion = nn.MSELoss()"
    assert not written(tmp_path, "criterion(model(x), y)", BEFORE=before).is_open
    found = written(tmp_path, "criterion(model(x), y)", BEFORE=f"{before}\ncriterion.reduction = 'sum'")
    assert "criterion = ...  # in the script, nn.MSELoss(), changed in line" in found.text
    assert found.is_open


def test_a_constructor_that_cannot_be_taken_leaves_something_to_fill_in(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        'error.mean() * heat["t"]',
        BEFORE='heat = {"t": 1.0}\nkept = list(model.parameters())',
        AFTER='heat["t"] *= 0.9\nfor p in kept:\n    p.data = p.data.clamp(-1, 1)',
    )
    assert any(each.startswith("__init__(): ") for each in found.left)
    assert found.is_open


def test_what_is_done_to_an_optimizer_where_it_is_made_with_its_model_is_to_be_filled_in(
    tmp_path: Path,
) -> None:
    setup = """
        def setup(rate):
            model = Net()
            model.f[2] = nn.Identity()
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for group in optimizer.param_groups:
                group["momentum"] = 0.9
            return model, optimizer

        def main():
    """
    written(tmp_path)
    path = tmp_path / "train.py"
    text = path.read_text(encoding="utf-8").replace("def main():\n", textwrap.dedent(setup).lstrip(), 1)
    text = text.replace("    model = Net()\n    meter", "    model, optimizer = setup(0.1)\n    meter")
    text = text.replace("    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", "")
    path.write_text(text, encoding="utf-8")
    found = written_class(read_script(path))
    assert "return setup(0.1)[0]" in found.text
    assert [each.partition(" does: ")[2] for each in found.left] == ["`group['momentum'] = 0.9`."]


def test_what_a_function_does_to_a_batch_in_place_is_to_be_filled_in(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "train.py"
    error = "            error = (model(x) - y).pow(2)\n"
    text = path.read_text(encoding="utf-8").replace(
        error, f"            scale_([x], 2)\n{error}            error.register_hook(print)\n"
    )
    path.write_text(text, encoding="utf-8")
    found = written_class(read_script(path))
    assert [each.partition(" does: ")[2] for each in found.left] == [
        "`scale_([x], 2)`.",
        "`error.register_hook(print)`.",
    ]


@pytest.mark.parametrize(
    ("place", "harmless"),
    [
        ("BEFORE", "print(model, size(model), sum(p.numel() for p in model.parameters()))"),
        ("BEFORE", "model.train()\nmodel.to('cpu')"),
        ("BEFORE", "count_flops(model)"),
        ("BEFORE", "found = model.describe()"),
        ("BEFORE", "twin = copy.deepcopy(model)\ninject(twin)"),
        ("BEFORE", "other = Net()\nquiet(other)"),
        ("BEFORE", "if False:\n    inject(model)"),
        ("AFTER", "seen.append(loss.item())"),
        ("AFTER", "meter.push(error.detach().mean())"),
        ("AFTER", "norm = sum(p.grad.norm() for p in model.parameters())"),
        ("AFTER", "print(time.time(), optimizer.param_groups[0]['lr'])"),
        ("AFTER", "averaged.follow(model)"),
        (
            "BEFORE",
            "for p in Net().parameters():\n    p.requires_grad_(False)\nlist(p for p in model.parameters())",
        ),
        ("AFTER", "for p in model.parameters():\n    writer.add_histogram('p', p)"),
        ("EPOCH", "Best()(model)"),
        ("EPOCH", "averages.update_parameters(model)"),
        ("EPOCH", "print(validate(model, loader))"),
        ("EPOCH", "torch.save({'model': model.state_dict(), 'opt': optimizer.state_dict()}, 'a.pt')"),
        ("END", "inject(model)"),
        ("END", "model.slim()"),
    ],
)
def test_what_changes_nothing_of_the_training_leaves_nothing_to_fill_in(
    tmp_path: Path, place: str, harmless: str
) -> None:
    found = written(tmp_path, **{place: harmless})
    assert not found.is_open, found.left


def test_the_length_of_a_batch_is_not_that_of_its_loader(tmp_path: Path) -> None:
    written(tmp_path, "error.sum() / len(x)")
    path = tmp_path / "train.py"
    text = path.read_text(encoding="utf-8").replace("in loader:", "in DataLoader(data, batch_size=8):")
    path.write_text(text, encoding="utf-8")
    found = written_class(read_script(path))
    assert not found.is_open, found.left
    assert "len(x)" in found.text
    assert "updates_per_epoch" not in found.text


def test_parameters_that_a_script_sorts_into_lists_are_no_log(tmp_path: Path) -> None:
    change = (
        "decay, rest = [], []\nfor p in model.parameters():\n    (rest if p.ndim < 2 else decay).append(p)"
    )
    found = written(tmp_path, BEFORE=change)
    (group,) = {each.group for each in found.dropped if ".append(p)" in each.text}
    assert group == "other statements"


def test_an_argument_of_a_method_is_not_assigned_to(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = """
        import torch
        from torch import nn

        class Runner:
            def __init__(self, **given):
                self.__dict__.update(given)
            def run(self):
                for x, y in self.loader:
                    loss = nn.functional.mse_loss(self.model(x), y)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()

        if __name__ == "__main__":
            net = nn.Linear(8, 1)
            Runner(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), loader=[]).run()
    """
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    found = written_class(read_script(path))
    assert found.is_open
    assert "model = ..." not in found.text
    assert (
        "...  # check that the argument `model` is what is meant here: as in the script, in run()"
        in found.text
    )


def test_a_weight_decay_is_no_schedule(tmp_path: Path) -> None:
    found = written(tmp_path, BEFORE="optimizer.param_groups[0]['weight_decay'] = 0.1")
    assert [each.group for each in found.dropped if "weight_decay" in each.text] == ["other statements"]
    found = written(tmp_path, EPOCH="optimizer.param_groups[0]['lr'] = 0.1 / (epoch + 1)")
    assert [each.group for each in found.dropped if "'lr'" in each.text] == ["learning-rate schedule"]


CALLBACKS = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Bus:
        def __init__(self):
            self.found = {}
        def on(self, name):
            return lambda f: self.found.setdefault(name, []).append(f) or f
        def emit(self, name, *given, **named):
            for f in self.found.get(name, []):
                f(*given, **named)

    bus, HOOKS = Bus(), []

    class Context:
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer

    class Teller:
        def after(self, trainer):
            print(trainer.hooks)

    class Trainer:
        def __init__(self):
            self.model = nn.Linear(8, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
            self.hooks, self.loggers, self.teller = [], [], Teller()
        def on_step(self, f):
            self.hooks.append(f)
            return f
        def call(self, name):
            for each in self.hooks:
                getattr(each, name)(self)
        def fit(self):
            model, context = self.model, Context(self.model, self.optimizer)
            for hook in self.hooks:
                hook.begin(self)
            for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8):
                loss = (model(x) - y).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                BETWEEN
                self.optimizer.step()

    def main():
        trainer = Trainer()
        @trainer.on_step
        def clip(of):
            nn.utils.clip_grad_norm_(of.model.parameters(), 0.1)
        trainer.fit()

    if __name__ == "__main__":
        main()
"""


def with_callback(tmp_path: Path, line: str) -> Written:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(CALLBACKS).replace("BETWEEN", line), encoding="utf-8")
    return written_class(read_script(path))


@pytest.mark.parametrize(
    "line",
    [
        "for hook in self.hooks: hook(self)",
        "for hook in self.hooks: hook.after_backward(self)",
        "for hook in HOOKS: hook()",
        "for hook in HOOKS: hook(context)",
        "HOOKS[0](self)",
        "self.call('after_backward')",
        "bus.emit('backward', model)",
        "bus.emit('backward', model=model)",
    ],
)
def test_what_a_registered_callback_may_do_to_gradients_is_to_be_filled_in(line: str, tmp_path: Path) -> None:
    found = with_callback(tmp_path, line)
    assert "    def before_update(self, model):\n        ...  # what line 44 does: " in found.text
    assert found.is_open


@pytest.mark.parametrize(
    "line",
    [
        "for each in self.loggers: each.write(self)",
        "self.teller.after(self)",
        "print(self)",
        "bus.emit('backward', loss)",
    ],
)
def test_what_logs_a_trainer_leaves_nothing_to_fill_in(line: str, tmp_path: Path) -> None:
    assert not with_callback(tmp_path, line).is_open
