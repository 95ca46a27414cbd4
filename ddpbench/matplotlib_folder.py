"""The folders that matplotlib uses: one where it can write its list of fonts, and none with a stranger's settings."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ddpbench.removal import TemporaryFolder

_SETTINGS = "matplotlibrc"
"""The file of settings that matplotlib looks for in the working directory before any other place."""


def settle_matplotlib() -> None:
    """Give matplotlib a temporary folder if its usual ones cannot be written to, as under a read-only HOME.

    Call it before matplotlib is imported. Otherwise each process would print a warning and make a folder, which stays
    if the process is killed. The folder is for this process and those that it starts. The working directory may be a
    stranger's run: a file of settings in it, which could be a pipe, is not read. A backend in MPLBACKEND that
    matplotlib doesn't have is ignored: figures are drawn into files, without one.
    """
    if "matplotlib" in sys.modules:
        return
    logging.getLogger("matplotlib.font_manager").addFilter(_is_of_use)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if os.environ.get("MPLCONFIGDIR"):
        return
    if _writable("XDG_CONFIG_HOME", ".config") and _writable("XDG_CACHE_HOME", ".cache"):
        return
    with suppress(OSError):  # matplotlib reports the error
        folder = TemporaryFolder("ddpbench-matplotlib-")
        os.environ["MPLCONFIGDIR"] = str(folder.path)
        atexit.register(_remove, folder, os.getpid())


def _is_of_use(record: logging.LogRecord) -> bool:
    """Return True if the user can do something about matplotlib's message: an unsaved font list costs only a second."""
    return not str(record.msg).startswith("Could not save font_manager cache")


def _writable(variable: str, in_home: str) -> bool:
    """Return whether matplotlib's folder below this one can be written to; makes it as matplotlib would.

    A home directory that does not exist is not made.
    """
    try:
        if not os.environ.get(variable) and not Path.home().is_dir():
            return False
        folder = Path(os.environ.get(variable) or Path.home() / in_home) / "matplotlib"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK)


def _remove(folder: TemporaryFolder, owner: int) -> None:
    if os.getpid() == owner:
        folder.remove()


class _Finder(MetaPathFinder):
    """Keeps matplotlib from reading settings of the working directory while it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where matplotlib is, with a loader that works elsewhere; None for all other modules."""
        if fullname != "matplotlib":
            return None
        with suppress(ValueError):  # another thread has removed it
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_elsewhere(module: ModuleType) -> None:
                with _without_settings(), _without_backend() as backend:
                    load(module)
                if backend:
                    with suppress(ValueError):
                        module.rcParams["backend"] = backend

            setattr(spec.loader, "exec_module", load_elsewhere)  # noqa: B010  of this loader alone
        return spec


@contextmanager
def _without_backend() -> Iterator[str]:
    """Remove MPLBACKEND from the environment meanwhile: matplotlib raises an error for one that it doesn't have."""
    backend = os.environ.pop("MPLBACKEND", "")
    try:
        yield backend
    finally:
        if backend:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def _without_settings() -> Iterator[None]:
    """Work in the root folder if the working directory has such a file."""
    if not os.path.lexists(_SETTINGS):
        yield
        return
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)
