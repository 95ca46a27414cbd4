"""The cache returns only what was made from the same input by the same code, and only this user's."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import psutil
import pytest

from ddpbench import cache, helper_process
from ddpbench.analysis import summarize
from ddpbench.analysis.overview import build
from ddpbench.analysis.overview.summary_cache import CachedSummary
from ddpbench.analysis.read import reading
from ddpbench.analysis.summary import RunSummary
from ddpbench.cache import FOLDER, MARK, SUBFOLDER, code_stamp, keep, kept
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan, read_plan
from tests.synthetic import write_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of entries."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    later = time.time() + 86_400
    monkeypatch.setattr(
        psutil.Process, "create_time", lambda _: later
    )  # code that is written now is no newer
    return tmp_path / "cache" / SUBFOLDER


def entries(folder: Path) -> list[str]:
    """Return the names of the entries."""
    return sorted(path.stem for path in folder.iterdir() if path.suffix == ".kept")


def test_what_is_kept_is_found_with_its_stamp_alone(folder: Path) -> None:
    assert kept("one", b"stamp") is None
    keep("one", b"stamp", {"a": 1})
    assert kept("one", b"stamp") == {"a": 1}
    assert kept("one", b"other") is None
    assert kept("two", b"stamp") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "one.kept").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == [MARK, "one.kept"]


def test_nothing_is_kept_of_what_has_no_stamp(folder: Path) -> None:
    keep("one", b"", 1)
    assert not folder.exists()
    keep("two", b"stamp", 1)
    (folder / "one.kept").write_bytes(pickle.dumps(1))
    (folder / "one.kept").chmod(0o600)
    assert kept("one", b"") is None


def test_a_file_that_was_cut_short_is_none(folder: Path) -> None:
    keep("one", b"stamp", list(range(1000)))
    path = folder / "one.kept"
    for size in (path.stat().st_size - 1, 27, 26, 21, 2, 0):
        os.truncate(path, size)
        assert kept("one", b"stamp") is None


def test_what_cannot_be_written_down_is_not_kept(folder: Path) -> None:
    keep("one", b"stamp", lambda: None)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    keep("one", b"stamp", deep)
    assert kept("one", b"stamp") is None
    while deep:
        deep = deep.pop()  # type: ignore[assignment]


def test_a_folder_that_others_can_write_in_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    keep("one", b"stamp", 1)
    folder.chmod(0o770)
    assert kept("one", b"stamp") is None
    keep("two", b"stamp", 2)
    assert not (folder / "two.kept").exists()
    folder.chmod(0o700)
    assert kept("one", b"stamp") == 1
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert kept("one", b"stamp") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_that_another_user_put_there_is_not_read(folder: Path) -> None:
    keep("one", b"stamp", 1)
    os.chown(folder / "one.kept", 65534, 65534)
    assert kept("one", b"stamp") is None
    os.chown(folder / "one.kept", 0, 0)
    assert kept("one", b"stamp") == 1
    (folder / "one.kept").chmod(0o666)
    assert kept("one", b"stamp") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_root_makes_nothing_in_another_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, 65534, 65534)
    monkeypatch.delenv(FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    keep("one", b"stamp", 1)
    assert not list(tmp_path.iterdir())
    os.chown(tmp_path, 0, 0)
    keep("one", b"stamp", 1)
    assert kept("one", b"stamp") == 1
    assert (tmp_path / ".cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cache", ["", "nobody/.cache", "nobody/own"])
def test_a_home_directory_that_does_not_exist_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache) if cache else "")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    keep("one", b"stamp", 1)
    assert kept("one", b"stamp") is None
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    keep("one", b"stamp", 1)
    (folder / "one.kept").rename(tmp_path / "other")
    (folder / "one.kept").symlink_to(tmp_path / "other")
    before = (tmp_path / "other").read_bytes()
    assert kept("one", b"stamp") is None
    keep("one", b"other", 2)
    assert (tmp_path / "other").read_bytes() == before
    assert kept("one", b"other") == 2


def test_where_there_is_no_place_nothing_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    keep("one", b"stamp", 1)
    assert kept("one", b"stamp") is None
    monkeypatch.setenv(FOLDER, "")
    keep("one", b"stamp", 1)
    assert kept("one", b"stamp") is None
    assert code_stamp() == b""
    assert folder.read_text() == "a file"


def test_it_is_in_the_users_cache_unless_another_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.cache_folder() == Path("/home/me/.cache/ddpbench-cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/me")
    assert cache.cache_folder() == Path("/scratch/me/ddpbench-cache")
    monkeypatch.setenv(FOLDER, "/elsewhere")
    assert cache.cache_folder() == Path("/elsewhere/ddpbench-cache")


def test_what_was_used_last_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 10_000)
    for number in range(4):
        keep(f"{number}", b"stamp", bytes(2_000))
        os.utime(folder / f"{number}.kept", (number, number))
    for name, content in (("cut.kept.17.new", b"ddpbench ca"), ("mine.kept.17.new", b"mine")):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (9, 9))
    assert kept("0", b"stamp") == bytes(2_000)  # which counts as a use
    keep("new", b"stamp", bytes(3_000))
    assert entries(folder) == ["0", "2", "3", "new"]
    assert [path.name for path in folder.glob("*.new")] == ["mine.kept.17.new"]
    keep("huge", b"stamp", bytes(11_000))
    assert kept("huge", b"stamp") is None
    assert kept("new", b"stamp") == bytes(3_000)


def owned(folder: Path) -> dict[str, bytes]:
    """Put a user's files into a folder, all old and larger than the cache may be; return them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data.bin", "notes.txt", "model.run", "mine.kept", "mine.kept.17.new", ".hidden.new"):
        (folder / name).write_text("mine" * 5_000, encoding="utf-8")
        os.utime(folder / name, (1, 1))
    (folder / "folder").mkdir()
    (folder / "link.kept").symlink_to("data.bin")
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in sorted(folder.iterdir())}


