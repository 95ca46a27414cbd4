"""The class that `ddpbench init` writes for common shapes of scripts: it has their losses, or what differs is said."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from ddpbench.errors import RequestError
from ddpbench.launch.own_class import Written, read_script, written_class
from ddpbench.launch.own_class.dropped import SCHEDULE
from tests.launch.test_init_agrees import DATA, check_losses, written

MAIN = """
import copy, itertools, math, os
from dataclasses import dataclass, field
from functools import partial
from torch.utils.data import Dataset
TOP
def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    BEFORE
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            STEP
        LAST

if __name__ == "__main__":
    main()
"""
UPDATE = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()"
PLAIN = f"loss = F.mse_loss(model(x), y)\n{UPDATE}"


def source_of(top: str = "", before: str = "pass", step: str = PLAIN, last: str = "pass") -> str:
    made = DATA + MAIN.replace("TOP", top)
    for word, text in (
        ("BEFORE", before),
        ("STEP", step.replace("PLAIN", PLAIN).replace("UPDATE", UPDATE)),
        ("LAST", last),
    ):
        indent = re.search(rf"^( *){word}$", made, re.MULTILINE)
        assert indent is not None
        made = made.replace(f"{indent[0]}\n", f"{textwrap.indent(text, indent[1])}\n")
    return made


def line_of(source: str, text: str, place: int = -1) -> int:
    """Return the number of the line that is `text` without its indent: the last one, or the one at `place` of these."""
    return [n for n, line in enumerate(source.splitlines(), 1) if line.strip() == text][place]


TRAINER = """
TOP
class Trainer(BASES):
    def __init__(self):
        FIRST
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    OTHER
    def fit(self):
        for epoch in range(2):
            for x, y in self.loader:
                loss = F.mse_loss(self.model(x), y) * SCALE
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                LATER

if __name__ == "__main__":
    Trainer().fit()
"""


def trainer(
    *,
    top: str = "",
    bases: str = "object",
    first: str = "pass",
    other: str = "",
    scale: str,
    later: str = "pass",
) -> str:
    made = TRAINER.replace("TOP", top).replace("BASES", bases).replace("FIRST", first)
    made = made.replace("    OTHER", textwrap.indent(other, "    ")).replace("SCALE", scale)
    return DATA + made.replace("LATER", later)


def check(
    tmp_path: Path,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    named: str = r"\bline \d+|say what |cannot be used|return the dataset",
) -> Written:
    """Check that a class has the losses of its script, or that what is left to do or a note says what differs."""
    script, found = written(tmp_path, source)
    if found.is_open:
        assert re.search(named, "\n".join(found.left)), found.left
    elif not found.notes and not any(each.group == SCHEDULE for each in found.dropped):
        check_losses(script, found, monkeypatch)
    return found


def agrees(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a class is complete and has the losses of its script."""
    script, found = written(tmp_path, source)
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


