"""Folders that are held open, given by a path that always leads to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.records.held import HeldFolder, held_folder, new_folder


def test_a_held_folder_is_not_looked_for_again_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing it just after its path was read does not lead elsewhere."""
    mine, folder = tmp_path / "mine", tmp_path / "shared/folder"
    for made in (mine, folder):
        made.mkdir(parents=True)
    target = HeldFolder.target

    def exchanged(self: HeldFolder, name: str) -> Path | None:
        found = target(self, name)
        if found == folder:
            folder.rename(tmp_path / "shared/away")
            folder.symlink_to(mine)
        return found

    with held_folder(folder) as held:
        monkeypatch.setattr(HeldFolder, "target", exchanged)
        with new_folder(held.itself / "below") as below:
            (below / "file").touch()
    assert list(mine.iterdir()) == []
    assert (folder / "below/file").exists()


def test_in_a_held_folder_that_was_removed_nothing_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with held_folder(folder) as held:
        folder.rmdir()
        with pytest.raises(FileNotFoundError), new_folder(held.itself) as itself:
            (itself / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_an_open_file_is_no_folder(tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(NotADirectoryError),
        new_folder(Path(f"/proc/self/fd/{file.fileno()}/below")),
    ):
        pass
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208