def test_a_users_own_files_in_the_named_folder_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = owned(folder.parent)
    monkeypatch.setattr(cache, "MOST_BYTES", 10_000)
    for number in range(4):
        keep(f"{number}", b"stamp", bytes(4_000))
    assert kept("3", b"stamp") == bytes(4_000)
    assert len(entries(folder)) == 2
    found = contents(folder.parent)
    assert found.pop(SUBFOLDER) == b""
    assert found == mine


def test_a_users_own_files_among_entries_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("one", b"stamp", 1)
    mine = owned(folder)
    monkeypatch.setattr(cache, "MOST_BYTES", 10_000)
    for number in range(4):
        keep(f"{number}", b"stamp", bytes(4_000))
    assert {name: of for name, of in mine.items() if name not in ("one.kept", MARK)}.items() <= contents(
        folder
    ).items()
    assert len(entries(folder)) == 2 + len({"mine", "link"})


@pytest.mark.parametrize("mark", [None, "", "Signature: 8a477f597d28d172789f06886806bc55\n", "# by me\n"])
def test_a_folder_of_that_name_with_other_files_is_not_touched(folder: Path, mark: str | None) -> None:
    mine = owned(folder)
    if mark is not None:
        (folder / MARK).write_text(mark, encoding="utf-8")
        mine = contents(folder)
    keep("one", b"stamp", 1)
    assert kept("one", b"stamp") is None
    assert contents(folder) == mine


