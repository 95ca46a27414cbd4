"""The class that `ddpbench init` writes takes the branches of its script, also where conditions read what changes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class
from ddpbench.launch.own_class.bindings import Scope
from ddpbench.launch.own_class.tracing import Origin, Tracer
from tests.launch.test_init_agrees import DATA, check_losses, written
from tests.launch.test_init_running import indented

STEP = """
START
loss = F.mse_loss(model(x), y)
CONDITION
optimizer.zero_grad()
loss.backward()
optimizer.step()
LAST
"""
TRAINER = """
TOP
class Trainer:
    OF_CLASS
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.loader = DataLoader(TensorDataset(X, Y), batch_size=8)
        LOCAL
    def tick(self):
        TICK
    def fit(self):
        for epoch in range(2):
            for x, y in self.loader:
                STEP
            EPOCH

if __name__ == "__main__":
    Trainer().fit()
"""
TRAIN_STEP = TRAINER.replace(
    "    def fit",
    "    def train_step(self, x, y):\n        STEP\n        return loss.item()\n    def fit",
).replace("                STEP\n", "                self.train_step(x, y)\n")
MAIN = """
TOP
def main():
    DECLARE
    LOCAL
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            STEP
        EPOCH

if __name__ == "__main__":
    main()
"""
TRAIN = """
TOP
def train(model, optimizer, loader, s):
    DECLARE
    for x, y in loader:
        STEP

def main():
    LOCAL
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    for epoch in range(2):
        train(model, optimizer, loader, s)
        EPOCH

if __name__ == "__main__":
    main()
