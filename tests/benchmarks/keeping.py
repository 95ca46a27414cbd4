"""What `--keep FOLDER` does: every pair that a benchmark measures is written there, beside what measured it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.kept_pairs import Launch, note_machine, write


def refuse_kept(name: str, folder: Path | None, frameworks: Iterable[str] = ()) -> None:
    """Fail before anything is measured where pairs of this name are kept already: none is measured until it suits.

    So it does where those that are kept there are another machine's.
    """
    if folder is None:
        return
    if (folder / f"{name}.csv").exists():
        pytest.fail(f"{folder / name}.csv is there already: name another folder, or move it away")
    if any(folder.glob("*.csv")) and not (folder / "machine.json").exists():
        pytest.fail(f"{folder} does not say which machine its pairs are of: name another folder")
    note_machine(folder, set(frameworks))


def keep(launches: Sequence[Launch], name: str, folder: Path | None) -> None:
    """Write the pairs of all launches so far where `--keep` names a folder."""
    if folder is not None:
        write(folder / f"{name}.csv", launches)
