"""`ddpbench init` on dictionaries of which the script changes one entry, and on values that have one name."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from ddpbench.launch.own_class import Written, read_script, written_class

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from elsewhere import first, second

X = torch.randn(64, 6)

def main(**given):
    GIVEN
    model = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), RATES)
    for x, y in DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16):
        loss = (model(x) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
RATES = "lr=hp['lr'], weight_decay=hp['wd']"


def made(tmp_path: Path, given: str, rates: str = RATES) -> Written:
    path = tmp_path / "train.py"
    source = SCRIPT.replace("GIVEN", textwrap.indent(given, "    ").strip()).replace("RATES", rates)
    path.write_text(source, encoding="utf-8")
    return written_class(read_script(path))


@pytest.mark.parametrize("hp", ["{'lr': 1e-3, 'wd': 0.1}", "dict(lr=1e-3, wd=0.1)"])
@pytest.mark.parametrize(
    "change", ["hp['lr'] *= 2", "hp['lr'] = hp['lr'] * 2", "hp['lr'] += float(X.mean())"]
)
def test_an_entry_that_is_changed_is_to_be_filled_in_and_another_is_taken(
    hp: str, change: str, tmp_path: Path
) -> None:
    found = made(tmp_path, f"hp = {hp}\n{change}")
    assert "lr = ...  # in the script, 0.001, changed in line 11" in found.text
    assert "AdamW(parameters, lr=lr, weight_decay=0.1)" in found.text
    assert found.left == ["optimizer(): say what `lr` is (in the script, 0.001, changed in line 11)."]


def test_what_changes_a_whole_dictionary_leaves_each_entry_to_be_filled_in(tmp_path: Path) -> None:
    found = made(tmp_path, "hp = dict(lr=1e-3, wd=0.1)\nhp.update(given)")
    assert "lr = ...  # in the script, 0.001, changed in line 11" in found.text
    assert "wd = ...  # in the script, 0.1, changed in line 11" in found.text
    assert "AdamW(parameters, lr=lr, weight_decay=wd)" in found.text


def test_an_entry_within_an_entry_is_changed_with_it(tmp_path: Path) -> None:
    given = "hp = {'a': {'lr': 1e-3}, 'b': {'lr': 0.1}}\nhp['a']['lr'] *= 2"
    found = made(tmp_path, given, "lr=hp['a']['lr'], weight_decay=hp['b']['lr']")
    assert "lr = ...  # in the script, 0.001, changed in line 11" in found.text
    assert "AdamW(parameters, lr=lr, weight_decay=0.1)" in found.text


def test_two_entries_of_one_key_are_two_names(tmp_path: Path) -> None:
    given = "hp = {'lr': 1e-3}\nhp['lr'] *= 2\nother = {'lr': 0.1}\nother['lr'] *= 3"
    found = made(tmp_path, given, "lr=hp['lr'], weight_decay=other['lr']")
    assert "lr = ...  # in the script, 0.001, changed in line 11" in found.text
    assert "lr_ = ...  # in the script, 0.1, changed in line 13" in found.text
    assert "AdamW(parameters, lr=lr, weight_decay=lr_)" in found.text


def test_two_unknown_attributes_of_one_name_are_two_names(tmp_path: Path) -> None:
    """Their values are unknown: they come from the elements that a loop iterates over."""
    given = "for one, other in given.items():\n    pass"
    found = made(tmp_path, given, "lr=one.rate, weight_decay=other.rate")
    (call,) = (line for line in found.text.splitlines() if "AdamW(" in line)
    rates = call.partition("lr=")[2].rstrip(")").split(", weight_decay=")
    assert rates[0] != rates[1], found.text


def test_a_key_that_is_no_name_has_another(tmp_path: Path) -> None:
    given = "hp = {'learning rate': 1e-3, 'lambda': 0.1}\nhp['learning rate'] *= 2\nhp['lambda'] *= 2"
    found = made(tmp_path, given, "lr=hp['learning rate'], weight_decay=hp['lambda']")
    assert "AdamW(parameters, lr=value, weight_decay=value_)" in found.text
    assert "value = ...  # in the script, 0.001, changed in line 11" in found.text
    assert "value_ = ...  # in the script, 0.1, changed in line 12" in found.text


SHARED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"lr": 0.1, "batch": 8, "epochs": 3, "betas": [0.9, 0.99]}
CHANGED
DATA = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))

def fix(given):
    given["lr"] = 5.0

def show(given):
    print(given["batch"], len(given))

def main(cfg):
    BODY
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"])
    for epoch in range(cfg["epochs"]):
        for x, y in DataLoader(DATA, batch_size=cfg["batch"]):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

if __name__ == "__main__":
    main(CONFIG)
"""


