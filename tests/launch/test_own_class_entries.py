"""`ddpbench init` on entries of dictionaries of which the script changes one, and on values that have one name."""

from __future__ import annotations

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
