"""Contents of a run directory: files of limited size and folders, none of which leads elsewhere or blocks a
reader.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ddpbench
from ddpbench.cli import run as command
from ddpbench.errors import IdentityError, OutputError, UnreadableError
from ddpbench.fabric import Fabric
from ddpbench.records import (
    LaunchDir,
    LaunchRequest,
    RecordWriter,
    RunDir,
    files,
    pack,
    read_launch,
    write_atomically,
)
from ddpbench.records.archive import unpack
from ddpbench.records.files import (
    MOST_PLAN,
    MOST_VALUES,
    copy_file,
    field_lines,
    open_to_append,
    parse_json,
    read_bytes,
    read_end,
    write_anew,
)
from ddpbench.records.job_key import make_job_key
from ddpbench.runtime.judge import last_log_line
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Case, Links
from ddpbench.spec.limits import MAX_COMBINATIONS, MAX_LAUNCHES
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
    assert "a run directory must have a regular file there" in read_launch(launch).damage[0]
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
    run.table.symlink_to(precious)
    write_atomically(run.table, "table")
    assert run.table.read_text(encoding="utf-8") == "table"
    (run.path / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(OutputError, match="is a link"), run.locked():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "run"]
    assert precious.read_text(encoding="utf-8") == "mine"


WRITERS: dict[str, Callable[[RunDir, Path], object]] = {
    "server.log": lambda _, path: ServerProcess({}, path),
    "fabric.log": lambda _, path: Fabric(Links(bandwidth=(1e9,)), nodes=2, ranks_per_node=1, log=path),
    "rank-00000.attempt-0.log": lambda _, path: open_to_append(path),
    "rank-00000.attempt-0.jsonl": lambda _, path: RecordWriter(path),
    ".lock": lambda run, _: run.locked().__enter__(),
    "launch.json": lambda _, path: REQUEST.write(path),
    "probe.json": lambda _, path: write_anew(path, "{}"),
    "job.key": lambda run, _: make_job_key(run),
    "plan.json": lambda _, path: write_atomically(path, "{}"),
    "figures.png": lambda _, path: write_atomically(path, b"PNG", flushed=False),
    "records.tar.xz": lambda run, _: pack(run),
    "cases/.unpacked": lambda run, _: pack(run),
    "cases.csv": lambda run, _: ddpbench.load(run.path, write=True),
}
"""Writers of a run directory's files, by the file's name; those that create a new file accept any name."""
REQUEST = LaunchRequest(case=Case(workload="mlp:small", strategy="single"), purpose="measure")
REFUSED = (OutputError, IdentityError)
"""Errors for a file that is continued; a file that is rewritten replaces the link."""


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_a_link(run: RunDir, tmp_path: Path, name: str, exists: bool) -> None:
    precious = tmp_path / "precious"
    if exists:
        precious.write_text("mine", encoding="utf-8")
    path = run.path / name
    path.unlink(missing_ok=True)
    path.symlink_to(precious)
    with contextlib.suppress(*REFUSED):
        WRITERS[name](run, path)
    assert (precious.read_text(encoding="utf-8") if exists else precious.exists()) == (
        "mine" if exists else False
    )


@pytest.mark.parametrize("name", ["server.log", "fabric.log", "rank-00000.attempt-0.jsonl", ".lock"])
def test_a_pipe_is_not_written_to_and_waits_for_nobody(run: RunDir, name: str) -> None:
    os.mkfifo(run.path / name)
    with pytest.raises(OutputError, match=f"{name} is a pipe; .*: remove it"):
        WRITERS[name](run, run.path / name)


@pytest.mark.parametrize("write", [write_anew, write_atomically])
def test_a_pipe_or_a_folder_is_not_replaced_by_a_file(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    """A run directory does not have one there, and it may be somebody's device."""
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OutputError, match="is a pipe; in a run directory a regular file is written there"):
        write(tmp_path / "file", "text")
    assert [path.name for path in tmp_path.iterdir() if path.is_fifo()] == ["file"]


