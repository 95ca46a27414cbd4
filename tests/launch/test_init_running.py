"""The class that `ddpbench init` writes changes what its script changes from one batch to the next."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_init_agrees import DATA, check_agrees

NAMED = r"\bline \d+|say what |cannot be used"
"""Pattern of what is said of a class that is unfinished."""

UPDATES = {
    "assigned": "S = 0.5 * S + x.mean().item()",
    "added to": "S += 0.25",
    "set": "S = 1.0 + x.mean().item()",
    "under a condition": "if x.mean().item() < 0.5:\n    S = S + 0.25",
    "in a tuple": "S, other = S + 0.25, 1",
    "by a loop": "for S in (S + 0.25,):\n    pass",
    "by a with": "with contextlib.nullcontext(S + 0.25) as S:\n    pass",
    "in a try": "try:\n    S = S + 0.25\nfinally:\n    pass",
    "in a while": "while True:\n    S = S + 0.25\n    break",
    "deleted": "other = S + 0.25\ndel S\nS = other",
}
"""Statements that change a running value `S`."""
STEP = """
FIRST
loss = F.mse_loss(model(x), y) * S
MID
optimizer.zero_grad()
loss.backward()
optimizer.step()
LAST
"""
PLACES = ("FIRST", "MID", "LAST")
IN_MAIN = """
TOP
def main():
    DECLARE
    LOCAL
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            STEP

if __name__ == "__main__":
    main()
"""
IN_EPOCH = """
TOP
def train(model, optimizer, loader, epoch):
    DECLARE
    for x, y in loader:
        STEP

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    for epoch in range(2):
        train(model, optimizer, loader, epoch)

if __name__ == "__main__":
    main()
"""
IN_STEP = """
TOP
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def train_step(x, y):
    DECLARE
    STEP
    return loss.item()

def main():
    for epoch in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            train_step(x, y)

if __name__ == "__main__":
    main()
"""
IN_NESTED = """
TOP
def main():
    LOCAL
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    def train(epoch):
        DECLARE
        for x, y in loader:
            STEP
    for epoch in range(2):
        train(epoch)

if __name__ == "__main__":
    main()
"""
IN_NESTED_STEP = """
TOP
def main():
    LOCAL
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    def train_step(x, y):
        DECLARE
        STEP
        return loss.item()
    for epoch in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            train_step(x, y)

if __name__ == "__main__":
    main()
"""
IN_METHOD = """
TOP
class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
    def fit(self):
        DECLARE
        model, optimizer = self.model, self.optimizer
        for epoch in range(2):
            for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
                STEP

if __name__ == "__main__":
    Trainer().fit()
"""
AT_TOP = """
TOP
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
        STEP
"""
HOLDER = "class Holder:\n    def __init__(self):\n        self.s = 1.0\n"
OF_CLASS = "class Holder:\n    s = 1.0\n"
KEPT: dict[str, tuple[str, str, str, str]] = {
    "name": ("s", "s = 1.0", "global s", "nonlocal s"),
    "tensor": ("s", "s = torch.ones(())", "global s", "nonlocal s"),
    "entry": ("s['n']", "s = {'n': 1.0}", "pass", "pass"),
    "item": ("s[0]", "s = [1.0]", "pass", "pass"),
    "namespace": ("s.n", "s = SimpleNamespace(n=1.0)", "pass", "pass"),
    "object": ("s.s", f"{HOLDER}s = Holder()", "pass", "pass"),
    "class": ("Holder.s", OF_CLASS, "pass", "pass"),
    "module": ("math.s", "import math\nmath.s = 1.0", "pass", "pass"),
    "globals": ("globals()['s']", "s = 1.0", "pass", "pass"),
    "function": ("tick.s", "def tick():\n    pass\ntick.s = 1.0", "pass", "pass"),
}
"""Places of a running value: how it is read, what begins it, and its declaration for a global or an outer name."""
IN_PARAMETER = """
TOP
def train(model, optimizer, loader, s):
    for x, y in loader:
        STEP

