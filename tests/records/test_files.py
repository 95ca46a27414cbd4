"""What a run directory may hold: files of a sane size and folders, none of which leads elsewhere or blocks a reader."""

from __future__ import annotations

import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ddpbench
from ddpbench.cli import run as command
from ddpbench.errors import IdentityError, OutputError, UnreadableError
from ddpbench.records import LaunchDir, RunDir, read_launch, write_atomically
from ddpbench.records.archive import unpack
from ddpbench.records.files import copy_file, parse_json, read_bytes
from tests.synthetic import write_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run", 3)


def first_launch(run: RunDir) -> LaunchDir:
    return run.launches(run.case_folders()[0])[0]


def as_link(path: Path) -> None:
    path.rename(path.with_name(f"elsewhere-{path.name}"))
    path.symlink_to(path.with_name(f"elsewhere-{path.name}"))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


PLACES: dict[str, Callable[[RunDir], Path]] = {
    "plan": lambda run: run.plan,
    "machine": lambda run: run.machine,
    "sessions": lambda run: run.sessions,
    "experiment": lambda run: run.experiment,
    "records": lambda run: run.cases,
    "a case": lambda run: run.cases / run.case_folders()[0],
    "a launch": lambda run: first_launch(run).path,
}


@pytest.mark.parametrize("where", PLACES)
def test_a_link_in_a_run_directory_is_refused(
    run: RunDir, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = PLACES[where](run)
    as_link(path)
    for line in (["report", str(run.path)], ["pack", str(run.path)]):
        assert command(line) == 2
        assert capsys.readouterr().err.startswith(f"ddpbench: {path} is a link")
    with pytest.raises(IdentityError, match="is a link"):
        ddpbench.load(run.path)


@pytest.mark.parametrize("where", ["plan", "machine", "sessions", "experiment"])
def test_a_pipe_is_refused_and_waits_for_nobody(run: RunDir, where: str) -> None:
    path = PLACES[where](run)
    as_pipe(path)
    with pytest.raises(IdentityError, match="is a pipe"):
        ddpbench.load(run.path)


@pytest.mark.parametrize("change", [as_link, as_pipe])
def test_what_is_no_file_among_records_fails_its_launch_alone(
    run: RunDir, change: Callable[[Path], None]
) -> None:
    before = ddpbench.load(run.path)
    launch = first_launch(run)
    change(launch.records(0))
    assert "in a run directory a regular file is expected there" in read_launch(launch).damage[0]
    after = ddpbench.load(run.path)
    own = before["case_id"] == launch.path.parent.name
    assert list(before["launches"] - after["launches"]) == list(own.astype(int))
    change(launch.outcome)
    assert any("outcome.json is a" in text for text in read_launch(launch).damage)


def test_a_figure_that_is_a_link_is_not_written_through(run: RunDir, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    run.figures.mkdir()
    (run.figures / "scaling.png").symlink_to(precious)
    with pytest.raises(IdentityError, match=r"scaling\.png is a link"):
        ddpbench.write_report(run.path)
    assert precious.read_text(encoding="utf-8") == "mine"


def test_nothing_is_written_or_locked_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    (run.path / ".cases.csv.new").symlink_to(precious)
    write_atomically(run.table, "table")
    assert run.table.read_text(encoding="utf-8") == "table"
    (run.path / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(OutputError, match="is a link"), run.locked():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "run"]
    assert precious.read_text(encoding="utf-8") == "mine"


def test_a_directory_s_own_path_may_be_a_link(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run.path)
    assert ddpbench.load(tmp_path / "latest").equals(ddpbench.load(run.path))


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: it takes no room
    with pytest.raises(UnreadableError, match=r"has 1,099,511,627,776 bytes; such a file has 1,000 at most"):
        read_bytes(path, 1000)
    with pytest.raises(UnreadableError, match="at most"):
        copy_file(path, tmp_path / "copy", 1000)
    assert not (tmp_path / "copy").exists()
    with pytest.raises(IdentityError, match="at most"):
        RunDir(tmp_path).read_json(path)
    with pytest.raises(UnreadableError, match="is a device"):
        read_bytes(Path("/dev/null"), 1000)
    with pytest.raises(UnreadableError, match="null byte"):
        read_bytes(Path("a\0b"), 1000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9" * 5000, "a whole number of 5,000 digits"),
        ("1e400", "1e400 is no finite number"),
        ("NaN", "NaN is no finite number"),
        ("[" * 2000 + "]" * 2000, "nested more than"),
        ('[{"a":' * 70 + "1" + "}]" * 70, "nested more than"),
        ('{"a": ["\\u0000"]}', "a text that cannot be shown"),
        ('{"\\ud800": 1}', "a text that cannot be shown"),
        ("{", "Expecting"),
    ],
)
def test_json_that_nobody_writes_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)


def test_json_that_is_written_is_read() -> None:
    value = {"a": [1, -2, 2.5, None, True, "\u00fc \\u0000", 2**63 - 1]}
    assert parse_json(b'{"a": [1, -2, 2.5, null, true, "\\u00fc \\\\u0000", 9223372036854775807]}') == value


def archive(run: RunDir, *members: tarfile.TarInfo, filters: list[dict[str, int]] | None = None) -> None:
    content = io.BytesIO()
    for member in members:
        content.write(member.tobuf(tarfile.GNU_FORMAT))
    content.write(bytes(1024))
    run.packed.write_bytes(lzma.compress(content.getvalue(), filters=filters))  # type: ignore[arg-type]


def member(
    name: str = "cases/single-w1-0/launch-00/outcome.json", size: int = 0, kind: bytes = tarfile.REGTYPE
) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.type = size, kind
    return found


def test_an_archive_asks_for_no_more_than_records_need(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    archive(run, member(size=2**30))
    with pytest.raises(UnreadableError, match="has 1,073,741,824 bytes; such a file has"):
        unpack(run)
    archive(run, member(kind=tarfile.GNUTYPE_SPARSE))
    with pytest.raises(UnreadableError, match="unexpected member"):
        unpack(run)
    archive(run, member(), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**30}])
    with pytest.raises(UnreadableError, match="Memory usage limit"):
        unpack(run)
    header = tarfile.TarInfo.create_pax_global_header({"comment": "x"})
    run.packed.write_bytes(lzma.compress(header * 3000 + bytes(1024)))
    with pytest.raises(UnreadableError, match=r"records\.tar\.xz"):
        unpack(run)
    run.packed.unlink()
    os.mkfifo(run.packed)
    with pytest.raises(UnreadableError, match="is a pipe"):
        unpack(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.tar.xz"]
