"""The device of a case's rank, and that a rank on a CPU sees no GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.spec import Case
from ddpbench.worker.device import device_of
from ddpbench.worker.rank.memory import peak_memory
from ddpbench.worker.verify.arrival import gradient_order
from ddpbench.worker.verify.inspection import inspect_workload


def test_a_rank_on_a_cpu_hides_gpus_from_libraries_that_would_take_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert device_of(Case(workload="mlp:small", strategy="single", device="cpu")) == torch.device("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_rank_on_gpus_takes_that_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert device_of(Case(workload="mlp:small", strategy="ddp", device="cuda"), 1) == torch.device("cuda", 1)
    assert chosen == [1]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize("look", [inspect_workload, gradient_order])
def test_an_own_module_is_imported_once_gpus_are_hidden(
    look: Callable[[Case], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    module = tmp_path / f"own_{look.__name__}.py"
    module.write_text(
        "import os\nraise ImportError('seen: ' + os.environ['CUDA_VISIBLE_DEVICES'])\n", "utf-8"
    )
    case = Case(workload=f"{module}:Mine", strategy="single", device="cpu")
    assert "seen: -1" in look(case)["problem"]


def test_a_rank_whose_process_has_any_name_knows_its_memory() -> None:
    """Names are bytes, and the kernel cuts them off after 15, even within a character."""
    name, set_name = Path("/proc/self/comm"), 15
    before, library = name.read_bytes(), ctypes.CDLL(None)
    try:
        library.prctl(set_name, ("\u00fc" * 8).encode(), 0, 0, 0)
        assert not name.read_bytes().isascii()
        peak = peak_memory("cpu")
        assert peak is not None
        assert peak > 1 << 20
    finally:
        library.prctl(set_name, before, 0, 0, 0)
