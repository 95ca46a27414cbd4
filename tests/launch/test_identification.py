"""Requests to a machine before anything is launched on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from ddpbench.errors import MachineError
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep import sweep as module
from ddpbench.launch.sweep.identification import identify
from ddpbench.launch.sweep.preparation import Prepared, SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep

TEXT = '[base]\nworkload = "mlp:small"\nstrategy = "single"\nworld_size = 1\ndevice = "cpu"\n'


def prepared_on(device: str, folder: Path) -> Prepared:
    """A sweep of one case, in place of one on another device."""
    experiment = folder / "x.toml"
    experiment.write_text(TEXT, encoding="utf-8")
    found = prepare(SweepRequest(experiment=experiment, out=folder / "run"))
    cases = tuple(replace(entry, case=replace(entry.case, device=device)) for entry in found.plan.cases)
    found.run.create()
    return replace(found, plan=replace(found.plan, cases=cases))


def test_gpus_are_claimed_before_anything_computes_on_them(tmp_path: Path) -> None:
    claimed: list[list[str]] = []

    def refuse(gpus: Any) -> NoReturn:
        claimed.append(gpus)
        raise MachineError("another sweep")

    gpus = [{"name": "H100", "uuid": "GPU-1", "pci": None}, {"name": "H100", "pci": None}]

    def probe(path: Path, *_: object) -> int:
        path.write_text(json.dumps({"gpus": gpus}), encoding="utf-8")
        return 0

    server: Any = SimpleNamespace(probe=probe)
    with pytest.raises(MachineError, match="another sweep"):
        identify(prepared_on("cuda", tmp_path), server, Listener(), refuse)
    assert claimed == [["GPU-1", ""]]
    assert not (tmp_path / "run/plan.json").exists()


def test_a_sweep_whose_gpus_others_hold_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory would remain and look like a run in which nothing was run."""

    def refuse(*_: object) -> NoReturn:
        raise MachineError("another sweep")

    class _Servers:
        def __init__(self, log: Path) -> None:
            log.write_text("torch was imported", encoding="utf-8")

        def __enter__(self) -> _Servers:
            return self

        def __exit__(self, *_: object) -> None: ...

        def of(self, _: object) -> None: ...

    (tmp_path / "x.toml").write_text(TEXT, encoding="utf-8")
    prepared = prepare(SweepRequest(experiment=tmp_path / "x.toml", out=tmp_path / "run"))
    monkeypatch.setattr(module, "identify", refuse)
    monkeypatch.setattr(module, "Servers", _Servers)
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    with pytest.raises(MachineError, match="another sweep"):
        Sweep(prepared, Listener()).run()
    assert not (tmp_path / "run").exists()
