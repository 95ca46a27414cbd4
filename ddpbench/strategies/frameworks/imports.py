"""Imports frameworks in ranks, with a clear error if an installed framework cannot be imported."""

from __future__ import annotations

import importlib
from types import ModuleType

from ddpbench.strategies.frameworks.installed import FRAMEWORKS, versions
from ddpbench.text_safety import command


def imported(framework: str, module: str) -> ModuleType:
    """Import and return a module of a framework. `framework` is the framework's name in `FRAMEWORKS`.

    Raises:
        ImportError: the import raised an exception of any type; the message says what is installed and what to do.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        known = FRAMEWORKS[framework]
        there = ", ".join(f"{name} {version}" for name, version in versions(framework).items())
        raise ImportError(
            f"{known.display} is installed ({there}) but cannot be imported: {type(error).__name__}: "
            f"{error}; reinstall what it needs: "
            f"{command('pip', 'install', '--force-reinstall', f'ddpbench[{known.extra}]')}"
        ) from error