@pytest.mark.parametrize(
    "name", ["server.log", "fabric.log", "probe.log", "probe.json", ".writable", "experiment.toml"]
)
@pytest.mark.parametrize("change", [as_link, as_pipe])
def test_a_sweep_that_never_got_to_its_plan_is_not_believed_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[Path], None]
) -> None:
    """Another sweep of that directory would continue with its logs."""
    here = tmp_path / "run"
    here.mkdir()
    (here / name).write_text("mine", encoding="utf-8")
    change(here / name)
    assert command(["sweep", "quick", "--out", str(here), "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"ddpbench: {here / name} is a {'link' if change is as_link else 'pipe'}")
    assert "Traceback" not in message
    with pytest.raises(IdentityError, match="is a "):
        RunDir(here).create()


@pytest.mark.parametrize("change", [as_link, as_pipe])
def test_a_resumed_experiment_that_is_no_file_waits_for_nobody(
    run: RunDir, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None]
) -> None:
    change(run.experiment)
    assert command(["sweep", str(run.path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "experiment.toml" in message


def test_a_proof_that_is_taken_over_brings_no_links(run: RunDir, tmp_path: Path) -> None:
    launch = first_launch(run)
    as_link(launch.records(0))
    (launch.path / "stray").symlink_to("/etc/passwd")
    launch.copy_to(tmp_path / "copy")
    kept = (launch.request, launch.outcome, *launch.rank_files(), *launch.log_files())
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == sorted(
        path.name for path in kept if path.exists() and not path.is_symlink()
    )


def test_of_a_log_without_end_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "rank-00000.attempt-0.log"
    with log.open("wb") as file:
        file.truncate(2**40)  # sparse: it takes no room
        file.seek(2**40)
        file.write(b"\nthe last words\n")
    assert read_end(log, 16) == b"\nthe last words\n"
    assert last_log_line(LaunchDir(tmp_path), 0) == "the last words"
    as_pipe(log)
    assert last_log_line(LaunchDir(tmp_path), 0) == ""


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


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of 10 bytes that has 5,000,000 as soon as it has been opened."""
    path = tmp_path / "grows.json"
    path.write_bytes(b"0" * 10)
    opened = files.open_file

    def then_grown(path: Path, most: int | None) -> int:
        descriptor = opened(path, most)
        os.truncate(path, 5_000_000)
        return descriptor

    monkeypatch.setattr(files, "open_file", then_grown)
    return path


def test_what_grows_too_large_while_it_is_read_is_not_read(growing: Path) -> None:
    with pytest.raises(UnreadableError, match=r"has 5,000,000 bytes; such a file has 1,000 at most"):
        read_bytes(growing, 1000)


def test_what_grows_too_large_while_it_is_copied_is_not_copied(growing: Path) -> None:
    copy = growing.with_name("copy")
    with pytest.raises(UnreadableError, match=r"has 5,000,000 bytes; such a file has 1,000 at most"):
        copy_file(growing, copy, 1000)
    assert not copy.exists()


def test_what_grows_up_to_the_limit_is_read_and_copied(growing: Path) -> None:
    expected = b"0" * 10 + bytes(4_999_990)
    assert read_bytes(growing, 5_000_000) == expected
    growing.write_bytes(b"0" * 10)
    copy = growing.with_name("copy")
    copy_file(growing, copy, 5_000_000)
    assert copy.read_bytes() == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9" * 5000, "a whole number of 5,000 digits"),
        ("1e400", "1e400 is not a finite number"),
        ("NaN", "NaN is not a finite number"),
        ("[" * 2000 + "]" * 2000, "nested more than"),
        ('[{"a":' * 70 + "1" + "}]" * 70, "nested more than"),
        ('{"a": ["\\u0000"]}', "a text that cannot be shown"),
        ('{"\\ud800": 1}', "a text that cannot be shown"),
        ("{", "Expecting"),
        (f'{{"a": [{"[]," * 1_100_000}1]}}', "2,200,002 values; must be 2,097,152 at most"),
        (f"[{'{},' * 1_100_000}1]", "2,200,001 values"),
        (f"[{',' * 2_100_000}]", "2,100,001 values"),
    ],
)
def test_json_that_nobody_writes_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)


def test_a_launch_s_files_have_a_field_a_line_and_leave_nothing_to_collect() -> None:
    data = {"case": {"strategy": "ddp", "shrink": [1, None]}, "error": 'a "quoted"\nline', "wall_s": 1e-05}
    gc.collect()
    gc.disable()
    try:
        text = field_lines(data)
        left = gc.collect()
    finally:
        gc.enable()
    assert left == 0  # json.dumps with an indent leaves 33 objects each time
    assert parse_json(text) == data
    assert text.splitlines()[-2:] == [' "error": "a \\"quoted\\"\\nline",', ' "wall_s": 1e-05}']


def test_the_largest_plan_and_its_merges_are_read() -> None:
    """A sweep has no more launches and cases; an entry of a case has some 50 fields."""
    launches = {"launches": [{"round": 1, "case_id": "ddp-w2-0df41e60"}] * MAX_LAUNCHES}
    cases = {"cases": [{str(field): field for field in range(60)}] * MAX_COMBINATIONS}
    text = json.dumps({**launches, **cases})
    assert len(text) < MOST_PLAN / 4
    assert parse_json(text)["launches"][-1]["round"] == 1
    assert sum(map(text.count, ",[{")) < MOST_VALUES / 2


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
