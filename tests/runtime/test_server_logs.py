"""Messages about a fork server that ends at once: its log is named only if it stays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench import pytest_plugin
from ddpbench.errors import LaunchError, MachineError
from ddpbench.launch.devices import usable_devices
from ddpbench.launch.own_batches import stated_batches
from ddpbench.launch.own_class.trial import trial_of
from ddpbench.launch.profiling import PreparedProfile, measure_profile
from ddpbench.machine.hardware import read_hardware
from ddpbench.runtime.probes import probed
from ddpbench.runtime.server import ServerProcess
from tests.synthetic import case_of

CLASS = b"class Measured:\n    batch = 4\n    def model(self): ...\n"


def _profile() -> None:
    prepared = PreparedProfile(
        case=case_of("single"), hardware=read_hardware(), steps=1, out=Path("profile.json")
    )
    measure_profile(prepared)


def test_a_profile_is_announced_once_the_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise MachineError("taken")

    announced: list[None] = []
    monkeypatch.setattr("ddpbench.launch.profiling.own_environment_allows_sharing", lambda: False)
    monkeypatch.setattr("ddpbench.launch.profiling.claimed", taken)
    prepared = PreparedProfile(
        case=case_of("single"), hardware=read_hardware(), steps=1, out=Path("profile.json")
    )
    with pytest.raises(MachineError, match="taken"):
        measure_profile(prepared, lambda: announced.append(None))
    assert announced == []


def _in_pytest() -> None:
    config: Any = SimpleNamespace(stash=pytest.Stash(), getoption=lambda *_: "fd")
    try:
        pytest_plugin._bench(config).servers.of({})
    finally:
        pytest_plugin.pytest_unconfigure(config)


def _devices() -> None:
    hardware: Any = SimpleNamespace(may_have_gpus=True)
    usable_devices(hardware)


def _batches() -> None:
    Path("train.py").write_bytes(CLASS)
    stated_batches(["train.py:Measured"])


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up an interpreter that ends at once."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    "asked", [_profile, _in_pytest, _devices, _batches, lambda: trial_of(Path("train.py"), CLASS)]
)
def test_a_log_that_is_removed_is_not_named(asked: Callable[[], object]) -> None:
    with pytest.raises(LaunchError) as error:
        asked()
    assert str(error.value) == "the fork server ended with exit code 1; its last words: broken"


@pytest.mark.usefixtures("broken")
def test_a_log_that_stays_is_named() -> None:
    said = r"with exit code 1 \(its last words: broken; see server.log\)$"
    with pytest.raises(LaunchError, match=said):
        ServerProcess({}, Path("server.log"))


def test_a_probes_log_is_named_where_it_stays(tmp_path: Path) -> None:
    server: Any = SimpleNamespace(probe=lambda *_: 1)
    (tmp_path / "probe.log").write_text("no torch\n", encoding="utf-8")
    with pytest.raises(LaunchError, match=r"here \(its last words: no torch; see .*probe.log\)$"):
        probed(server, tmp_path)
    with pytest.raises(LaunchError, match=r"here; its last words: no torch$"):
        probed(server, tmp_path, log_stays=False)
