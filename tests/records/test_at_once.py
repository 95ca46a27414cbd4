"""Writers of one file at once, and readers between two writes: none blocks another or reads half a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ddpbench
from ddpbench import report
from ddpbench.analysis.regression.baselines import Baselines
from ddpbench.errors import RequestError
from ddpbench.records import RunDir, archive, files, pack, write_atomically
from ddpbench.records.archive import unpack
from ddpbench.records.outputs import write_output
from ddpbench.records.rundir import MARK
from tests.synthetic import write_run

DAY_S = 86_400


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run", 3)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[object]]:
    """Run something once, in the middle of the next write."""

    def do(work: Callable[[], object]) -> list[object]:
        flush, results = os.fsync, []

        def first(descriptor: int) -> None:
            monkeypatch.setattr(os, "fsync", flush)
            results.append(work())
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", first)
        return results

    return do


@pytest.mark.parametrize("write", [write_atomically, write_output])
def test_two_writers_of_one_file_both_end_well(
    tmp_path: Path,
    meanwhile: Callable[[Callable[[], object]], list[object]],
    write: Callable[[Path, str], None],
) -> None:
    path = tmp_path / "cases.csv"
    done = meanwhile(lambda: write(path, "another's"))
    write(path, "mine")
    assert done == [None]
    assert path.read_text(encoding="utf-8") == "mine"  # the last to end
    assert [found.name for found in tmp_path.iterdir()] == ["cases.csv"]


def test_what_killed_writers_left_is_removed_a_day_later(tmp_path: Path) -> None:
    names = {
        ".ddpbench-0123456789abcdef.new": False,
        ".ddpbench-0123456789abcdee.new": True,  # an hour old: its writer may live
        ".ddpbench-mine.new": True,
        ".notes.new": True,
        "thesis.new": True,
    }
    write_atomically(tmp_path / "plan.json", "{}")
    now = (tmp_path / "plan.json").stat().st_mtime
    for number, name in enumerate(names):
        (tmp_path / name).write_text("left", encoding="utf-8")
        age = 3600 if number == 1 else DAY_S + 60
        os.utime(tmp_path / name, (now - age, now - age))
    (tmp_path / ".ddpbench-0123456789abcded.new").symlink_to("thesis.new")
    os.utime(tmp_path / ".ddpbench-0123456789abcded.new", (0, 0), follow_symlinks=False)
    write_atomically(tmp_path / "plan.json", "{}")
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"plan.json", ".ddpbench-0123456789abcded.new", *(one for one in names if names[one])}


def test_what_another_users_killed_writers_left_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root could remove it."""
    left = tmp_path / ".ddpbench-0123456789abcdef.new"
    left.write_text("left", encoding="utf-8")
    os.utime(left, (0, 0))
    other = os.geteuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr("ddpbench.records.files.os.geteuid", lambda: other)
        write_atomically(tmp_path / "plan.json", "{}")
    assert left.exists()
    write_atomically(tmp_path / "plan.json", "{}")
    assert not left.exists()


