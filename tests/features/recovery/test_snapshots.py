"""Snapshots on a disk are complete or not used: a faulty one is reported, and the one before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddpbench.features.recovery.rank.snapshots import Snapshots


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    found = Snapshots(tmp_path)
    for step in (10, 20, 30):
        found.write(step, {"step": step, "weights": torch.full((10_000,), float(step))})
    return found


def data(snapshots: Snapshots, step: int) -> Path:
    return snapshots.folder / f"snapshot-{step:09d}.pt"


def test_the_newest_is_found_and_two_are_kept(snapshots: Snapshots) -> None:
    assert snapshots.newest() == (30, ())
    assert snapshots.read(30)["weights"][7] == 30
    assert sorted(path.name for path in snapshots.folder.glob("*.pt")) == [
        data(snapshots, step).name for step in (20, 30)
    ]


def test_none_is_found_where_there_is_none(tmp_path: Path) -> None:
    assert Snapshots(tmp_path).newest() == (None, ())


def test_a_torn_one_is_said_and_the_one_before_is_taken(snapshots: Snapshots) -> None:
    path = data(snapshots, 30)
    path.write_bytes(path.read_bytes()[:1000])
    step, unreadable = snapshots.newest()
    assert step == 20
    assert len(unreadable) == 1
    assert unreadable[0].startswith("the snapshot of step 30 is torn: 1,000 of ")


def test_one_whose_bytes_changed_is_said_though_torch_loads_it(snapshots: Snapshots) -> None:
    path = data(snapshots, 30)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # it does not detect the change
    assert snapshots.newest() == (20, ("the snapshot of step 30 is damaged: its checksum is another",))


def test_one_that_was_not_finished_is_no_snapshot(snapshots: Snapshots) -> None:
    def killed(written: int) -> None:
        if written > 1000:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, RuntimeError)):  # which error it is depends on torch's writer
        snapshots.write(40, {"weights": torch.zeros(10_000)}, killed)
    assert snapshots.newest() == (30, ("the snapshot of step 40 was not finished",))
    for step in (30, 20):
        data(snapshots, step).unlink()
    found, unreadable = snapshots.newest()
    assert found is None
    assert len(unreadable) == 1
