"""A run's records in one file: equal records give equal bytes, and a hostile archive is refused."""

from __future__ import annotations

import io
import lzma
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import ddpbench
from ddpbench.analysis import summarize
from ddpbench.cli import run as command
from ddpbench.errors import IdentityError, OutputError, RecordError, RequestError
from ddpbench.records import RunDir, pack
from ddpbench.records.archive import _Content, unpack
from tests.synthetic import write_run

GOOD = "cases/single-w1-0/launch-00/outcome.json"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run", 3)


def kept(run: RunDir) -> RunDir:
    """Return the run as a checkout has it: packed, without `cases/`."""
    pack(run)
    shutil.rmtree(run.cases)
    return run


def contents(run: RunDir) -> dict[str, bytes]:
    """Return the files under `cases/` that are records."""
    found = (path for path in run.cases.rglob("*") if path.is_file() and path.name != ".unpacked")
    return {path.relative_to(run.path).as_posix(): path.read_bytes() for path in found}


def write_archive(run: RunDir, members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(run.packed, "w:xz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def linked(kind: bytes, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(GOOD)
    member.type, member.linkname = kind, target
    return member


def test_the_table_of_a_packed_run_is_that_of_its_records(run: RunDir) -> None:
    before, records = ddpbench.load(run.path), contents(run)
    kept(run)
    assert ddpbench.load(run.path).equals(before)
    assert contents(run) == records
    assert pack(run).read_bytes() == kept(run).packed.read_bytes()


def test_an_archive_tells_nothing_of_when_and_where_it_was_packed(run: RunDir, tmp_path: Path) -> None:
    launch = run.launches(next(path.name for path in sorted(run.cases.iterdir())))[0]
    launch.log(0).write_text("File /home/somebody/train.py", encoding="utf-8")
    (launch.path / "rendezvous").write_text("", encoding="utf-8")
    shutil.copytree(run.path, tmp_path / "other")
    other = RunDir(tmp_path / "other")
    for path in other.cases.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    assert pack(run).read_bytes() == pack(other).read_bytes()
    with tarfile.open(run.packed) as archive:
        members = archive.getmembers()
    assert [one.name for one in members] == sorted(one.name for one in members)
    assert {(one.mtime, one.uid, one.gid, one.uname, one.gname, one.mode) for one in members} == {
        (0, 0, 0, "", "", 0o644)
    }
    assert {Path(one.name).suffix for one in members} == {".json", ".jsonl"}
    assert len(members) == sum(name.endswith((".json", ".jsonl")) for name in contents(run))


def test_launches_set_aside_are_packed_too(run: RunDir) -> None:
    case = sorted(run.cases.iterdir())[0].name
    run.set_aside(run.launches(case)[0])
    before = contents(run)
    kept(run)
    unpack(run)
    assert contents(run) == before
    assert any(".aside-0/" in name for name in before)


def test_what_is_called_unlike_a_record_is_left_out_and_said(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report leaves it out too; its name may be longer than an archive allows."""
    launch = run.launches(next(path.name for path in sorted(run.cases.iterdir())))[0].path
    digits = "9" * 180
    odd = [
        *(launch.with_name(name) for name in (f"launch-{digits}", "launch-007", f"launch-00.aside-{digits}")),
        launch / f"rank-{digits}.attempt-0.jsonl",
        launch / "rank-0.attempt-0.jsonl",
    ]
    before = contents(run)
    for path in odd[:3]:
        shutil.copytree(launch, path)
    for path in odd[3:]:
        shutil.copy(launch / "rank-00000.attempt-0.jsonl", path)
    left = sum(1 if path.is_file() else len(list(path.glob("*.json*"))) for path in odd)
    assert command(["pack", str(run.path)]) == 0
    assert f"{left} files are left out, because no record has such a name: " in capsys.readouterr().err
    assert contents(kept(run)) == {}
    unpack(run)
    assert contents(run) == before


def test_a_folder_whose_name_is_too_long_for_an_archive_is_named(run: RunDir) -> None:
    launch = run.launches(next(path.name for path in sorted(run.cases.iterdir())))[0].path
    shutil.copytree(launch, run.cases / ("x" * 190) / launch.name)
    with pytest.raises(RequestError, match="cannot be packed: its name is too long"):
        pack(run)
    assert not run.packed.exists()


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outcome.json"),
        tarfile.TarInfo("/tmp/outcome.json"),
        tarfile.TarInfo("cases/../launch-00/outcome.json"),
        tarfile.TarInfo("cases/single-w1-0/../../outcome.json"),
        tarfile.TarInfo("./" + GOOD),
        tarfile.TarInfo("cases/single-w1-0/launch-00/train.py"),
        tarfile.TarInfo("cases/single-w1-0/launch-00/outcome.json/launch.json"),
        tarfile.TarInfo("plan.json"),
        linked(tarfile.SYMTYPE, "/etc/passwd"),
        linked(tarfile.LNKTYPE, "/etc/passwd"),
        linked(tarfile.FIFOTYPE, ""),
        linked(tarfile.CHRTYPE, ""),
        linked(tarfile.DIRTYPE, ""),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_a_member_that_is_no_record_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    write_archive(run, [(tarfile.TarInfo(GOOD.replace("outcome", "launch")), b"{}"), (member, b"")])
    with pytest.raises(RecordError, match="unexpected member"):
        unpack(run)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "run",
        "run/records.tar.xz",
    ]


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_archive(run, [(tarfile.TarInfo(GOOD), b"{}"), (tarfile.TarInfo(GOOD), b"[]")])
    with pytest.raises(RecordError, match="unexpected member"):
        unpack(run)
    assert not run.cases.exists()


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda _: b"", lambda _: b"no archive", lambda data: data[:-40]],
    ids=["torn", "empty", "other", "without its end"],
)
def test_a_damaged_archive_is_said_to_be(run: RunDir, damage: Callable[[bytes], bytes]) -> None:
    kept(run)
    run.packed.write_bytes(damage(run.packed.read_bytes()))
    with pytest.raises(RecordError, match=r"records\.tar\.xz is damaged"):
        ddpbench.load(run.path)
    assert not run.cases.exists()


def test_an_archive_of_more_than_the_limit_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(run)
    monkeypatch.setattr("ddpbench.records.archive.MOST_BYTES", 100_000)
    with pytest.raises(RecordError, match="more than 100,000 bytes"):
        unpack(run)
    assert not run.cases.exists()
    monkeypatch.undo()
    unpack(run)
    monkeypatch.setattr("ddpbench.records.archive.MOST_BYTES", 100_000)
    with pytest.raises(RequestError, match="more than 100,000 bytes of records"):
        pack(run)


def test_records_of_more_than_the_limit_are_refused_before_any_is_read(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's sparse files take no room on a disk, but fill the memory."""
    with next(run.cases.glob("*/*/rank-*.jsonl")).open("r+b") as file:
        file.truncate(2**31)

    def read(*_: object) -> bytes:
        raise AssertionError("a file is read")

    monkeypatch.setattr("ddpbench.records.archive.read_bytes", read)
    with pytest.raises(RequestError, match="bytes of records"):
        pack(run)


def test_records_unpacked_from_an_older_archive_are_not_read(run: RunDir) -> None:
    kept(run)
    ddpbench.load(run.path)
    write_archive(run, [(tarfile.TarInfo(GOOD), b"{}")])  # for example from a checkout of a newer commit
    with pytest.raises(RequestError, match="unpacked from a different records"):
        ddpbench.load(run.path)
    shutil.rmtree(run.cases)
    unpack(run)
    assert list(contents(run)) == [GOOD]
    pack(run)
    unpack(run)  # packed again from what it was unpacked to: not another archive


def test_a_sweeps_own_records_come_before_the_archive(run: RunDir) -> None:
    before = ddpbench.load(run.path)
    write_archive(run, [(tarfile.TarInfo(GOOD), b"{}")])
    assert ddpbench.load(run.path).equals(before)


def test_an_archive_that_lacks_launches_is_told_of_until_it_is_packed_again(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a sweep that has nothing left to do: its measurements do not matter here
    monkeypatch.setattr("ddpbench.launch.sweep.preparation.prepare", lambda request: None)
    monkeypatch.setattr("ddpbench.cli.sweep._finished_for", lambda prepared: "")
    monkeypatch.setattr("ddpbench.cli.sweep._describe", lambda prepared: None)
    monkeypatch.setattr("ddpbench.cli.results.print_results", lambda *_, **__: None)
    monkeypatch.setattr("ddpbench.cli.sweep._print_end", lambda *_: None)
    monkeypatch.setattr("ddpbench.cli.sweep._carry_out", lambda *_, **__: (None, None, summarize(run)))
    outcomes = sorted(run.cases.glob("*/*/outcome.json"))
    later = {outcomes[-1].parent, outcomes[0].parent}
    for number, folder in enumerate(later):
        folder.rename(run.path.parent / f"later-{number}")
    pack(run)

    def said(*words: str) -> list[str]:
        command([*words, str(run.path)])
        return [line for line in capsys.readouterr().err.splitlines() if "records.tar.xz" in line]

    assert said("report") == []
    for number, folder in enumerate(later):
        (run.path.parent / f"later-{number}").rename(folder)
    renew = f"renew it with: ddpbench pack {run.path}"
    line = f"{run.packed} is older than the records and lacks 2 of {len(outcomes)} launches; {renew}"
    assert said("report") == said("sweep") == [line]
    run.packed.write_bytes(b"damaged")
    (line,) = said("report")
    assert line.startswith(f"{run.packed} is damaged: ")
    assert line.endswith(f"; {renew}")
    pack(run)
    assert said("report") == []
    shutil.rmtree(run.cases)
    assert said("report") == [], "unpacked"


def test_a_directory_that_cannot_be_written_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(run)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(OutputError, match=r"records\.tar\.xz cannot be unpacked: No space left"):
        ddpbench.load(run.path)


def test_nothing_to_pack_is_said(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no records to pack"):
        pack(RunDir(tmp_path))


@pytest.mark.usefixtures("painted")
def test_pack_then_report_on_a_checkout_gives_the_same_page(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["pack", str(run.path)]) == 0
    assert capsys.readouterr().out.strip() == str(run.packed)
    page, table, packed = run.report.read_bytes(), run.table.read_bytes(), run.packed.read_bytes()
    shutil.rmtree(run.cases)
    run.report.unlink()
    assert command(["report", str(run.path)]) == 0
    assert (run.report.read_bytes(), run.table.read_bytes()) == (page, table)
    shutil.rmtree(run.cases)
    unpack(run)
    assert pack(run).read_bytes() == packed


def test_a_run_under_way_is_not_packed(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with run.locked():
        assert command(["pack", str(run.path)]) == 3
    message = capsys.readouterr().err
    assert message.endswith(
        f"{run.path} is in use by a sweep (process {os.getpid()} on {os.uname().nodename}): wait until that ends\n"
    )
    assert not run.packed.exists()


def test_what_is_no_run_directory_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="not a run directory"):
        ddpbench.load(tmp_path)
    assert command(["pack", str(tmp_path)]) == 2


def test_a_run_of_uncommitted_changes_is_packed_only_on_request(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run.machine.read_text(encoding="utf-8")
    for commit in ("4be1a90+", "4be1a90+, 7d0c11f"):  # the second one of a merge
        run.machine.write_text(text.replace('"4be1a90"', f'"{commit}"'), encoding="utf-8")
        assert command(["pack", str(run.path)]) == 2
        assert f"uncommitted changes (commit {commit})" in capsys.readouterr().err
        assert not run.packed.exists()
    assert command(["pack", str(run.path), "--dirty"]) == 0
    assert run.packed.exists()


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE]
)
def test_headers_that_pack_does_not_write_are_not_read(
    run: RunDir, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pax header may hold millions of fields, which take minutes to read from a few KB of xz."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type = kind
    header.size = len(fields := b"5 a=\n" * 2_000_000)
    content = header.tobuf(tarfile.USTAR_FORMAT) + fields + bytes(-len(fields) % tarfile.BLOCKSIZE)
    kept(run)
    run.packed.write_bytes(lzma.compress(content + lzma.decompress(run.packed.read_bytes()), preset=0))

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("tarfile reads it")

    monkeypatch.setattr(tarfile, "open", opened)
    monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", opened)
    pieces = 0
    piece = _Content.piece

    def counted(content: _Content, most: int) -> bytes:
        nonlocal pieces
        pieces += 1
        return piece(content, most)

    monkeypatch.setattr(_Content, "piece", counted)
    with pytest.raises(RecordError, match=r"unexpected member '\./\./@PaxHeader'"):
        unpack(run)
    assert pieces == 1, "the header alone"


@pytest.mark.parametrize("end", [b"", b"\1", b"\0" * 512, b"\1" * 512])
def test_an_archive_is_never_in_memory_as_a_whole(tmp_path: Path, end: bytes) -> None:
    run = RunDir(tmp_path)
    member = tarfile.TarInfo("cases/single-w1-0/launch-00/rank-00000.attempt-0.jsonl")
    member.size = 40 << 20
    content = member.tobuf(tarfile.USTAR_FORMAT) + b" " * member.size + bytes(1024)
    run.packed.write_bytes(lzma.compress(content + bytes(40 << 20) + end, preset=0))
    del content
    tracemalloc.start()
    try:
        unpack(run)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert (run.path / member.name).stat().st_size == member.size


def test_a_member_without_an_end_is_damage(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for cut in (1, 512, 700):
        member = tarfile.TarInfo(GOOD)
        member.size = 1000
        content = member.tobuf(tarfile.USTAR_FORMAT) + bytes(1000)
        run.packed.write_bytes(lzma.compress(content[:cut]))
        with pytest.raises(RecordError, match=r"records\.tar\.xz is damaged"):
            unpack(run)
        assert not run.cases.exists()


def test_damage_that_is_found_while_contents_are_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    member = tarfile.TarInfo(GOOD)
    member.size = 1000
    run.packed.write_bytes(lzma.compress(member.tobuf(tarfile.USTAR_FORMAT) + bytes(700)))
    monkeypatch.setattr("ddpbench.records.archive._check_members", lambda *_: None)
    with pytest.raises(RecordError, match=r"records\.tar\.xz is damaged: its last member is cut off"):
        unpack(run)
    assert not run.cases.exists()