@pytest.mark.parametrize("name", ["main", "other"])
@pytest.mark.parametrize("links", [True, False])
def test_two_baselines_that_are_saved_at_once_get_a_number_each(
    tmp_path: Path,
    meanwhile: Callable[[Callable[[], object]], list[object]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    links: bool,
) -> None:
    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", none)
    baselines = Baselines(tmp_path)
    baselines.save("main", b"0")
    done = meanwhile(lambda: baselines.save(name, b"2"))
    mine = baselines.save("main", b"1")
    (other,) = done
    assert isinstance(other, Path)
    assert (mine.name, other.name) == ("0002_main.json", f"0003_{name}.json")
    assert (mine.read_bytes(), other.read_bytes()) == (b"1", b"2")
    assert len([*mine.parent.iterdir()]) == 3


def test_a_number_that_was_taken_since_is_left_to_its_file(
    tmp_path: Path, meanwhile: Callable[[Callable[[], object]], list[object]]
) -> None:
    """pytest-benchmark makes no claims."""
    baselines = Baselines(tmp_path)
    theirs = baselines.save("main", b"0").with_name("0002_theirs.json")
    meanwhile(lambda: theirs.write_bytes(b"theirs"))
    assert baselines.save("main", b"1").name == "0003_main.json"
    assert theirs.read_bytes() == b"theirs"


@pytest.mark.usefixtures("painted")
def test_a_report_during_another_is_written(
    run: RunDir, meanwhile: Callable[[Callable[[], object]], list[object]]
) -> None:
    done = meanwhile(lambda: ddpbench.write_report(run.path))
    assert ddpbench.write_report(run.path) == run.report
    assert done == [run.report]
    assert not [path for path in run.path.rglob("*") if path.name.endswith(".new")]


@pytest.mark.usefixtures("painted")
def test_a_picture_that_another_report_has_removed_is_gone(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = report._pictures
    monkeypatch.setattr(report, "_pictures", lambda folder: [*listed(folder), folder / "laws-9.png"])
    assert ddpbench.write_report(run.path) == run.report


def test_two_sweeps_of_one_directory_both_find_it_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, create = RunDir(tmp_path / "run"), files.create_file

    def create_meanwhile(path: Path, mode: int = 0o666) -> object:
        monkeypatch.setattr(files, "create_file", create)
        file = create(path, mode)
        run.create()
        return file

    monkeypatch.setattr(files, "create_file", create_meanwhile)
    run.create()
    assert {path.name for path in run.path.iterdir()} == {"cases", MARK}


def test_a_reader_during_a_pack_reads_what_is_there(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(run)
    shutil.rmtree(run.cases)
    unpack(run)
    launch = run.launches(run.case_folders()[0])[0]
    launch.outcome.write_text(launch.outcome.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    before, seen = run.packed.read_bytes(), []

    def read_around(write: Callable[..., None]) -> Callable[..., None]:
        def around(path: Path, content: str | bytes, **how: bool) -> None:
            unpack(run)
            write(path, content, **how)
            seen.append(path.name)
            unpack(run)

        return around

    for name in ("write_atomically", "write_anew"):
        monkeypatch.setattr(archive, name, read_around(getattr(archive, name)))
    pack(run)
    assert run.packed.read_bytes() != before
    assert "records.tar.xz" in seen
    monkeypatch.undo()
    run.packed.write_bytes(before)
    with pytest.raises(RequestError, match="unpacked from a different"):
        unpack(run)


def test_a_pack_between_a_readers_two_looks_is_no_other_archive(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(run)
    shutil.rmtree(run.cases)
    unpack(run)
    launch = run.launches(run.case_folders()[0])[0]
    read, looks = archive.read_bytes, []

    def packing(path: Path, most: int) -> bytes:
        found = read(path, most)
        looks.append(path.name)
        if len(looks) == 1:
            monkeypatch.setattr(archive, "read_bytes", read)
            text = launch.outcome.read_text(encoding="utf-8")
            launch.outcome.write_text(text + "\n", encoding="utf-8")
            pack(run)
            monkeypatch.setattr(archive, "read_bytes", packing)
        return found

    monkeypatch.setattr(archive, "read_bytes", packing)
    unpack(run)
    assert looks


def test_the_stamp_is_that_of_the_archive_that_was_unpacked(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(run)
    shutil.rmtree(run.cases)
    before = run.packed.read_bytes()
    read = archive.read_bytes

    def replaced(path: Path, most: int) -> bytes:
        found = read(path, most)
        if path.name == run.packed.name:
            run.packed.write_bytes(b"another")  # as a checkout of another commit does
        return found

    monkeypatch.setattr(archive, "read_bytes", replaced)
    unpack(run)
    monkeypatch.undo()
    with pytest.raises(RequestError, match="unpacked from a different"):
        unpack(run)
    run.packed.write_bytes(before)
    unpack(run)
