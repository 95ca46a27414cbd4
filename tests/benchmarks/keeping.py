"""Support for `--keep FOLDER`: every pair that a benchmark measures is written there, with the machine and versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.kept_pairs import Launch, note_machine, write


def refuse_kept(name: str, folder: Path | None, frameworks: Iterable[str] = ()) -> None:
    """Fail before anything is measured if pairs of this name cannot be kept in the folder.

    They cannot if the folder has pairs of this name, or pairs of another machine.
    """
    if folder is None:
        return
    if (folder / f"{name}.csv").exists():
        pytest.fail(f"{folder / name}.csv is there already: name another folder, or move it away")
    if any(folder.glob("*.csv")) and not (folder / "machine.json").exists():
        pytest.fail(f"{folder} does not say which machine its pairs are of: name another folder")
    note_machine(folder, set(frameworks))


def keep(launches: Sequence[Launch], name: str, folder: Path | None) -> None:
    """Write the pairs of all launches so far if `--keep` names a folder."""
    if folder is not None:
        write(folder / f"{name}.csv", launches)