def shared(tmp_path: Path, body: str = "", changed: str = "CONFIG['epochs'] = 5") -> Written:
    path = tmp_path / "train.py"
    source = SHARED.replace("CHANGED", changed).replace(
        "BODY", textwrap.indent(body or "pass", "    ").strip()
    )
    path.write_text(source, encoding="utf-8")
    return written_class(read_script(path))


@pytest.mark.parametrize(
    "body", ["", "show(cfg)", "print(f'{cfg}', cfg['batch'], cfg.get('lr'))", "show(given=cfg)"]
)
def test_what_only_reads_a_dictionary_leaves_its_other_entries_as_they_are(body: str, tmp_path: Path) -> None:
    found = shared(tmp_path, body)
    assert "batch = 8" in found.text
    assert "SGD(parameters, lr=0.1)" in found.text


@pytest.mark.parametrize(
    "body",
    [
        "cfg['lr'], other = 5.0, 3",
        "cfg = {**cfg, 'lr': 5.0}",
        "cfg = dict(cfg, lr=5.0)",
        "cfg = dict(**cfg)",
        "cfg.update(lr=5.0)",
        "cfg |= {'lr': 5.0}",
        "key = 'lr'\ncfg[key] = 5.0",
        "other = cfg\nother['lr'] = 5.0",
        "CONFIG['lr'] = 5.0",
        "for key in cfg:\n    cfg[key] = 5",
        "for key in list(cfg):\n    cfg[key] = 5",
        "del cfg['lr']\ncfg.setdefault('lr', 5.0)",
        "fix(cfg)",
        "fix(given=cfg)",
        "fix(*[cfg])",
        "[each.update(lr=5.0) for each in [cfg]]",
        "def inner():\n    cfg['lr'] = 5.0\ninner()",
        "vars(cfg)",
    ],
)
def test_a_dictionary_that_may_be_changed_by_another_name_has_no_entry_taken(
    body: str, tmp_path: Path
) -> None:
    found = shared(tmp_path, body)
    assert re.search(
        r"lr = \.\.\.  # in the script, 0\.1, changed in line( 8|s 8 and \d+)$", found.text, re.M
    )
    assert "batch = 8" not in found.text
    assert found.is_open


@pytest.mark.parametrize(
    "changed",
    [
        "CONFIG['epochs'] = 5\nC = CONFIG\nC['lr'] = 5.0",
        "CONFIG['epochs'] = 5\nCONFIG |= {'lr': 5.0}",
        "CONFIG['epochs'] = 5\nfix = lambda: CONFIG.update(lr=5.0)",
        "CONFIG['epochs'], CONFIG['lr'] = 5, 5.0\nCONFIG['batch'] = 9",
        "CONFIG['epochs'] = 5\nfor CONFIG['lr'] in (1.0, 5.0):\n    pass",
    ],
)
def test_a_change_at_the_top_by_another_name_has_no_entry_taken(changed: str, tmp_path: Path) -> None:
    found = shared(tmp_path, changed=changed)
    assert "lr = ...  # in the script, 0.1, changed in line" in found.text
    assert found.is_open


def test_a_change_of_one_entry_of_a_parameter_leaves_its_other_entries_as_they_are(tmp_path: Path) -> None:
    found = shared(tmp_path, "cfg['lr'] = 5.0")
    assert "lr = ...  # in the script, 0.1, changed in line 18" in found.text
    assert "batch = 8" in found.text


def test_an_entry_that_can_be_changed_itself_is_not_told_apart(tmp_path: Path) -> None:
    given = "hp = {'rates': [1e-3, 0.1], 'wd': 0.1}\nrates = hp['rates']\nrates[0] = 5.0\nhp['wd'] *= 2"
    found = made(tmp_path, given, "lr=1e-3, betas=hp['rates']")
    assert "betas=[" not in found.text
    assert found.is_open


@pytest.mark.parametrize(
    "other",
    ["one = hp['b']\none['lr'] = 5.0", "hp['b'] |= {'lr': 5.0}", "hp['b'].update(lr=5.0)", "hp.values()"],
)
def test_an_entry_within_an_entry_that_has_another_name_is_not_told_apart(other: str, tmp_path: Path) -> None:
    given = f"hp = {{'a': {{'lr': 1e-3}}, 'b': {{'lr': 0.1}}}}\nhp['a']['lr'] *= 2\n{other}"
    found = made(tmp_path, given, "lr=1e-3, weight_decay=hp['b']['lr']")
    assert "weight_decay=lr)" in found.text
    assert "lr = ...  # in the script, 0.1, changed in line" in found.text
