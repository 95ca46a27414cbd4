"""The known frameworks, the packages that each needs, and checks that they are installed, without importing any."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.text_safety import command


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """A package that the strategy of a framework imports."""

    module: str
    """The module that is imported."""
    distributions: tuple[str, ...]
    """Names of packages on PyPI that provide the module. Messages name the first."""
    at_least: str
    """The oldest supported version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """Facts about a framework that are known without importing it."""

    display: str
    extra: str
    """The optional dependency of ddpbench that installs the framework, as in `pip install 'ddpbench[EXTRA]'`."""
    needs: tuple[Needed, ...]


_GREENLET = Needed(module="greenlet", distributions=("greenlet",), at_least="3.0")
_ACCELERATE = Needed(module="accelerate", distributions=("accelerate",), at_least="1.0")
_TENSORFLOW = Needed(module="tensorflow", distributions=("tensorflow", "tensorflow-cpu"), at_least="2.16")
FRAMEWORKS: dict[str, Framework] = {
    "accelerate": Framework(display="Accelerate", extra="accelerate", needs=(_ACCELERATE,)),
    "lightning": Framework(
        display="Lightning",
        extra="lightning",
        needs=(Needed(module="lightning", distributions=("lightning",), at_least="2.4"), _GREENLET),
    ),
    "hf_trainer": Framework(
        display="transformers Trainer",
        extra="hf-trainer",
        needs=(
            Needed(module="transformers", distributions=("transformers",), at_least="4.48"),
            _ACCELERATE,
            _GREENLET,
        ),
    ),
    "deepspeed": Framework(
        display="DeepSpeed",
        extra="deepspeed",
        needs=(Needed(module="deepspeed", distributions=("deepspeed",), at_least="0.16"),),
    ),
    "ray_train": Framework(
        display="Ray Train",
        extra="ray-train",
        needs=(Needed(module="ray.train", distributions=("ray",), at_least="2.51"),),
    ),
    "tensorflow": Framework(display="TensorFlow", extra="tensorflow", needs=(_TENSORFLOW,)),
}
"""Frameworks by the name of their strategy, except for TensorFlow, which has two strategies."""


def versions(name: str) -> dict[str, str]:
    """Return the versions of the installed packages that a framework needs, by package name."""
    found = {}
    for needed in FRAMEWORKS[name].needs:
        distribution, version = _installed(needed.distributions)
        if version:
            found[distribution] = version
    return found


def missing(name: str) -> str | None:
    """Return why a framework cannot be used here and how to install it, or None. This imports nothing."""
    framework = FRAMEWORKS[name]
    line = command("pip", "install", f"ddpbench[{framework.extra}]")
    for needed in framework.needs:
        distribution, version = _installed(needed.distributions)
        if not version or not _importable(needed.module):
            return f"{distribution} is not installed; run: {line}"
        if _numbers(version) < _numbers(needed.at_least):
            return (
                f"{distribution} {version} is too old, {framework.display} needs {needed.at_least} or "
                f"newer; run: {line}"
            )
    return None


def _installed(distributions: Sequence[str]) -> tuple[str, str]:
    for distribution in distributions:
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return distributions[0], ""


def _importable(module: str) -> bool:
    """Return whether a top-level package exists; a search for the module would import its parents."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def _numbers(version: str) -> tuple[int, ...]:
    """Return (2, 6, 0) for `2.6.0rc1`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
