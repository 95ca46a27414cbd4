"""Detecting a framework without importing it, and the messages about one that is missing or too old."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest

from ddpbench.strategies.frameworks import installed
from ddpbench.strategies.frameworks.installed import FRAMEWORKS, missing, versions


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the installed packages, by distribution."""
    there: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
    return there


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_names_the_line(name: str, packages: dict[str, str]) -> None:
    assert packages == {}
    assert f"pip install 'ddpbench[{FRAMEWORKS[name].extra}]'" in str(missing(name))
    assert versions(name) == {}


def test_an_old_one_names_both_versions(packages: dict[str, str]) -> None:
    packages |= {"accelerate": "0.34.2"}
    assert "accelerate 0.34.2 is too old, Accelerate needs 1.0 or newer" in str(missing("accelerate"))
    packages |= {"accelerate": "1.0.0rc1"}
    assert missing("accelerate") is None
    assert versions("accelerate") == {"accelerate": "1.0.0rc1"}


def test_any_of_several_distributions_will_do(packages: dict[str, str]) -> None:
    packages |= {"tensorflow-cpu": "2.21.0"}
    assert missing("tensorflow") is None
    assert versions("tensorflow") == {"tensorflow-cpu": "2.21.0"}


def test_a_folder_that_is_left_of_a_package_is_none(
    packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages |= {"accelerate": "1.15.0"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert missing("accelerate") == "accelerate is not installed; run: pip install 'ddpbench[accelerate]'"


def test_nothing_is_imported() -> None:
    before = set(sys.modules)
    for name in FRAMEWORKS:
        missing(name)
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not new & {needed.module.partition(".")[0] for one in FRAMEWORKS.values() for needed in one.needs}
    assert installed.__doc__
