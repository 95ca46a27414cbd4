"""A user's own cache: what is made again for the same input is taken from there. Whatever fails there costs time alone.

What is kept is pickled by its owners, so it is never in a run directory, which may come from a stranger.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddpbench.errors import UnreadableError
from ddpbench.records import write_atomically
from ddpbench.records.files import MIB, read_bytes

FOLDER = "DDPBENCH_CACHE"
"""A variable that names another folder; nothing is kept where it is set and empty."""
MOST: Mapping[str, int] = {"run": 50, "figure": 500}
"""Files of each kind that are kept, those used last: a run of a thousand cases has 8 MiB, a figure up to one."""
_MOST_BYTES = 1024 * MIB
_PACKAGE = Path(__file__).resolve().parent


def cache_folder() -> Path | None:
    """Return where it is: in `~/.cache`, or what `XDG_CACHE_HOME` says; None: nowhere."""
    if (own := os.environ.get(FOLDER)) is not None:
        return Path(own).absolute() if own else None
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111
    return base / "ddpbench" if base.is_absolute() else None  # nobody's home is known


def kept(kind: str, name: str, stamp: bytes) -> Any:
    """Return what was kept under a name, if it was with this stamp; None where that is nothing."""
    folder = cache_folder()
    if folder is None or not _is_ours(folder):
        return None
    path = folder / f"{name}.{kind}"
    try:
        data = read_bytes(path, _MOST_BYTES)
        if data[: len(stamp)] != stamp:
            return None
        found = pickle.loads(memoryview(data)[len(stamp) :])
        os.utime(path)  # what is used stays
    except (OSError, UnreadableError):
        return None
    except Exception:  # cut short: whatever pickle makes of it, it can be made again
        return None
    return found


def keep(kind: str, name: str, stamp: bytes, value: object) -> None:
    """Keeps something under a name, and of its kind what was used last."""
    folder = cache_folder()
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder):
            return
        write_atomically(folder / f"{name}.{kind}", stamp + pickle.dumps(value), flushed=False, private=True)
        for path in sorted(folder.glob(f"*.{kind}"), key=lambda path: path.stat().st_mtime)[: -MOST[kind]]:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _is_ours(folder: Path) -> bool:
    """Return whether it is a folder that nobody else can have written in."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def told(found: os.stat_result) -> tuple[int, ...]:
    """Return what changes with a file: the time of its last change is the kernel's, which nobody sets."""
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@cache
def code_stamp() -> bytes:
    """Return a digest of this package's code, of Python and of what computes and draws, as they are now."""
    digest = hashlib.sha256(repr((sys.version, *map(version, ("numpy", "scipy", "matplotlib")))).encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(repr((os.fsencode(path), told(path.lstat()))).encode())
    return digest.digest()
