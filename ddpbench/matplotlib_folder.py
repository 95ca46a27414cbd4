"""Set up the folders of matplotlib: let it write its list of fonts, and keep it from reading a stranger's settings."""

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
"""Name of the settings file that matplotlib looks for first in the working directory."""


def settle_matplotlib() -> None:
    """Prepare this process, and the processes that it starts, for importing matplotlib. Call this before the import.

    - Make a temporary folder if matplotlib's own cannot be written. Otherwise each process would warn and make one.
    - Keep matplotlib from reading settings in the working directory, which may be a stranger's run or even a pipe.
    - Ignore an unknown backend in MPLBACKEND. Figures are drawn into files, without a backend.
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
    """Return False for matplotlib's message on its unsaved list of fonts, which costs only a second."""
    return not str(record.msg).startswith("Could not save font_manager cache")


def _writable(variable: str, in_home: str) -> bool:
    """Return whether matplotlib's folder can be written. It is made if missing; the home directory never is.

    Under sudo, HOME may be another user's, who could not write in folders that root makes there.
    """
    try:
        given = os.environ.get(variable)
        folder = Path(given or Path.home() / in_home) / "matplotlib"
        if not given and (not Path.home().is_dir() or _nearest(folder).stat().st_uid != os.geteuid()):
            return False
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK)


def _nearest(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())


def _remove(folder: TemporaryFolder, owner: int) -> None:
    if os.getpid() == owner:
        folder.remove()


class _Finder(MetaPathFinder):
    """Keeps matplotlib's import from reading settings in the working directory."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return matplotlib's spec, whose loader runs in another working directory; None for other modules."""
        if fullname != "matplotlib":
            return None
        with suppress(ValueError):  # another thread has removed this finder
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

            setattr(spec.loader, "exec_module", load_elsewhere)  # noqa: B010  for this loader alone
        return spec


@contextmanager
def _without_backend() -> Iterator[str]:
    """Unset MPLBACKEND, because matplotlib refuses an unknown backend; yield its value."""
    backend = os.environ.pop("MPLBACKEND", "")
    try:
        yield backend
    finally:
        if backend:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def _without_settings() -> Iterator[None]:
    """Work in the root folder if the working directory has a matplotlibrc file."""
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
