"""A made-up machine for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.doctor.fakes import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)