"""
OPTIONS = "p = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=0)\ns = p.parse_args([])"
Writes = dict[str, str | tuple[str, str]]
"""Statements that change a value. Of a pair, the first one is at the top level of the script."""
OF_ENTRY: Writes = {
    "by update": "s.update(n=1)",
    "by a key": "key = 'n'\ns[key] = 1",
    "through another name": "t = s\nt['n'] += 1",
    "in a function": ("def tick(held):\n    held['n'] += 1", "tick(s)"),
    "by pop": "s['n'] = s.pop('n') + 1",
    "by a loop over it": "for key in list(s):\n    s[key] += 1",
}
OF_OBJECT: Writes = {
    "by setattr": "setattr(s, 'n', s.n + 1)",
    "by its dictionary": "vars(s)['n'] += 1",
    "through another name": "t = s\nt.n += 1",
    "in a function": ("def tick(held):\n    held.n += 1", "tick(s)"),
}
OF_ITEM: Writes = {
    "through another name": "t = s\nt[0] += 1",
    "by pop": "s.append(s.pop() + 1)",
    "by insert": "s.insert(0, 1)",
    "in a function": ("def tick(held):\n    held[0] += 1", "tick(s)"),
}
OF_SELF: Writes = {
    "by setattr": "setattr(self, 'n', self.n + 1)",
    "by its dictionary": "self.__dict__['n'] += 1",
    "through another name": "me = self\nme.n += 1",
    "in a function": ("def tick(held):\n    held.n += 1", "tick(self)"),
    "in a method": "self.tick()",
}
OF_GLOBAL: Writes = {
    "in a function": ("def tick():\n    global s\n    s += 1", "tick()"),
    "by globals": "globals()['s'] = s + 1",
}
OF_CLASS: Writes = {
    "by setattr": "setattr(Held, 'n', Held.n + 1)",
    "through another name": "t = Held\nt.n += 1",
}
CALLBACK = """class Callback:
    def __init__(self, of):
        self.of = of
    def end(self):
        self.of.n += 1"""
CLASS = "class Held:\n    n = 0"
FIELDS = "@dataclass\nclass Held:\n    n: int = 0"
INSTANCE = (
    "class Held:\n    def __init__(self):\n        self.n = 0\n    def tick(self):\n        self.n += 1"
)
METHOD: Writes = {"in a method": "s.tick()"}

CONTAINERS: dict[str, tuple[str, str, dict[str, str], Writes]] = {
    "name": ("s", MAIN, {"LOCAL": "s = 0"}, {}),
    "parameter": ("s", TRAIN, {"LOCAL": "s = 0"}, {}),
    "global": ("s", MAIN, {"TOP": "s = 0", "DECLARE": "global s"}, OF_GLOBAL),
    "self": ("self.n", TRAINER, {"LOCAL": "self.n = 0", "TICK": "self.n += 1"}, OF_SELF),
    "self of step": ("self.n", TRAIN_STEP, {"LOCAL": "self.n = 0", "TICK": "self.n += 1"}, OF_SELF),
    "class of self": ("self.n", TRAINER, {"OF_CLASS": "n = 0", "TICK": "self.n += 1"}, OF_SELF),
    "class's own": (
        "Trainer.n",
        TRAINER,
        {"OF_CLASS": "n = 0", "TICK": "Trainer.n += 1"},
        {"in a method": "self.tick()"},
    ),
    "self of a callback": (
        "self.n",
        TRAINER,
        {"TOP": CALLBACK, "LOCAL": "self.n = 0\nself.back = Callback(self)"},
        {"by the callback": "self.back.end()"},
    ),
    "dictionary": ("s['n']", MAIN, {"LOCAL": "s = {'n': 0}"}, OF_ENTRY),
    "global dictionary": ("s['n']", MAIN, {"TOP": "s = {'n': 0}"}, OF_ENTRY),
    "given dictionary": ("s['n']", TRAIN, {"LOCAL": "s = dict(n=0, m=1)"}, OF_ENTRY),
    "list": ("s[0]", MAIN, {"LOCAL": "s = [0]"}, OF_ITEM),
    "global list": ("s[0]", MAIN, {"TOP": "s = [0]"}, OF_ITEM),
    "namespace": ("s.n", MAIN, {"LOCAL": "s = argparse.Namespace(n=0)"}, OF_OBJECT),
    "global namespace": ("s.n", MAIN, {"TOP": "s = SimpleNamespace(n=0)"}, OF_OBJECT),
    "given namespace": ("s.n", TRAIN, {"LOCAL": "s = argparse.Namespace(n=0)"}, OF_OBJECT),
    "options": ("s.n", MAIN, {"LOCAL": OPTIONS}, OF_OBJECT),
    "given options": ("s.n", TRAIN, {"LOCAL": OPTIONS}, OF_OBJECT),
    "class": ("Held.n", MAIN, {"TOP": CLASS}, OF_CLASS),
    "fields": ("s.n", MAIN, {"TOP": FIELDS, "LOCAL": "s = Held()"}, OF_OBJECT),
    "object": ("s.n", TRAIN, {"TOP": INSTANCE, "LOCAL": "s = Held()"}, OF_OBJECT | METHOD),
    "dictionary of self": (
        "self.s['n']",
        TRAINER,
        {"LOCAL": "self.s = {'n': 0}", "TICK": "self.s['n'] += 1"},
        {"in a method": "self.tick()", "by update": "self.s.update(n=1)"},
    ),
    "object of self": (
        "self.s.n",
        TRAINER,
        {"LOCAL": "self.s = SimpleNamespace(n=0)", "TICK": "self.s.n += 1"},
        {"in a method": "self.tick()", "through another name": "t = self.s\nt.n += 1"},
    ),
}
"""Places of a number that begins at 0: how it is read, the script, what begins it, and writes of that kind alone."""
WRITES: Writes = {
    "added to": "S += 1",
    "assigned": "S = 1",
    "in a tuple": "S, other = S + 1, 0",
    "under a condition": "if x.mean().item() > -0.8:\n    S = 1",
}
CONDITIONS = {
    "less": "if S < 3:\n    loss = loss * 0.1",
    "equal": "if S == 0:\n    loss = loss * 0.1",
    "true": "if S:\n    loss = loss + 0.1 * model.weight.abs().sum()",
    "not": "if not S:\n    loss = loss * 0.1\nelse:\n    loss = loss * 2",
    "with others": "if S == 0 and len(x) == 8 or S > 4:\n    loss = loss * 0.1",
    "kept in a name": "early = S < 3\nif early:\n    loss = loss * 0.1",
    "copied": "count = S\nif count < 3:\n    loss = loss * 0.1",
    "changes it": "if not S:\n    loss = loss * 0.1\n    S = 1",
    "in an expression": "loss = loss * (0.1 if S < 3 else 1.0)",
}
PLACES = ("START", "LAST", "EPOCH")
REST = ("TOP", "OF_CLASS", "LOCAL", "TICK", "DECLARE", "EPOCH")


def script_of(container: str, does: str | tuple[str, str], condition: str, place: str) -> str:
    read, frame, begins, _ = CONTAINERS[container]
    top, does = does if isinstance(does, tuple) else ("", does)
    made = dict.fromkeys(REST, "pass") | begins
    made["TOP"] = f"{made['TOP']}\n{top}"
    step = dict.fromkeys(PLACES, "pass") | {"CONDITION": CONDITIONS[condition], place: does}
    frame = frame.replace("range(2)", "range(1)") if container == "parameter" else frame
    model = re.sub(r"\b(model|optimizer)\b(?!\s*=)", r"self.\1", indented(STEP, **step))
    step_text = model if frame in (TRAINER, TRAIN_STEP) else indented(STEP, **step)
    made |= {"STEP": re.sub(r"\bS\b", read, step_text), "EPOCH": re.sub(r"\bS\b", read, step["EPOCH"])}
    imports = "import argparse\nfrom dataclasses import dataclass\nfrom types import SimpleNamespace\n"
    return f"{imports}{DATA}{indented(frame, **made)}"


CASES = [
    pytest.param(container, does, condition, place, id=f"{container}-{write}-{condition}-{place}")
    for container, (*_, own) in CONTAINERS.items()
    for write, does in (WRITES | own).items()
    for condition in CONDITIONS
    for place in PLACES
    # All writes with one condition, all conditions with one write, and one write at each place.
    if (place == "LAST" and condition == "less")
    or (place == "LAST" and write == "added to")
    or (condition == "not" and write == "assigned")
]


@pytest.mark.parametrize(("container", "does", "condition", "place"), CASES)
def test_a_condition_on_a_value_that_changes_is_not_decided_for_good(
    container: str,
    does: str | tuple[str, str],
    condition: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, found = written(tmp_path, script_of(container, does, condition, place))
    if not found.is_open:
        check_losses(script, found, monkeypatch)
    else:
        assert re.search(r"\bline \d+|say what |cannot be used", "\n".join(found.left)), found.left


@pytest.mark.parametrize("condition", sorted(set(CONDITIONS) - {"changes it"}))
@pytest.mark.parametrize("write", ["added to", "assigned", "under a condition"])
@pytest.mark.parametrize("container", ["name", "global", "self", "self of step", "class of self"])
def test_a_counter_or_a_flag_is_kept_in_the_class(
    container: str, write: str, condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, script_of(container, WRITES[write], condition, "LAST"))
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


WORDED = """
queue = []
def main():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    for p in net[0].parameters():
        p.requires_grad = False
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen, mean = 0, torch.zeros(4)
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
        BODY
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""


