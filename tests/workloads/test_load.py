"""Finding workloads by name, and a user's by import path."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpbench.workloads import (
    TABLE,
    NoOptions,
    Workload,
    is_import_path,
    load_workload,
    summaries,
    workload_names,
)

OWN = """
from pathlib import Path
import torch
from ddpbench.workloads import NoOptions, Workload

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(2), torch.tensor(1.0)

class Mine(Workload[NoOptions]):
    name = "mine"
    options = NoOptions
    def model(self, options):
        return torch.nn.Linear(2, 1)
    def dataset(self, options):
        return Data()
    def loss(self, outputs, targets):
        return (outputs.squeeze(1) - targets).square().mean()

class Unrelated:
    pass
"""


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    """Undo what loading a user's file adds to the interpreter."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("own_"):
            del sys.modules[name]
    sys.path[:] = path


def write(folder: Path, text: str = OWN, name: str = "own_train.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TABLE)
def test_an_entry_builds_at_every_size(name: str) -> None:
    sizes = [found for found in workload_names() if found.partition(":")[0] == name]
    assert sizes
    for full in sizes:
        workload = load_workload(full)
        assert isinstance(workload, Workload)
        assert workload.name == name
        assert full == (f"{name}:{workload.size}" if TABLE[name].sizes else name)
        assert summaries()[full]


def test_the_table_has_the_sizes_that_the_models_have() -> None:
    from ddpbench.workloads import gpt, hf, mlp, resnet, two_branch

    found = {
        "mlp": mlp.HIDDEN_UNITS,
        "gpt": gpt.SHAPES,
        "resnet": resnet.BLOCKS,
        "two_branch": two_branch.UNITS,
        "hf": hf.MODELS,
    }
    assert {name: tuple(sizes) for name, sizes in found.items()} == {
        name: TABLE[name].sizes for name in found
    }
    # Others have no sizes, or take them from elsewhere, as a replay its profiles.
    assert {*found, "replay"} <= set(TABLE)


def test_without_a_size_the_first_is_meant() -> None:
    assert load_workload("gpt").size == "nano"
    assert load_workload("mlp").size == "small"
    assert workload_names()[:2] == ["mlp:small", "mlp:large"]


@pytest.mark.parametrize("name", ["gtp", "gpt:huge", "gpt:", "gpt:nano:2", "", ":nano"])
def test_an_unknown_name_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        load_workload(name)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("train.py:Mine", True),
        ("/a/b-c/train.py:Mine", True),
        ("package.module:Mine", True),
        ("gpt:nano", False),
        ("gpt:gopher-44m", False),
        ("train.py", False),
        ("train.py:", False),
        ("module:Mine", True),
        ("module:mine", False),
        ("gpt:Nano", False),
    ],
)
def test_import_paths_are_distinguished_from_names(name: str, own: bool) -> None:
    assert is_import_path(name) is own


def test_a_file_of_ones_own_is_loaded(tmp_path: Path) -> None:
    path = write(tmp_path)
    workload = load_workload(f"{path}:Mine")
    assert workload.name == "mine"
    assert type(load_workload(f"{path}:Mine")) is type(workload)  # once, however often it is asked for
    dataset = pickle.loads(pickle.dumps(workload.dataset(workload.options())))  # as loader workers do
    assert len(dataset) == 8


def test_its_neighbours_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path, OWN, "own_parts.py")
    path = write(tmp_path, "from own_parts import Mine as Base\nclass Mine(Base):\n    name = 'theirs'\n")
    assert load_workload(f"{path}:Mine").name == "theirs"


def test_a_package_of_ones_own_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    write(package, OWN, "train.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_workload("own_package.train:Mine").name == "mine"
    with pytest.raises(ImportError, match=r"own_package\.other cannot be imported"):
        load_workload("own_package.other:Mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all'"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text, "own_broken.py")
    before = list(sys.path)
    with pytest.raises(ImportError, match=rf"own_broken\.py cannot be imported: .*{said}"):
        load_workload(f"{path}:Mine")
    assert "own_broken" not in sys.modules
    assert sys.path == before
    write(tmp_path, OWN, "own_broken.py")  # once fixed, it loads
    assert load_workload(f"{path}:Mine").name == "mine"


def test_relative_imports_are_refused_with_advice_to_come_with_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_parts"
    package.mkdir()
    (package / "inner.py").write_text("from .other import Net\n")
    monkeypatch.chdir(package)
    with pytest.raises(ImportError, match=r"from the folder above: own_parts\.inner:Mine$"):
        load_workload("inner.py:Mine")


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("Mime", r"has no class Mime; did you mean 'Mine'\? known: Mine$"),
        ("torch", r"has no class torch; known: Mine$"),
        ("Unrelated", r"class Unrelated in .* lacks model and loss \(or step\) and dataset \(or loader\)"),
    ],
)
def test_what_is_no_workload_is_refused(tmp_path: Path, attribute: str, said: str) -> None:
    path = write(tmp_path)
    with pytest.raises(ImportError, match=said):
        load_workload(f"{path}:{attribute}")


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=rf"gone\.py cannot be imported: .*looked for {tmp_path}"):
        load_workload("gone.py:Mine")


@pytest.mark.parametrize("name", ["random.py", "statistics.py", "torch.py"])
def test_a_file_may_not_hide_a_module(tmp_path: Path, name: str) -> None:
    import torch

    path = write(tmp_path, OWN, name)
    with pytest.raises(ImportError, match="rename the file"):
        load_workload(f"{path}:Mine")
    assert sys.modules["torch"] is torch
    assert str(tmp_path) not in sys.path


PARSES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.25)
LR = parser.parse_args().lr
"""


def test_a_file_that_parses_its_command_line_at_the_top_level_finds_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own_parses.py"
    path.write_text(PARSES + OWN.replace("torch.ones(2)", "torch.full((2,), LR)"), encoding="utf-8")
    words = ["ddpbench.worker", "run", "--serve", "case"]
    monkeypatch.setattr(sys, "argv", words)
    workload = load_workload(f"{path}:Mine")
    sample = workload.dataset(NoOptions())[0]
    assert float(sample[0][0]) == 0.25
    assert sys.argv is words


def test_code_that_parses_a_command_line_within_a_worker_finds_none_of_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ddpbench.worker import __main__, server

    seen: list[list[str]] = []
    monkeypatch.setattr(server, "main", lambda *_: seen.append([*sys.argv]))
    monkeypatch.setattr(sys, "argv", ["ddpbench.worker", "--serve", "3", "4", "5", "folder"])
    __main__.main()
    assert seen == [["ddpbench.worker"]]