def main():
    LOCAL
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    for epoch in range(EPOCHS):
        train(model, optimizer, loader, s)

if __name__ == "__main__":
    main()
"""
GLOBAL = {"main": IN_MAIN, "epoch": IN_EPOCH, "step": IN_STEP, "method": IN_METHOD, "top": AT_TOP}
OUTER = {"main": IN_MAIN, "nested": IN_NESTED, "nested step": IN_NESTED_STEP, "parameter": IN_PARAMETER}


def indented(source: str, **put: str) -> str:
    for name, text in put.items():
        source = re.sub(
            rf"^( *){name}$",
            lambda found, text=text: textwrap.indent(text.strip("\n"), found[1]),
            source,
            flags=re.MULTILINE,
        )
    return source


def script_of(frame: str, kept: str, update: str, place: str, *, outer: bool) -> str:
    read, begins, of_global, of_outer = KEPT[kept]
    of_outer = "pass" if "def train" not in frame else of_outer
    does = re.sub(r"\bS\b", read, UPDATES[update])
    step = indented(STEP, **{each: does if each == place else "pass" for each in PLACES})
    step = re.sub(r"\bS\b", read, step)
    declared = "pass" if frame is AT_TOP else of_outer if outer else of_global
    if kept == "globals" and outer:
        declared = "pass"
    source = indented(
        frame,
        STEP=step,
        TOP=(HOLDER if kept == "object" else "pass") if outer else begins,
        LOCAL=begins.removeprefix(HOLDER) if outer else "pass",
        DECLARE=declared,
    )
    source = source.replace(
        "EPOCHS", "1" if kept in ("name", "tensor") else "2"
    )  # an epoch begins its own again
    return f"import contextlib\nfrom types import SimpleNamespace\n{DATA}{source}"


FACTOR = "def factor():\n    return s"
ALSO = {
    "read in a function": {"TOP": f"s = 1.0\n{FACTOR}", "SCALE": "factor()", "FIRST": "s = s + 0.25"},
    "read in both": {"TOP": f"s = 1.0\n{FACTOR}", "SCALE": "(s + factor())", "FIRST": "s = s + 0.25"},
    "set and read in both": {
        "TOP": f"s = 1.0\n{FACTOR}",
        "SCALE": "(s + factor())",
        "FIRST": "s = x.mean().item()",
    },
    "changed in a function": {
        "TOP": "s = 1.0\ndef tick():\n    global s\n    s = s * 0.5",
        "FIRST": "s = s + 0.25",
        "LAST": "tick()",
    },
    "begun in main": {"BEFORE": "global s\ns = 2.0", "LAST": "s = s + 0.25"},
    "begun in main perhaps": {"BEFORE": "global s\nif len(X) > 8:\n    s = 2.0", "LAST": "s = s + 0.25"},
    "begun twice": {"TOP": "s = 1.0\nif len(X) > 8:\n    s = 2.0", "LAST": "s = s + 0.25"},
    "begun in the guard": {"GUARD": "s = 2.0", "LAST": "s = s + 0.25"},
    "begun in a function": {
        "TOP": "s = 1.0\ndef begin():\n    global s\n    s = 2.0",
        "BEFORE": "begin()",
        "LAST": "s = s + 0.25",
    },
    "begun from a value": {"TOP": "t = 0.5\ns = 2 * t", "LAST": "s = s + 0.25"},
    "imported": {"TOP": "from math import pi as s", "LAST": "s = s + 0.25"},
    "begun by a loop": {"TOP": "for s in (1.0, 2.0):\n    pass", "LAST": "s = s + 0.25"},
    "begun in a tuple": {"TOP": "s, t = 2.0, 1.0", "LAST": "s = s + 0.25"},
    "never begun": {"TOP": "", "GUARD": "globals().update(s=2.0)", "LAST": "s = s + 0.25"},
    "changed after each epoch": {"END": "s = s * 0.5"},
    "changed in each epoch": {"EPOCH": "global s\ns = s * 0.5"},
    "changed before each epoch": {"START": "s = s * 0.5"},
    "changed in both loops": {"LAST": "s = s + 0.25", "END": "s = s * 0.5"},
    "set before each epoch": {"START": "s = 1.0 + epoch", "LAST": "s = s + 0.25"},
    "entry after each epoch": {"TOP": "s = 1.0\nh = {'n': 1.0}", "SCALE": "h['n']", "END": "h['n'] = 0.5"},
    "object after each epoch": {
        "TOP": "s = 1.0\nh = SimpleNamespace(n=1.0)",
        "SCALE": "h.n",
        "END": "h.n = 0.5",
    },
}
"""Other scripts whose running value is the global `s`."""
FRAME = """
TOP
def train(model, optimizer, loader, epoch):
    global s
    START
    for x, y in loader:
        FIRST
        loss = F.mse_loss(model(x), y) * SCALE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        LAST
    END