def worded(tmp_path: Path, body: str) -> Written:
    return written(tmp_path, f"{DATA}{indented(WORDED, BODY=body)}")[1]


def test_a_list_that_the_class_reads_is_not_left_out_as_printing(tmp_path: Path) -> None:
    found = worded(tmp_path, "loss = F.mse_loss(net(x), y) + len(queue)\nqueue.append(loss.detach())")
    groups = {each.group for each in found.dropped if "queue" in each.text}
    assert groups == {"other statements"}, found.whole


def test_a_parameter_that_a_step_may_thaw_is_to_be_decided(tmp_path: Path) -> None:
    thaw = "if len(queue) > 2:\n    for p in net[0].parameters():\n        p.requires_grad = True"
    found = worded(tmp_path, f"{thaw}\nloss = F.mse_loss(net(x), y)")
    wanted = r"model\(\): decide whether the class trains as before or as after line \d+, which runs during a step: "
    assert any(re.match(wanted, each) for each in found.left), found.left


def test_values_that_are_kept_from_a_tuple_are_not_left_out(tmp_path: Path) -> None:
    body = "seen += len(x)\nmean += (x.mean(0) - mean) / seen\nloss = F.mse_loss(net(x - mean), y)"
    found = worded(tmp_path, body)
    assert "self.mean = torch.zeros(4)" in found.text
    assert not any("seen, mean" in each.text for each in found.dropped), found.whole


CHAIN = """
class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        BEGIN
    def fit(self):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            loss = F.mse_loss(self.model(x), y)
            CHAIN
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

if __name__ == "__main__":
    Trainer().fit()
"""
CHAINS = {
    "self": ("self.a{0} = True", "if self.a{0}:\n    self.a{1} = False\n    self.a{0} = not self.a{1}"),
    "entries": ("s['a{0}'] = True", "if s['a{0}']:\n    s['a{1}'] = s['a{0}']"),
    "names": ("a{0} = True", "if a{0}:\n    a{1} = not a{0}"),
    "once": ("self.a{0} = True", "if self.a{0}:\n    self.b{1} = self.a{0}\nif self.b{1}:\n    c{0} = 1"),
}


def traces_of(tmp_path: Path, begin: str, chain: str, links: int) -> int:
    """Return how many values are traced for a script with a number of conditions that read and set one another."""
    source = indented(
        CHAIN,
        BEGIN="\n".join(begin.format(each) for each in range(links + 1)),
        CHAIN="\n".join(chain.format(each, (each + 1) % links) for each in range(links)),
    )
    path = tmp_path / "train.py"
    path.write_text(f"{DATA}s = {{}}\n{source}", encoding="utf-8")
    count = 0
    trace = Tracer.trace

    def counted(self: Tracer, node: ast.expr, scope: Scope, depth: int = 0) -> Origin:
        nonlocal count
        count += 1
        assert count < 400_000, "tracing does not end"
        return trace(self, node, scope, depth)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tracer, "trace", counted)
        written_class(read_script(path))
    return count


@pytest.mark.parametrize("kind", CHAINS)
def test_conditions_that_depend_on_one_another_take_few_traces(kind: str, tmp_path: Path) -> None:
    few, many = (traces_of(tmp_path, *CHAINS[kind], links) for links in (4, 8))
    assert many < 8 * few, (few, many)
