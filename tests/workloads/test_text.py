"""Reading text and cutting it into samples."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.workloads.text import DEFAULT_TEXT_BYTES, Contexts, Windows, default_files, read_text


def test_named_files_are_read_whole_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"zwei\xff")
    (tmp_path / "a.txt").write_bytes(b"eins")
    text = read_text([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")], at_least=9)
    assert text.numpy().tobytes() == b"zwei\xffeins"
    assert text.dtype == torch.uint8


def test_the_default_text_is_the_standard_library() -> None:
    text = read_text([], at_least=1).numpy().tobytes()
    assert len(text) == DEFAULT_TEXT_BYTES
    names = [path.name for path in default_files()]
    assert names == sorted(names)
    assert {"abc.py", "argparse.py", "ast.py"} <= set(names)
    assert text.startswith(default_files()[0].read_bytes())
    assert b"".join(path.read_bytes() for path in default_files()).startswith(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "corpus.txt")
    with pytest.raises(ValueError, match=r"corpus\.txt.*No such file"):
        read_text([missing], at_least=1)


def test_too_short_a_text_says_what_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * 64)
    with pytest.raises(ValueError, match=r"short\.txt: 64 bytes of text, but one sample needs 65"):
        read_text([str(path)], at_least=65)
    assert len(read_text([str(path)], at_least=64)) == 64


@given(text=st.binary(min_size=2, max_size=60), size=st.integers(1, 12))
def test_windows_are_the_text_cut_up(text: bytes, size: int) -> None:
    windows = Windows(torch.tensor(list(text), dtype=torch.uint8), size)
    used = len(windows) * size
    assert used <= len(text) - 1 < used + size
    inputs = [byte for i in range(len(windows)) for byte in windows[i][0].tolist()]
    targets = [byte for i in range(len(windows)) for byte in windows[i][1].tolist()]
    assert bytes(inputs) == text[:used]
    assert bytes(targets) == text[1 : used + 1]


@given(text=st.binary(min_size=2, max_size=60), size=st.integers(1, 12))
def test_contexts_are_followed_by_their_targets(text: bytes, size: int) -> None:
    contexts = Contexts(torch.tensor(list(text), dtype=torch.uint8), size)
    assert len(contexts) == (len(text) - 1) // size
    for i in range(len(contexts)):
        context, target = contexts[i]
        assert bytes(context.tolist()) == text[i * size : (i + 1) * size]
        assert int(target) == text[(i + 1) * size]


@pytest.mark.parametrize("kind", [Windows, Contexts])
def test_datasets_have_ends_types_and_travel_to_loader_workers(kind: type[Windows | Contexts]) -> None:
    dataset = pickle.loads(pickle.dumps(kind(torch.arange(41, dtype=torch.uint8), 10)))
    assert len(dataset) == 4
    inputs, targets = dataset[3]
    assert inputs.tolist() == list(range(30, 40))
    assert targets.tolist() == (list(range(31, 41)) if kind is Windows else 40)
    assert targets.dtype == torch.int64
    assert inputs.dtype == (torch.int64 if kind is Windows else torch.uint8)
    for index in (-1, 4):
        with pytest.raises(IndexError):
            dataset[index]
