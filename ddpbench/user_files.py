"""Recognise and import classes in users' own files, which are named by `train.py:Mine` or `package.module:Mine`.

Planning an experiment imports the files of strategies, and ranks import all files. Commands that read a run's results
import none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import NoReturn

from ddpbench.causes import users_line
from ddpbench.errors import nearest


def is_import_path(name: str) -> bool:
    """Return whether a name has the form of a class in a user's own file or module, such as `train.py:Mine`.

    In a top-level module the class must begin with a capital letter, unlike the workload `gpt:nano`.
    """
    head, colon, attribute = name.rpartition(":")
    if not colon or not attribute.isidentifier():
        return False
    is_module = all(part.isidentifier() for part in head.split("."))
    return head.endswith(".py") or (is_module and ("." in head or attribute[:1].isupper()))


def short_name(name: str) -> str:
    """Return the class name in an import path, such as `Mine` in `train.py:Mine`; any other name unchanged."""
    return name.rpartition(":")[2] if is_import_path(name) else name


def load_class(name: str, able: Callable[[object, ModuleType], bool], *, first: bool) -> type:
    """Return the class of an import path, importing its module if necessary.

    Args:
        name: the import path, such as `train.py:Mine`.
        able: takes a value in the module, and the module; returns whether an error message may suggest this value.
        first: whether to import the file as Python runs a script: its folder stays first in `sys.path`, and its module
            has the file's name, by which other processes find it. Otherwise the folder is moved to the end of
            `sys.path` after the import, several files of one name may be loaded, and a file that has changed since it
            was imported is imported again.

    Raises:
        ImportError: the module cannot be imported, or has no such class; the message says why.
    """
    head, _, attribute = name.rpartition(":")
    try:
        with contextlib.nullcontext() if first else _surroundings_kept(), _threads_noted(head):
            module = _module_of_file(head, first=first) if head.endswith(".py") else _module_named(head)
    except SystemExit as error:
        parses = any(Path(at.filename).stem == "argparse" for at in extract_tb(error.__traceback__))
        empty = " (it reads the command line, which is empty here)" if parses else ""
        advice = f'{empty}; move what the script runs when started under if __name__ == "__main__":'
        raise ImportError(f"{head} cannot be imported: it ends the process{advice}") from error
    except Exception as error:
        relative = head.endswith(".py") and "relative import" in str(error)
        package = ".".join(Path(head).resolve().with_suffix("").parts[-2:])
        advice = f"; name it in its package, from the folder above: {package}:{attribute}" if relative else ""
        raise ImportError(f"{head} cannot be imported: {type(error).__name__}: {error}{advice}") from error
    found = getattr(module, attribute, None)
    if not inspect.isclass(found):
        known = [key for key, value in vars(module).items() if able(value, module)]
        raise ImportError(f"{head} has no class {attribute}; {nearest(attribute, known)}")
    return found


@contextlib.contextmanager
def _surroundings_kept() -> Iterator[None]:
    """Undo what importing a user's file does to the process, and send its output to standard error.

    Standard output may be a table for programs.
    """
    before, here = [*sys.path], ""
    with contextlib.suppress(FileNotFoundError):  # the working directory has been removed
        here = str(Path.cwd())
    try:
        with contextlib.redirect_stdout(sys.stderr), process_kept():
            yield
    finally:
        if here:
            os.chdir(here)
        sys.path[:] = [*before, *(place for place in sys.path if place not in before)]


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Make `os._exit` raise SystemExit in this context, so that a message can name the caller.

    Forked processes and other threads are not affected.
    """
    end, process, thread, within = os._exit, os.getpid(), threading.get_ident(), True

    def ends(status: int) -> NoReturn:
        if within and (os.getpid(), threading.get_ident()) == (process, thread):
            raise SystemExit(status)
        end(status)

    os._exit = ends
    try:
        yield
    finally:
        os._exit, within = end, False


_THREADS: dict[threading.Thread, str] = {}


@contextlib.contextmanager
def _threads_noted(name: str) -> Iterator[None]:
    before = {*threading.enumerate()}
    try:
        yield
    finally:
        _THREADS.update(dict.fromkeys({*threading.enumerate()} - before, name))


def file_of_thread(thread: threading.Thread) -> str:
    """Return the user's file or module whose import started a thread; empty if no import did."""
    return _THREADS.get(thread, "")


def sentence_of(error: ImportError) -> str:
    """Return the message of an error that `load_class` raised, with the line of the user's file that caused it."""
    cause = error.__cause__
    return f"{error}{users_line(cause) if cause is not None else ''}"


_ROOT = 0


