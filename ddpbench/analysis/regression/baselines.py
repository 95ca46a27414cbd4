"""Find the sides of a comparison by path, or by the name of a baseline saved in pytest-benchmark's storage.

    .benchmarks/Linux-CPython-3.11-64bit/0001_main.json

A saved file can be named by its full name (`0001_main`), its number (`0001`), or the part after the number (`main`, the
latest of that name). `MACHINE/NAME` is looked up in the folder of a different machine.
"""

from __future__ import annotations

import glob
import itertools
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddpbench.analysis.regression.saved import read_saved
from ddpbench.analysis.regression.sides import Side, read_side
from ddpbench.errors import OutputError, RequestError, meant, meant_path
from ddpbench.planted import is_decoy
from ddpbench.records.files import check_default, write_numbered
from ddpbench.records.held import new_folder
from ddpbench.records.rundir import explain_os_error, is_run
from ddpbench.records.submission_dir import run_at
from ddpbench.text_safety import on_one_line, shortened

STORAGE = Path(".benchmarks")
"""Default storage of pytest-benchmark, relative to the working directory."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_MOST_TOLD = 12


def machine_folder() -> str:
    """Return the name of this kind of machine's folder in a storage, as pytest-benchmark names it."""
    python = ".".join(platform.python_version_tuple()[:2])
    words = (platform.system(), platform.python_implementation(), python, platform.architecture()[0])
    return "-".join(words)


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines saved in a storage folder."""

    storage: Path = STORAGE

    def entries(self, machine: str | None = None) -> list[Path]:
        """Return the saved files by number, the oldest first.

        The files are from machines of this kind, or of kind `machine`.
        """
        if self.storage == STORAGE:
            check_default(self.storage, "its numbers may be anything; work in a folder of yours")
        folder = self.storage / glob.escape(machine or machine_folder())
        found = [path for path in (*folder.glob("*.json"), *self.storage.glob("*.json")) if path.is_file()]
        return sorted(found, key=lambda path: (_number(path), path.name))

    def find(self, text: str, *, elsewhere: bool = False) -> Path:
        """Return the saved file that `text` names, by full name or by number.

        With `elsewhere`, the error message also says that the text is not a path.

        Raises:
            RequestError: no file has this name, or several have this number; the message says where it looked and which
                names are saved there.
        """
        machine, _, name = text.rpartition("/")
        there = self.entries(machine or None) if not machine or _NAME.fullmatch(machine) else []
        name = name.removesuffix(".json")
        whole = [path for path in there if path.stem == name]
        numbered = [path for path in there if name.isdecimal() and path.stem.partition("_")[0] == name]
        named = [path for path in there if _bare(path) == name]
        if len(numbered) > 1 and not whole:
            listed = ", ".join(path.stem for path in numbered)
            raise RequestError(
                f"several saved baselines have the number {text}: {listed}; give the full name of one"
            )
        found = whole or numbered or named
        if not found:
            raise RequestError(self._missing(text, elsewhere=elsewhere))
        return found[-1]

    def save(self, name: str, content: bytes) -> Path:
        """Save a file under this name and the next number, as pytest-benchmark does, and return its path.

        Raises:
            RequestError: the name is invalid.
            OutputError: the file cannot be written.
        """
        if not _NAME.fullmatch(name) or name.isdecimal():
            raise RequestError(
                f"invalid baseline name {shortened(name)}: use letters, digits, '_', '-', '.' or '+'. Digits "
                "alone would be the number of a saved baseline"
            )
        folder = self.storage / machine_folder()
        first = 1 + max((_number(path) for path in self.entries()), default=0)
        path = folder / f"{first:04d}_{name}.json"
        try:
            with new_folder(folder) as held:
                for number in itertools.count(first):  # a concurrent save may have taken the number
                    path = folder / f"{number:04d}_{name}.json"
                    if write_numbered(held / path.name, number, content, partial(self._has, number)):
                        break
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None
        return path

    def _has(self, number: int) -> bool:
        return any(_number(path) == number for path in self.entries())

    def _missing(self, text: str, *, elsewhere: bool) -> str:
        machine = text.rpartition("/")[0]
        machine = machine if _NAME.fullmatch(machine) else machine_folder()
        there = self.entries(machine)
        names = [on_one_line(path.stem) for path in there]
        more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
        what = f"saved there: {', '.join(names[-_MOST_TOLD:])}{more}" if names else "nothing is saved there"
        folder = self.storage / machine
        near = elsewhere and meant_path(Path(text), lambda path: path.is_file() or is_run(path))
        hint = f"{near} " if near else f"; {meant(text, [*names, *map(_bare, there)])}"
        name = shortened(text)
        missing = f"{name} is neither a run directory nor a file here, nor a" if elsewhere else "no"
        called = "" if elsewhere else f" {name} is"
        return f"{missing} baseline{called} saved in {folder}{hint}{what}"


def _number(path: Path) -> int:
    digits = path.stem.partition("_")[0]
    return int(digits) if len(digits) == 4 and digits.isdecimal() else 0


def _bare(path: Path) -> str:
    return path.stem.partition("_")[2] if _number(path) else path.stem


def find_side(text: str, baselines: Baselines | None = None) -> Path:
    """Return the path of the run directory, the file, or the saved baseline to which a text refers.

    If another user has put a path with this name into the working directory, a saved baseline is preferred.

    Raises:
        RequestError: the text matches nothing here.
    """
    path, saved = Path(text), baselines or Baselines()
    if is_decoy(text):
        with suppress(RequestError):
            return saved.find(text)
    return path if path.exists() or path.is_symlink() else saved.find(text, elsewhere=True)


def side_of(text: str, baselines: Baselines | None = None) -> Side:
    """Read the side to which a text refers: a run directory, a pytest-benchmark file, or a saved baseline.

    Raises:
        RequestError: the text matches nothing; the message says where it looked.
        IdentityError: the side is damaged, has another schema, or was not written by ddpbench.
    """
    path = find_side(text, baselines)
    if path.is_dir():
        return read_side(run_at(path))
    return read_saved(path, "" if str(path) == str(Path(text)) else path.stem)
