"""A folder that matplotlib can write to: it keeps its list of fonts there."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


def settle_matplotlib() -> None:
    """Give matplotlib a temporary folder where its usual ones cannot be written to, as under a read-only HOME.

    Call it before matplotlib is imported. Otherwise each process would print a warning and make a folder, which stays
    where the process is killed. The folder is for this process and those that it starts.
    """
    if os.environ.get("MPLCONFIGDIR") or "matplotlib" in sys.modules:
        return
    if _writable("XDG_CONFIG_HOME", ".config") and _writable("XDG_CACHE_HOME", ".cache"):
        return
    with suppress(OSError):  # matplotlib says what is wrong
        folder = tempfile.mkdtemp(prefix="ddpbench-matplotlib-")
        os.environ["MPLCONFIGDIR"] = folder
        atexit.register(_remove, folder, os.getpid())


def _writable(variable: str, in_home: str) -> bool:
    """Return whether matplotlib's folder below this one, which is made here as it would make it, can be written to."""
    try:
        folder = Path(os.environ.get(variable) or Path.home() / in_home) / "matplotlib"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