def main():
    BEFORE
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    for epoch in range(2):
        EPOCH
        train(model, optimizer, loader, epoch)

if __name__ == "__main__":
    GUARD
    main()
"""
NOTHING = dict.fromkeys(("BEFORE", "FIRST", "LAST", "START", "END", "EPOCH", "GUARD"), "pass")


@pytest.mark.parametrize("name", ALSO)
def test_a_global_that_other_code_reads_or_changes_is_not_lost(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = {**NOTHING, "TOP": "s = 1.0", "SCALE": "s"} | ALSO[name]
    source = indented(FRAME.replace("SCALE", put.pop("SCALE")), **put)
    check_agrees(tmp_path, f"from types import SimpleNamespace\n{DATA}{source}", monkeypatch, NAMED)


PLACED = ("name", "entry", "object")
"""Kinds of values that are changed in every place; others are changed last."""
ONLY_GLOBAL = ("globals", "module", "class", "function")


def is_covering(frame: int, kept: int, update: int, place: int) -> bool:
    """Return whether a case, given by its position in each of the four lists, is among the few that cover all pairs.

    Each pair of a frame, a kind of value, an update and a place that some case has is in one of them, because the place
    changes with each of the others. The other cases are `thorough`.
    """
    return list(KEPT)[kept] not in PLACED or (frame + kept + update) % len(PLACES) == place


CASES = [
    pytest.param(
        frame,
        kept,
        update,
        place,
        outer,
        id=f"{'outer' if outer else 'global'} {frame}-{kept}-{update}-{place}",
        marks=() if is_covering(f, k, u, p) else pytest.mark.thorough,
    )
    for frames, outer in ((GLOBAL, False), (OUTER, True))
    for (f, frame), (k, kept), (u, update), (p, place) in itertools.product(
        *map(enumerate, (frames, KEPT, UPDATES, PLACES))
    )
    if kept == "name" or update == "assigned"
    if kept in PLACED or place == "LAST"
    if not (kept in ONLY_GLOBAL and outer)
    if (kept, update, place) != ("tensor", "added to", "MID")  # backward() needs the tensor unchanged
]


def pairs_of(cases: Sequence[Any]) -> set[Any]:
    """Return each pair of values that one of the cases has, with the numbers of the two parameters."""
    found = set()
    for case in cases:
        frame, *others, outer = case.values
        found |= set(itertools.combinations(enumerate([(frame, outer), *others]), 2))
    return found


def test_the_cases_that_are_not_thorough_have_every_pair_that_a_case_has() -> None:
    quick = [case for case in CASES if not case.marks]
    assert pairs_of(quick) == pairs_of(CASES)
    assert len(quick) < len(CASES) / 2


@pytest.mark.parametrize(("frame", "kept", "update", "place", "outer"), CASES)
def test_a_running_value_runs_in_the_class(
    frame: str,
    kept: str,
    update: str,
    place: str,
    outer: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = script_of((OUTER if outer else GLOBAL)[frame], kept, update, place, outer=outer)
    check_agrees(tmp_path, source, monkeypatch, NAMED)