SETTER = """
@property
def scale(self):
    return self._scale / (1 + self.seen)
@scale.setter
def scale(self, value):
    self._scale = value
"""
COMPUTED = "@property\ndef scale(self):\n    return 1.0 / (1 + self.seen)"
PROPERTIES = {
    "with a setter": trainer(
        first="self.seen = 0\n        self.scale = 0.5",
        other=SETTER,
        scale="self.scale",
        later="self.seen += 1",
    ),
    "without one": trainer(first="self.seen = 0", other=COMPUTED, scale="self.scale", later="self.seen += 1"),
    "over a base's value": trainer(
        top="class Base:\n    scale = 0.5",
        bases="Base",
        first="self.seen = 0",
        other=COMPUTED,
        scale="self.scale",
        later="self.seen += 1",
    ),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_is_not_the_value_that_it_was_set_to(name: str, tmp_path: Path) -> None:
    _, found = written(tmp_path, PROPERTIES[name])
    line = PROPERTIES[name][: PROPERTIES[name].index("def scale(self):")].count("\n") + 1
    assert found.left == [
        f"loss(): say what `scale` is (as in the script, in fit(); line {line} computes it at each read)."
    ]


COUNTING = """
class Counting:
    def tick(self):
        self.seen += 1
    def quiet(self):
        self.shown = 1
    def both(self):
        self.tick()

COUNT = {"n": 0}
def bump():
    COUNT["n"] += 1
def bump_too():
    bump()
def read():
    return COUNT["n"]
"""
ELSEWHERE = {
    "a method of an imported base": ("Counting", "self.tick()"),
    "a method through another": ("Counting", "self.both()"),
    "the base's own": ("Counting", "super().tick()"),
    "a base that is not there": ("Unread", "self.tick()"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_counter_that_an_imported_base_changes_is_to_be_done(name: str, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING, encoding="utf-8")
    base, does = ELSEWHERE[name]
    top = "from counting import Counting\nfrom elsewhere import Unread"
    _, found = written(
        tmp_path, trainer(top=top, bases=base, first="self.seen = 0", scale="1 / (1 + self.seen)", later=does)
    )
    assert found.is_open
    assert re.search(rf"step\(\): do there what line \d+ does: `{re.escape(does)}`", "\n".join(found.left)), (
        found.left
    )


def test_a_method_of_an_imported_base_that_changes_nothing_the_loop_reads_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    top = "from counting import Counting"
    agrees(tmp_path, trainer(top=top, bases="Counting", scale="0.5", later="self.quiet()"), monkeypatch)


@pytest.mark.parametrize("does", ["bump()", "bump_too()", "counting.bump()"])
def test_a_local_module_that_changes_its_own_values_is_to_be_done(does: str, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING, encoding="utf-8")
    top = "import counting\nfrom counting import COUNT, bump, bump_too, read"
    step = f"loss = F.mse_loss(model(x), y) / (1 + COUNT['n'])\nUPDATE\n{does}"
    source = source_of(top, step=step)
    _, found = written(tmp_path, source)
    assert f"step(): do there what line {line_of(source, does)} does: `{does}`." in found.left, found.left
    _, found = written(tmp_path, source_of(top, step=step.replace(does, "read()")))
    assert not found.is_open, found.whole


def test_a_script_named_without_a_folder_is_analysed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(source_of(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = written_class(read_script(Path("train.py")))
    assert not found.is_open, found.whole
    (tmp_path / "__init__.py").write_text(
        "def mse_loss():\n    COUNT.append(1)\nCOUNT = []", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path.parent)
    found = written_class(read_script(Path(tmp_path.name, "train.py")))
    assert not found.is_open, found.whole


@pytest.mark.parametrize(
    ("imports", "does"),
    [
        ("from . import counting\nfrom .counting import COUNT", "counting.bump()"),
        ("from .counting import COUNT, bump", "bump()"),
        ("from ..above import COUNT, bump", "bump()"),
        ("from .. import above\nfrom ..above import COUNT", "above.bump()"),
        ("from ..more.other import COUNT, bump", "bump()"),
    ],
)
def test_a_module_imported_relatively_that_changes_its_values_is_to_be_done(
    imports: str, does: str, tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (tmp_path / "more").mkdir()
    for each in (folder / "counting.py", tmp_path / "above.py", tmp_path / "more" / "other.py"):
        each.write_text(COUNTING, encoding="utf-8")
    source = source_of(imports, step=f"loss = F.mse_loss(model(x), y) / (1 + COUNT['n'])\nUPDATE\n{does}")
    _, found = written(folder, source)
    assert f"step(): do there what line {line_of(source, does)} does: `{does}`." in found.left, found.left


@pytest.mark.parametrize("base", ["Base", "Middle"])
@pytest.mark.parametrize("does", ["self.tick()", "super().tick()"])
def test_a_base_that_changes_the_model_is_to_be_done(base: str, does: str, tmp_path: Path) -> None:
    top = "class Base:\n    def tick(self):\n        self.model.weight.data.mul_(0.9)\nclass Middle(Base):\n    pass"
    source = trainer(top=top, bases=base, scale="0.5", later=does)
    _, found = written(tmp_path, source)
    assert found.is_open
    wanted = f"do there what line {line_of(source, does)} does: `{does}`"
    assert any(wanted in each for each in found.left), found.left


GLOBALS = {
    "each batch": (
        "SCALE = 1.0\ndef advance():\n    global SCALE\n    SCALE *= 0.5",
        "pass",
        "\nadvance()",
        "step(): do there what line {} does: `advance()` (line {}: `SCALE *= 0.5`).",
    ),
    "once": (
        "SCALE = 1.0\ndef setup():\n    global SCALE, other\n    other = 2\n    SCALE = 0.5",
        "setup()",
        "",
        "loss(): use what line {} sets once, before the loop: `setup()` (line {}: `SCALE = 0.5`).",
    ),
}


@pytest.mark.parametrize("name", GLOBALS)
def test_a_function_that_sets_a_global_is_named_with_the_line_that_sets_it(name: str, tmp_path: Path) -> None:
    top, before, later, wanted = GLOBALS[name]
    step = f"loss = F.mse_loss(model(x), y) * SCALE\nUPDATE{later}"
    source = source_of(top, before, step)
    _, found = written(tmp_path, source)
    call, sets = ("setup()", "SCALE = 0.5") if before != "pass" else ("advance()", "SCALE *= 0.5")
    assert found.left == [wanted.format(line_of(source, call), line_of(source, sets))]


ENDS = {
    "match bool(x.sum() > 0):\n    case True:\n        END": "where `bool(x.sum() > 0)` matches `True`",
    "try:\n    assert x.sum() < 0\nexcept AssertionError:\n    END": "after `AssertionError`",
    "try:\n    assert x.sum() < 0\nexcept:\n    END": "after an exception",
    "while x.sum() > 0:\n    break\nelse:\n    END": "where the loop of line LINE ends without `break`",
    "with torch.no_grad():\n    if x.sum() > 0:\n        END": "where `x.sum() > 0`",
    "if x.sum() > 0:\n    pass\nelse:\n    END": "where `not x.sum() > 0`",
}
DOES = {
    "break": ("ends its loop over batches", "goes through all"),
    "continue": ("skips a batch", "trains on all"),
    "return": ("ends its loop over batches, and main() with it,", "goes through all"),
}


@pytest.mark.parametrize("end", DOES)
@pytest.mark.parametrize("does", ENDS)
def test_a_batch_that_ends_the_loop_or_is_skipped_is_noted(does: str, end: str, tmp_path: Path) -> None:
    source = source_of(step=f"{does.replace('END', end)}\n{PLAIN}")
    line = line_of(source, end)
    _, found = written(tmp_path, source)
    first, goes = DOES[end]
    when = ENDS[does].replace("LINE", str(line - 3))
    assert f"The script {first} {when} (line {line}); the class {goes}." in found.notes


def test_a_loop_over_one_batch_is_noted(tmp_path: Path) -> None:
    source = source_of(step=f"{PLAIN}\nbreak")
    _, found = written(tmp_path, source)
    where = f"after the first batch (line {line_of(source, 'break')})"
    assert found.notes == [f"The script ends its loop over batches {where}; the class goes through all."]
    _, found = written(
        tmp_path, source_of(step=f"{PLAIN}\nwhile True:\n    break\nfor _ in x:\n    continue")
    )
    assert found.notes == []


WALRUS = {
    "in the loss": "loss = F.mse_loss(model(x), y) * (scale := scale * 0.5)\nUPDATE",
    "in a condition": "if (scale := scale * 0.5) < 0.2:\n    y = y * 0.5\nloss = F.mse_loss(model(x), y)\nUPDATE",
    "first of several": "y = y * ((scale := scale * 0.5) and scale)\nloss = F.mse_loss(model(x), y)\nUPDATE",
}


@pytest.mark.parametrize("name", WALRUS)
def test_an_assignment_in_an_expression_changes_what_the_script_keeps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(tmp_path, source_of(before="scale = 1.0", step=WALRUS[name]), monkeypatch)


@pytest.mark.parametrize(
    "does",
    [
        "if i > 3 and (scale := scale * 0.5) < 0.2:\n    y = y * 0.5",
        "while (scale := scale * 0.5) > 0.2:\n    y = y * 0.5",
        "y = y * scale * (scale := scale * 0.5)",
        "y = y * (1.0 if i > 3 else (scale := scale * 0.5))",
    ],
)
def test_an_assignment_in_the_middle_of_an_expression_is_refused_with_its_line(
    does: str, tmp_path: Path
) -> None:
    step = f"{does}\nloss = F.mse_loss(model(x), y)\nUPDATE"
    with pytest.raises(RequestError, match=r"train.py, line 23: `\(scale := \(scale \* 0.5\)\)` sets a name"):
        written(tmp_path, source_of(before="scale = 1.0", step=step))


NONLOCAL = {
    "a step": (
        (
            "seen = 0\ndef step(x, y):\n    nonlocal seen\n    seen += 1\n"
            "    loss = F.mse_loss(model(x), y) / seen\n    optimizer.zero_grad()\n    loss.backward()\n"
            "    optimizer.step()\n    return loss.item()"
        ),
        "step(x, y)",
    ),
    "a step whose loss is added up": (
        (
            "total = 0.0\ndef step(x, y):\n    nonlocal total\n    loss = F.mse_loss(model(x), y)\n"
            "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    total += loss.item()"
        ),
        "step(x, y)",
    ),
    "a weight": (
        "seen = 0\ndef weight():\n    nonlocal seen\n    seen += 1\n    return 1.0 / seen",
        "loss = F.mse_loss(model(x), y) * weight()\nUPDATE",
    ),
}


@pytest.mark.parametrize("name", NONLOCAL)
def test_a_nested_function_changes_what_the_script_keeps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, step = NONLOCAL[name]
    agrees(tmp_path, source_of(before=before, step=step), monkeypatch)


def test_a_nested_step_that_cannot_replace_its_call_names_the_line(tmp_path: Path) -> None:
    before, step = NONLOCAL["a step"]
    source = source_of(before=before, step=f"if i > 3:\n    {step}\nelse:\n    {step}")
    _, found = written(tmp_path, source)
    line = line_of(source, "loss.backward()", 0)
    why = f"line {line} calls backward() on it, in a function that the step calls"
    assert found.left == [f"step(): say what `loss` is ({why})."]


def test_a_default_that_a_nested_function_changes_is_named(tmp_path: Path) -> None:
    before = "def scaled(loss, factor=[1.0]):\n    factor[0] *= 0.5\n    return loss * factor[0]"
    source = source_of(before=before, step="loss = scaled(F.mse_loss(model(x), y))\nUPDATE")
    _, found = written(tmp_path, source)
    assert f"line {line_of(source, before.splitlines()[0])} makes a default" in "\n".join(found.left)


SAM = """
class Twice(torch.optim.SGD):
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=0.1)
        self.zero_grad()
    def second_step(self):
        super().step()
        self.zero_grad()
"""
REGISTRY = """
MADE = {}
def register(name):
    def keep(function):
        MADE[name] = function
        return function
    return keep

@register("linear")
def linear(inputs):
    return nn.Linear(inputs, 1)
"""
REGISTERED = "model = MADE['linear'](4)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.05)"
AGREES: dict[str, tuple[str, str, str]] = {
    "a registry": (REGISTRY, REGISTERED, PLAIN),
    "an update in two steps": (
        SAM,
        "optimizer = Twice(model.parameters(), lr=0.05)",
        (
            "F.mse_loss(model(x), y).backward()\noptimizer.first_step()\n"
            "F.mse_loss(model(x), y).backward()\noptimizer.second_step()"
        ),
    ),
    "a match": (
        "",
        "kind = 'l1'",
        (
            "match kind:\n    case 'l1':\n        loss = F.l1_loss(model(x), y)\n    case _:\n"
            "        loss = F.mse_loss(model(x), y)\nUPDATE"
        ),
    ),
    "a vocabulary that is filled at import": (
        "WORDS = {}\nfor word in 'a b a c'.split():\n    WORDS.setdefault(word, len(WORDS))",
        (
            "size = len(WORDS)\nmodel = nn.Linear(size + 1, 1)\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)"
        ),
        PLAIN,
    ),
    "attributes that a class computes": (
        (
            "class Config(dict):\n    def __getattr__(self, name):\n"
            "        return self[name] * 2 if name == 'scale' else self[name]"
        ),
        "cfg = Config(scale=0.2)",
        "loss = F.mse_loss(model(x), y) * cfg.scale\nUPDATE",
    ),
    "a value that the first batch sets": (
        "",
        "first = True",
        ("if first:\n    mean = x.mean(0)\n    first = False\nloss = F.mse_loss(model(x - mean), y)\nUPDATE"),
    ),
    "training and test sets of the same tensors": (
        "",
        (
            "whole = torch.cat([X, X * 2])\nrest = TensorDataset(whole[64:], Y)\n"
            "loader = DataLoader(TensorDataset(whole[:64], Y), batch_size=8)"
        ),
        PLAIN,
    ),
}


@pytest.mark.parametrize("name", AGREES)
def test_a_common_shape_is_in_the_class(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(tmp_path, source_of(*AGREES[name]), monkeypatch)


def test_a_registry_that_the_training_fills_is_to_be_done(tmp_path: Path) -> None:
    before = f"keep = register('linear')\nkeep(lambda inputs: nn.Linear(inputs, 1, bias=False))\n{REGISTERED}"
    _, found = written(tmp_path, source_of(REGISTRY, before))
    assert found.is_open, found.whole


@pytest.mark.parametrize(
    "does",
    [
        "[(x * 2, y) for x, y in loader]",
        "list(loader)[::-1]",
        "sorted(loader, key=lambda batch: -batch[0].sum())",
        "list(itertools.islice(loader, 3))",
        "doubled(loader)",
    ],
)
def test_a_list_of_other_batches_than_the_loaders_is_to_be_said(does: str, tmp_path: Path) -> None:
    top = "def doubled(loader):\n    for x, y in loader:\n        yield x * 2, y"
    _, found = written(tmp_path, source_of(top, f"loader = {does}"))
    assert found.is_open, found.text
    assert "dataset(): " in "\n".join(found.left)


def test_the_number_of_a_batch_that_begins_again_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = written(tmp_path, source_of(step="loss = F.mse_loss(model(x), y) / (1 + i)\nUPDATE"))
    assert found.notes == [
        "The script's `i` begins at 0 in each epoch; the class counts batches on in `self.batches`."
    ]
    agrees(tmp_path, source_of(step="loss = F.mse_loss(model(x), y) * (1 + i % 2)\nUPDATE"), monkeypatch)


def test_a_sampler_over_other_samples_is_noted(tmp_path: Path) -> None:
    sampler = "sampler=torch.utils.data.SequentialSampler(range(16))"
    made = f"loader = DataLoader(TensorDataset(X, Y), batch_size=8, {sampler})"
    _, found = written(tmp_path, source_of(before=made))
    assert sampler in "\n".join(found.notes)


FACTORY = """
def make_step(model, optimizer, scale=1.0):
    TOP
    def step(x, y):
        loss = F.mse_loss(model(x), y) * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step
"""
METHOD = """
class Agent:
    def __init__(self, model, optimizer):
        self.net, self.opt = model, optimizer
    def NAME(self, x, y):
        loss = F.mse_loss(self.net(x), y) * 0.5
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss
"""
STEP = """
def train_on(model, optimizer, x, y):
    loss = F.mse_loss(model(x), y) * 0.5
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return RETURNS
"""
BY_VALUE: dict[str, tuple[str, str, str]] = {
    "a function that returns the step": (
        FACTORY.replace("TOP", "pass"),
        "train = make_step(model, optimizer, scale=0.5)",
        "train(x, y)",
    ),
    "a factory and a name like the step's": (
        FACTORY.replace("TOP", "pass"),
        "step = make_step(model, optimizer, 0.5)",
        "loss = step(x, y)",
    ),
    "a factory that returns two functions": (
        FACTORY.replace("TOP", "pass").replace("return step", "return step, lambda x: model(x)"),
        "train, evaluate = make_step(model, optimizer, 0.5)",
        "train(y=y, x=x)",
    ),
    "a step that is passed to a function": (
        FACTORY.replace("TOP", "pass") + "def go(do, x, y):\n    return do(x, y)",
        "train = make_step(model, optimizer, scale=0.5)",
        "train(x, y)",
    ),
    "another name for the step": (
        STEP.replace("RETURNS", "loss"),
        "do = train_on",
        "loss = do(model, optimizer, x, y)",
    ),
    "a method of an object": (
        METHOD.replace("NAME", "learn"),
        "agent = Agent(model, optimizer)",
        "agent.learn(x, y)",
    ),
    "an object that is called": (
        METHOD.replace("NAME", "__call__"),
        "agent = Agent(model, optimizer)",
        "loss = agent(x, y)",
    ),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_a_step_that_a_variable_holds_is_in_the_class(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(tmp_path, source_of(*BY_VALUE[name]), monkeypatch)


def test_a_factory_called_twice_has_the_arguments_of_the_step_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = "plain = make_step(model, optimizer)\ntrain = make_step(model, optimizer, scale=0.25)"
    agrees(tmp_path, source_of(FACTORY.replace("TOP", "pass"), before, "train(x, y)"), monkeypatch)


@pytest.mark.parametrize("top", ["model.weight.data.zero_()", "nn.init.ones_(model.weight)"])
def test_what_a_factory_does_to_the_model_is_to_be_done(top: str, tmp_path: Path) -> None:
    source = source_of(FACTORY.replace("TOP", top), "train = make_step(model, optimizer)", "train(x, y)")
    _, found = written(tmp_path, source)
    assert found.is_open, found.whole
    line = line_of(source, "train = make_step(model, optimizer)")
    assert f"model(): do there what line {line} does: `train = make_step(model, optimizer)`." in found.left


def test_a_count_in_a_factory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = FACTORY.replace("TOP", "seen = 0").replace(
        "loss = F", "nonlocal seen\n        seen += 1\n        loss = F"
    )
    source = source_of(
        factory.replace("* scale", "/ seen"), "train = make_step(model, optimizer)", "train(x, y)"
    )
    check(tmp_path, source, monkeypatch)


AROUND = {
    "a changed input": "x = x * 2\nCALL",
    "an input that is changed in place": "x.mul_(2)\nCALL",
    "an entry": "x[:, 0] = 0\nCALL",
    "an input changed by a condition": "if i > 2:\n    x = x / 2\nCALL",
    "two steps": "CALL\nCALL",
    "a step that only some batches make": "if i % 2:\n    CALL",
    "several steps per batch": "for _ in range(3):\n    CALL",
    "a clip after the call": "CALL\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
    "a schedule of some batches": "CALL\nif i % 2:\n    schedule.step()",
    "inputs of the last batch": "if i:\n    CALL_LAST\nlast = x",
}
CALLS = {
    "a function": (STEP.replace("RETURNS", "loss.item()"), "pass", "train_on(model, optimizer, x, y)"),
    "a function that returns the loss": (
        STEP.replace("RETURNS", "loss"),
        "pass",
        "loss = train_on(model, optimizer, x, y)",
    ),
    "a factory": (FACTORY.replace("TOP", "pass"), "train = make_step(model, optimizer)", "train(x, y)"),
    "a method": (METHOD.replace("NAME", "learn"), "agent = Agent(model, optimizer)", "agent.learn(x, y)"),
}


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("around", AROUND)
def test_what_a_loop_does_around_its_step_is_to_be_done(around: str, calls: str, tmp_path: Path) -> None:
    top, before, call = CALLS[calls]
    last = call.replace("x, y", "last, y")
    before += "\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)"
    step = AROUND[around].replace("CALL_LAST", last).replace("CALL", call)
    _, found = written(tmp_path, source_of(top, before, step))
    assert found.is_open, found.whole


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("around", ["x = x.to('cpu')\nCALL", "CALL\nseen = x", "CALL\ny = y * 2"])
def test_a_move_before_the_step_is_no_matter(
    around: str, calls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, before, call = CALLS[calls]
    agrees(tmp_path, source_of(top, before, around.replace("CALL", call)), monkeypatch)


@pytest.mark.parametrize("calls", CALLS)
def test_a_schedule_after_the_step_is_in_the_class(
    calls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, before, call = CALLS[calls]
    before += "\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)"
    agrees(tmp_path, source_of(top, before, f"{call}\nschedule.step()"), monkeypatch)


def test_a_step_that_no_loop_is_seen_to_call_is_described(tmp_path: Path) -> None:
    top = STEP.replace("RETURNS", "loss") + "KNOWN = {'plain': train_on}"
    source = source_of(top, step="KNOWN['plain'](model, optimizer, x, y)")
    _, found = written(tmp_path, source)
    line = line_of(source, "loss.backward()")
    wanted = "do what train_on() does with these arguments for one batch"
    assert (
        f"step(): {wanted} (line {line} calls backward()); return the loss. No loop that calls train_on() was found."
        in (found.left)
    )
    assert "def step(self, model, batch, optimizer):" in found.text
    assert "def optimizer(self, model):" in found.text


@pytest.mark.parametrize(
    "kept", ["loss = optimizer.step(closure)", "optimizer.step(closure)", "optimizer.step(closure=closure)"]
)
def test_the_loss_of_a_closure_is_the_step_s(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = "optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)"
    body = "optimizer.zero_grad()\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n    return loss"
    step = f"def closure():\n    {body}\n{kept}"
    agrees(tmp_path, source_of(before=before, step=step), monkeypatch)


LOOPS = """
== skipped batches
STEP:
if epoch == 0 and i < 3:
    continue
loss = F.mse_loss(model(x), y)
UPDATE
== losses in turn
STEP:
with torch.enable_grad():
    out = model(x)
loss = F.mse_loss(out, y) if i % 2 else F.l1_loss(out, y)
UPDATE
== a list of losses
BEFORE:
history = []
STEP:
loss = F.mse_loss(model(x), y)
history.append(loss.item())
if len(history) > 3:
    loss = loss * (history[-1] / history[-2])
UPDATE
== a rate by the loss
BEFORE:
best = float('inf')
STEP:
loss = F.mse_loss(model(x), y)
UPDATE
if loss.item() < best:
    best = loss.item()
else:
    for g in optimizer.param_groups:
        g['lr'] *= 0.5
== the last output
BEFORE:
prev = None
STEP:
out = model(x)
loss = F.mse_loss(out, y)
if prev is not None:
    loss = loss + 0.1 * F.mse_loss(out, prev)
prev = out.detach()
UPDATE
== a running center
BEFORE:
center = torch.zeros(1)
STEP:
out = model(x)
with torch.no_grad():
    center.mul_(0.9).add_(out.mean(), alpha=0.1)
loss = F.mse_loss(out - center, y)
UPDATE
== a running scale
BEFORE:
running = 1.0
STEP:
loss = F.mse_loss(model(x), y)
running = 0.9 * running + 0.1 * loss.detach()
(loss / running).backward()
optimizer.step()
optimizer.zero_grad()
== a dictionary of counts
BEFORE:
stats = {'n': 0, 'w': 1.0}
STEP:
loss = F.mse_loss(model(x), y) * stats['w']
UPDATE
stats['n'] += 1
stats['w'] = 1 / (1 + stats['n'])
== a second iterator
BEFORE:
it = iter(loader)
STEP:
x2, y2 = next(it, (x, y))
loss = F.mse_loss(model(x), y) + F.mse_loss(model(x2), y2)
UPDATE
LAST:
it = iter(loader)
== a weight of the epoch
TOP:
def weights(epoch):
    return 0.1 if epoch else 1.0
BEFORE:
w = weights(0)
STEP:
loss = F.mse_loss(model(x), y) * w
UPDATE
LAST:
w = weights(epoch + 1)
== a gradient penalty
STEP:
x = x + 0.1 * torch.randn_like(x)
x.requires_grad_(True)
out = model(x)
loss = F.mse_loss(out, y)
g, = torch.autograd.grad(out.sum(), x, create_graph=True)
loss = loss + g.pow(2).sum()
UPDATE
== clamped weights
STEP:
loss = F.mse_loss(model(x), y)
UPDATE
with torch.no_grad():
    for p in model.parameters():
        p.clamp_(-0.2, 0.2)
== an update by hand
STEP:
loss = F.mse_loss(model(x), y)
model.zero_grad()
loss.backward()
for p in model.parameters():
    p.data.add_(p.grad, alpha=-0.1)
== a rate of the epoch
BEFORE:
decay = 0.5
LAST:
for g in optimizer.param_groups:
    g['lr'] = g['lr'] * decay
== another optimizer later
LAST:
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
== a part frozen later
STEP:
if i == 4:
    model.weight.requires_grad = False
loss = F.mse_loss(model(x), y)
UPDATE
== two updates per batch
STEP:
for _ in range(2):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
== parts of a batch
STEP:
for xx, yy in zip(x.chunk(2), y.chunk(2)):
    loss = F.mse_loss(model(xx), yy) / 2
    loss.backward()
optimizer.step()
optimizer.zero_grad()
== losses of two batches
BEFORE:
losses = []
STEP:
losses.append(F.mse_loss(model(x), y))
if len(losses) == 2:
    total = sum(losses)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    losses.clear()
== optimizers in turn
BEFORE:
opt2 = torch.optim.SGD([model.bias], lr=0.1)
STEP:
loss = F.mse_loss(model(x), y)
optimizer.zero_grad()
opt2.zero_grad()
loss.backward()
(optimizer if i % 2 == 0 else opt2).step()
== a meter
TOP:
class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0
    def add(self, v):
        self.sum += v
        self.n += 1
    @property
    def mean(self):
        return self.sum / max(1, self.n)
BEFORE:
meter = Meter()
STEP:
loss = F.mse_loss(model(x), y)
meter.add(loss.item())
loss = loss / (1.0 + meter.mean)
UPDATE
== a queue
TOP:
class Queue:
    def __init__(self):
        self.items = []
    def __call__(self, x):
        old = self.items[-1] if self.items else x
        self.items.append(x)
        return old
BEFORE:
queue = Queue()
STEP:
loss = F.mse_loss(model(queue(x)), y)
UPDATE
== a value by match
BEFORE:
kind = os.environ.get('KIND', 'b')
scale = 2.0
match kind:
    case 'a':
        scale = 1.0
    case 'b':
        scale = 0.25
STEP:
loss = F.mse_loss(model(x), y) * scale
UPDATE
== a value by import
BEFORE:
try:
    import not_there
    scale = 2.0
except ImportError:
    scale = 0.5
STEP:
loss = F.mse_loss(model(x), y) * scale
UPDATE
== a list by the number
BEFORE:
scales = [0.1 * k for k in range(1, 20)]
STEP:
loss = F.mse_loss(model(x), y) * scales[i]
UPDATE
== a temperature
BEFORE:
step = 0
STEP:
step += 1
temp = max(0.1, 1.0 - 0.1 * step)
loss = F.mse_loss(model(x) / temp, y)
UPDATE
== a weight by the step
STEP:
w = 1.0 / (1 + i + epoch * len(loader))
loss = F.mse_loss(model(x), y) * w
UPDATE
== a target network
BEFORE:
target = copy.deepcopy(model)
STEP:
with torch.no_grad():
    t = target(x)
loss = F.mse_loss(model(x), 0.5 * t + y)
UPDATE
if i % 3 == 2:
    target.load_state_dict(model.state_dict())
== a forward hook
BEFORE:
hooks = []
model.register_forward_hook(lambda mod, inp, out: out * 0.5)
== a gradient hook
BEFORE:
model.weight.register_hook(lambda g: g * 0.1)
== a break by the number
BEFORE:
noise = torch.Generator().manual_seed(3)
STEP:
loss = F.mse_loss(model(x), y)
UPDATE
if i == 5: break
== a closure
TOP:
def closure_factory(model, scale):
    def compute(x, y):
        return F.mse_loss(model(x), y) * scale
    return compute
BEFORE:
compute = closure_factory(model, 0.25)
STEP:
loss = compute(x, y)
UPDATE
== a lambda
BEFORE:
compute = lambda x, y: F.mse_loss(model(x), y) * 0.3
STEP:
loss = compute(x, y)
UPDATE
== a partial
TOP:
def compute(model, x, y, scale=1.0):
    return F.mse_loss(model(x), y) * scale
BEFORE:
criterion = partial(compute, model, scale=0.3)
STEP:
loss = criterion(x, y)
UPDATE
== a loss module that counts
TOP:
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, a, b):
        self.calls += 1
        return F.mse_loss(a, b) / self.calls
BEFORE:
criterion = Loss()
STEP:
loss = criterion(model(x), y)
UPDATE
== a loss module that learns
TOP:
class Loss(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.log_s = nn.Parameter(torch.tensor(s))
    def forward(self, a, b):
        return F.mse_loss(a, b) * torch.exp(-self.log_s) + self.log_s
BEFORE:
criterion = Loss(0.5)
optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.05)
STEP:
loss = criterion(model(x), y)
UPDATE
== normalized batches
BEFORE:
x_mean = X.mean()
STEP:
x = (x - x_mean) / X.std()
y = torch.where(y > 0, y, -y)
loss = F.mse_loss(model(x), y)
UPDATE
== a batch in a try
STEP:
try:
    loss = F.mse_loss(model(x), y)
except RuntimeError:
    continue
UPDATE
== weights set at first
BEFORE:
nn.init.constant_(model.bias, 0.7)
with torch.no_grad():
    model.weight.fill_(0.1)
== accumulation
STEP:
loss = F.mse_loss(model(x), y)
loss.backward()
if (i + 1) % 2 == 0:
    optimizer.step()
    optimizer.zero_grad()
== an inner update
BEFORE:
params = list(model.parameters())
STEP:
loss = F.mse_loss(model(x), y)
grads = torch.autograd.grad(loss, params)
fast = [p - 0.01 * g for p, g in zip(params, grads)]
out = F.linear(x, *fast)
loss = F.mse_loss(out, y)
UPDATE
== flags
TOP:
DEBUG = False
AUG = True
STEP:
if AUG and not DEBUG:
    x = x.flip(0)
    y = y.flip(0) * 0.5
loss = F.mse_loss(model(x), y)
UPDATE
== averaged weights
BEFORE:
swa = torch.optim.swa_utils.AveragedModel(model)
STEP:
loss = F.mse_loss(model(x), y)
UPDATE
swa.update_parameters(model)
LAST:
model.load_state_dict(swa.module.state_dict())
== a flag of the epoch
BEFORE:
warm = True
STEP:
loss = F.mse_loss(model(x), y)
if warm:
    loss = loss * 0.1
UPDATE
LAST:
warm = False
== a dataclass that counts
TOP:
@dataclass
class State:
    step: int = 0
    seen: list = field(default_factory=list)
    def tick(self):
        self.step += 1
BEFORE:
state = State()
STEP:
loss = F.mse_loss(model(x), y) / (1 + state.step)
UPDATE
state.tick()
== replayed samples
BEFORE:
x_extra, y_extra = X[:4] * 3, Y[:4]
STEP:
x, y = torch.cat([x, x_extra]), torch.cat([y, y_extra])
loss = F.mse_loss(model(x), y)
UPDATE
== data changed through the loader
BEFORE:
data = loader.dataset
data.tensors[1].mul_(0.5)
== a list of other batches
BEFORE:
loader = [(x * 2, y) for x, y in loader]
== a reversed list
BEFORE:
loader = list(loader)[::-1]
== a chain
BEFORE:
loader = itertools.chain(loader, loader)
loader = list(loader)
== sorted batches
BEFORE:
batches = sorted(loader, key=lambda b: -b[0].sum().item())
loader = batches
== swapped loaders
BEFORE:
val = DataLoader(TensorDataset(X * 2, Y), batch_size=4)
loader, val = val, loader
"""


def cases_of(text: str) -> dict[str, dict[str, str]]:
    """Return the parts of each script in `text`, by the script's name."""
    found = {}
    for case in re.split(r"^== ", text.strip(), flags=re.MULTILINE)[1:]:
        name, _, rest = case.partition("\n")
        words = re.split(r"^(TOP|BEFORE|STEP|LAST):\n", rest, flags=re.MULTILINE)[1:]
        parts = dict(zip(words[::2], words[1::2], strict=True))
        found[name] = {word.lower(): part.strip("\n") for word, part in parts.items()}
    return found


STRANGERS = cases_of(LOOPS)
QUICK = (
    "a list of losses",
    "another optimizer later",
    "a meter",
    "a loss module that learns",
    "a flag of the epoch",
)
"""Cases that `make test` runs; the others are `thorough`."""


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.thorough) for each in STRANGERS]
)
def test_a_stranger_s_loop_agrees_or_is_said_to_differ(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, source_of(**STRANGERS[name]), monkeypatch)