class _SharedFolder:
    """Finds modules in a folder that others can write, only for the user's own modules.

    In `sys.path`, such a folder could answer any import, such as torch's search for triton.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.importers: set[str] = set()
        """First parts of the names of the user's modules, and of the modules that these have imported from this folder.
        """
        self.named: set[str] = set()
        """Modules that the user has named, which any importer may import."""
        self.found: set[str] = set()
        """Names of the modules found in this folder, which loader workers must find too."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not (fullname in self.named or _importer() in self.importers):
            return None
        spec = PathFinder.find_spec(fullname, [str(self.folder)])
        if spec is not None:
            self.importers.add(fullname)
            self.found.add(fullname)
        return spec


def _importer() -> str:
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in ("importlib", "_frozen_importlib", "_frozen_importlib_external") and (
            frame.f_code.co_filename != __file__
        ):
            return name
        frame = frame.f_back
    return ""


def _shared(folder: Path) -> _SharedFolder:
    for finder in sys.meta_path:
        if isinstance(finder, _SharedFolder) and finder.folder == folder:
            return finder
    made = _SharedFolder(folder)
    sys.meta_path.append(made)
    return made


def shared_folders() -> str:
    """Return the folders that are searched for modules and in which other users can write.

    The result is JSON for `search_shared_folders`.
    """
    finders = [finder for finder in sys.meta_path if isinstance(finder, _SharedFolder)]
    return json.dumps([[str(one.folder), sorted(one.importers), sorted(one.found)] for one in finders])


def search_shared_folders(folders: str) -> None:
    """Make this process search the folders in `folders`, as another process's `shared_folders` returned them.

    Any module may import what the other process found there.
    """
    for folder, importers, found in json.loads(folders):
        finder = _shared(Path(folder))
        finder.importers |= {*importers}
        finder.named |= {*found}


def _module_named(name: str) -> ModuleType:
    """Import a module, searching the working directory first, or last if others can write in it."""
    with contextlib.suppress(FileNotFoundError):  # the working directory has been removed
        here = Path.cwd()
        if is_others(here):
            finder = _shared(here)
            finder.named.add(name.partition(".")[0])
        elif str(here) not in sys.path and "" not in sys.path:
            python = sysconfig.get_path("stdlib")
            sys.path.insert(sys.path.index(python) if python in sys.path else 0, str(here))
    return importlib.import_module(name)


def _search_working_directory(importer: str) -> None:
    """Let `importer` find modules in the working directory, after all other places."""
    with contextlib.suppress(FileNotFoundError):  # the working directory has been removed
        here = Path.cwd()
        if is_others(here):
            _shared(here).importers.add(importer.partition(".")[0])
        elif str(here) not in sys.path and "" not in sys.path:
            sys.path.append(str(here))


def search_beside(folder: Path, importer: str) -> None:
    """Search a script's folder first for modules, as Python does, or last if everybody can write in it.

    Other users' files may have any module's name, so the folder is then searched only for `importer` and its own
    imports.
    """
    if _everybody_writes(folder):
        finder, name = _shared(folder), importer.partition(".")[0]
        finder.importers.add(name)
        finder.found.add(name)
    elif str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))


def is_others(folder: Path) -> bool:
    """Return whether everybody can write in a folder, or a user other than this one and root owns it."""
    return _everybody_writes(folder) or folder.stat().st_uid not in (os.geteuid(), _ROOT)


def _everybody_writes(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWOTH)


_FOUND: dict[str, Path] = {}
"""Paths of the users' files by the names given for them, since an import may change the working directory."""
_AS_OF: dict[Path, tuple[int, int]] = {}
"""Each file's modification time (ns) and size (bytes) when it was imported."""


def _module_of_file(name: str, *, first: bool) -> ModuleType:
    """Import a file under its own name, by which loader workers find the dataset's class again.

    Unless `first`, a digest of the path is appended if the name is taken.
    """
    path = Path(name).resolve()
    path = path if path.is_file() else _FOUND.get(name, path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file (looked for {path})")
    _FOUND[name] = path
    as_of = (path.stat().st_mtime_ns, path.stat().st_size)
    own_name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    for key in (path.stem, own_name):
        loaded = sys.modules.get(key)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            if first or _AS_OF.get(path, as_of) == as_of:
                if first:
                    search_beside(path.parent, key)
                _search_working_directory(key)
                return loaded
            del sys.modules[key]
    key = path.stem
    if key in sys.modules or key in sys.stdlib_module_names:
        if first:
            raise ImportError(f"it would hide the module {key}, which other code needs: rename the file")
        key = own_name
    _AS_OF[path] = as_of
    return _executed(key, path)


def _executed(key: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    before, words = [*sys.path], sys.argv
    search_beside(path.parent, key)
    _search_working_directory(key)
    sys.argv = [
        str(path)
    ]  # so that a script which parses its command line at the top level gets its defaults
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        sys.path[:] = before
        raise
    finally:
        sys.argv = words
    return module