def test_a_mark_that_was_cut_short_is_completed(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    for cut in (b"", b"Signature"):
        (folder / MARK).unlink(missing_ok=True)
        (folder / MARK).write_bytes(cut)
        keep("one", b"stamp", 1)
        assert kept("one", b"stamp") == 1
        (folder / "one.kept").unlink()
    (folder / MARK).write_bytes(b"# by me\n")
    keep("one", b"stamp", 1)
    assert contents(folder) == {MARK: b"# by me\n"}


def test_of_an_entry_that_cannot_be_written_nothing_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    keep("one", b"stamp", 1)
    monkeypatch.setattr(os, "replace", full)
    keep("two", b"stamp", 2)
    assert sorted(path.name for path in folder.iterdir()) == [MARK, "one.kept"]


def test_other_code_has_another_stamp(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    (code / "inner").mkdir(parents=True)
    path = code / "inner/code.py"
    monkeypatch.setattr(cache, "_PACKAGE", code)
    began = time.time() - 60
    found = set()
    for content in ("a = 1", "a = 2"):
        path.write_text(content)
        os.utime(path, (1, 1))
        found.add(code_stamp())
    assert len(found - {b""}) == 2
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: began)
    assert code_stamp() == b""  # and a changed time does not matter


def planned(tmp_path: Path, cases: int) -> tuple[RunDir, StoredPlan]:
    run = write_run(tmp_path / "run", cases)
    return run, read_plan(run)


def content_of(summary: RunSummary) -> dict[str, object]:
    """Return all of a summary, its frames as text that can be compared."""
    parts = {field.name: getattr(summary, field.name) for field in fields(summary)}
    return {name: part.to_json() if isinstance(part, pd.DataFrame) else part for name, part in parts.items()}


def _a_record(run: RunDir) -> Path:
    return sorted(run.cases.glob("*/launch-00/rank-*"))[0]


def _change_as_many_bytes(run: RunDir) -> None:
    path = _a_record(run)
    before = path.stat()
    data = path.read_bytes()
    place = data.index(b'"start_ns":1') + len(b'"start_ns":')
    path.write_bytes(data[:place] + b"2" + data[place + 1 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _change_sessions(run: RunDir) -> None:
    run.sessions.write_text("[]", encoding="utf-8")


CHANGES: dict[str, Callable[[RunDir], object]] = {
    "as many other bytes, at the same time": _change_as_many_bytes,
    "a rank's file is gone": lambda run: _a_record(run).unlink(),
    "a rank's file has another name": lambda run: _a_record(run).rename(_a_record(run).with_suffix(".old")),
    "one more launch": lambda run: shutil.copytree(
        _a_record(run).parent, _a_record(run).parent.with_name("launch-07")
    ),
    "a case is gone": lambda run: shutil.rmtree(_a_record(run).parents[1]),
    "the sweep went on": _change_sessions,
    "another plan": lambda run: run.plan.write_bytes(run.plan.read_bytes() + b" "),
    "another machine": lambda run: run.machine.unlink(),
    "another experiment": lambda run: run.experiment.write_text("scope = 'x'", encoding="utf-8"),
    "its networks": lambda run: run.fabrics.write_text("[]", encoding="utf-8"),
    "what it was merged from": lambda run: run.merged.write_text("{}", encoding="utf-8"),
    "its records, packed": lambda run: run.packed.write_bytes(b"x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_that_changed_is_read_anew(folder: Path, tmp_path: Path, change: str) -> None:
    run, plan = planned(tmp_path, 3)
    summary = summarize(run)
    CachedSummary(run, plan).keep(summary)
    found = CachedSummary(run, plan).summary()
    assert found is not None
    assert content_of(found) == content_of(summary)
    CHANGES[change](run)
    assert CachedSummary(run, plan).summary() is None


def test_a_copy_of_a_run_is_another_run(folder: Path, tmp_path: Path) -> None:
    run, plan = planned(tmp_path, 2)
    CachedSummary(run, plan).keep(summarize(run))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert CachedSummary(RunDir(tmp_path / "copy"), plan).summary() is None
    (tmp_path / "link").symlink_to(tmp_path / "run")  # its sentences name another path
    assert CachedSummary(RunDir(tmp_path / "link"), plan).summary() is None
    assert CachedSummary(run, plan).summary() is not None
    other = replace(plan, cases=plan.cases[:1], ids=plan.ids[:1])  # read before the file was written again
    assert CachedSummary(run, other).summary() is None


def test_what_changed_while_it_was_read_is_not_taken_for_what_is_there(folder: Path, tmp_path: Path) -> None:
    run, plan = planned(tmp_path, 2)
    place = CachedSummary(run, plan)
    summary = summarize(run)
    _change_as_many_bytes(run)
    place.keep(summary)
    assert CachedSummary(run, plan).summary() is None


def test_a_sweep_that_works_there_costs_no_report(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, plan = planned(tmp_path, 2)

    def gone(_: object) -> None:
        raise FileNotFoundError("outcome.json.new")

    monkeypatch.setattr("ddpbench.analysis.overview.summary_cache._beneath", gone)
    place = CachedSummary(run, plan)
    assert place.summary() is None
    place.keep(summarize(run))
    assert not folder.exists()


def test_code_that_changes_meanwhile_keeps_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, plan = planned(tmp_path, 2)
    place = CachedSummary(run, plan)
    monkeypatch.setattr("ddpbench.analysis.overview.summary_cache.code_stamp", lambda: b"other")
    place.keep(summarize(run))
    assert not folder.exists()


def test_a_large_run_is_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = planned(tmp_path, 4)
    monkeypatch.setattr(helper_process, "further_cores", lambda: 0)
    read: list[object] = []
    read_unjudged = reading.read_unjudged
    monkeypatch.setattr(reading, "read_unjudged", lambda *of: read.append(of) or read_unjudged(*of))
    alone = summarize(run)
    assert not list(tmp_path.glob("cache/*/*"))  # it is too small to keep
    assert len(read) == 1
    read.clear()
    monkeypatch.setattr(build, "WORTH_KEEPING", 4)
    first, again = summarize(run), summarize(run)
    assert len(read) == 1
    assert content_of(first) == content_of(again) == content_of(alone)
    _change_as_many_bytes(run)
    summarize(run)
    assert len(read) == 2
