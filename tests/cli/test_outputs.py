"""Files that users name: written completely or left as they were; pipes, terminals and devices are written through."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ddpbench.analysis.regression.baselines import Baselines
from ddpbench.cli import flags, make_parser, run
from ddpbench.errors import OutputError
from ddpbench.launch import profiling
from ddpbench.records.files import create_file, write_atomically
from ddpbench.records.held import new_folder
from ddpbench.records.outputs import check_output, replace_user_file, write_output
from ddpbench.records.rundir import checked_name
from tests.campaign.classes import SOUND
from tests.open_folder import open_folder
from tests.synthetic import write_run

ROOT = Path(__file__).parents[2]
PROFILE = (ROOT / "ddpbench/profiles/gpt-nano-cpu.json").read_text(encoding="utf-8")
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, to create a device or another user's file"
)


def output_options() -> list[tuple[str, str]]:
    """Return every command's options that name an output file."""
    return [
        (command, action.option_strings[-1])
        for command, parser in commands().items()
        for action in parser._actions
        if action.type is flags.output_path
    ]


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = make_parser()
    (found,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return dict(found.choices)


STEMS = {
    "compare": ["compare", "{runs}/one", "{runs}/two"],
    "history": ["history", "{runs}/one", "{runs}/two"],
    "export": ["export", "{runs}/one", "--format", "csv"],
    "profile": ["profile", "gpt:nano"],
}
"""Further arguments of each command."""
OPTIONS = output_options()
by_option = pytest.mark.parametrize(("command", "option"), OPTIONS, ids=[" ".join(one) for one in OPTIONS])


def test_every_option_that_names_a_file_to_write_is_known_here() -> None:
    """Any other option that is a path names a directory."""
    others = {
        (command, action.option_strings[-1], action.metavar)
        for command, parser in commands().items()
        for action in parser._actions
        if action.option_strings and action.type is Path
    }  # inputs are arguments
    assert {metavar for _, _, metavar in others} <= {"DIR", "RUN_DIR"}
    named = {
        (command, action.option_strings[-1])
        for command, parser in commands().items()
        for action in parser._actions
        if action.option_strings and action.metavar == "FILE"
    }
    assert named == set(OPTIONS)
    assert {command for command, _ in OPTIONS} == set(STEMS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("one", "two")):
        write_run(folder / name, 2, rounds=5, blocks=2, steps=3, seed=seed)
    return folder


class FakeServer:
    """Replaces the process that measures a profile."""

    def __init__(self, *_: object, log_stays: bool) -> None: ...
    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "ServerProcess", FakeServer)
    monkeypatch.setattr(profiling, "inspected", lambda *_: {})
    monkeypatch.setattr(profiling, "profiled", lambda *_, **__: {"profile": PROFILE})


def argv(command: str, runs: Path, option: str, path: object) -> list[str]:
    return [*(word.replace("{runs}", str(runs)) for word in STEMS[command]), option, str(path)]


@pytest.fixture
def written(runs: Path, tmp_path: Path) -> Callable[[str, str], bytes]:
    """Return what a command writes to a new file."""

    def of(command: str, option: str) -> bytes:
        path = tmp_path / "expected.json"
        assert run(argv(command, runs, option, path)) == 0
        content = path.read_bytes()
        assert len(content) > 100
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
        path.unlink()
        return content

    return of


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


Written = Callable[[str, str], bytes]


@by_option
def test_an_existing_file_is_replaced_and_keeps_its_mode(
    command: str, option: str, runs: Path, tmp_path: Path, written: Written
) -> None:
    path = tmp_path / "out.json"
    path.write_text("before", encoding="utf-8")
    path.chmod(0o640)
    assert run(argv(command, runs, option, path)) == 0
    assert path.read_bytes() == written(command, option)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]


@by_option
@pytest.mark.parametrize("target", ["there", "missing"])
def test_a_link_is_followed_and_stays(
    command: str, option: str, target: str, runs: Path, tmp_path: Path, written: Written
) -> None:
    (tmp_path / "there").write_text("before", encoding="utf-8")
    link = tmp_path / "out.json"
    link.symlink_to(target)
    assert run(argv(command, runs, option, link)) == 0
    assert link.readlink() == Path(target)
    assert (tmp_path / target).read_bytes() == written(command, option)


@contextmanager
def reader_of(descriptor: Callable[[], int]) -> Iterator[list[bytes]]:
    """Collect everything that arrives on a pipe until its writers have closed it."""
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(descriptor(), "rb") as file:
            found.append(file.read())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield found
    thread.join(20)
    assert not thread.is_alive()


@by_option
def test_a_named_pipe_is_written_through(
    command: str, option: str, runs: Path, tmp_path: Path, written: Written
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with reader_of(lambda: os.open(pipe, os.O_RDONLY)) as found:
        assert run(argv(command, runs, option, pipe)) == 0
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert found == [written(command, option)]


@by_option
@pytest.mark.parametrize("link", [False, True])
def test_the_pipe_of_a_process_substitution_is_written_through(
    command: str, option: str, link: bool, runs: Path, tmp_path: Path, written: Written
) -> None:
    """Open a pipe like `>(cmd)`, whose name is /dev/fd/63 in bash."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    path = Path(f"/dev/fd/{write}")
    if link:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    with reader_of(lambda: read) as found:
        assert run(argv(command, runs, option, path)) == 0
        os.close(write)
    assert found == [written(command, option)]


@by_option
@ROOT_ONLY
def test_a_device_is_written_through_and_stays(command: str, option: str, runs: Path, tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.open("wb").close()
    except OSError:
        pytest.skip("this machine lets root create no device")
    before = device.lstat()
    assert run(argv(command, runs, option, device)) == 0
    assert (device.lstat().st_ino, device.lstat().st_rdev) == (before.st_ino, before.st_rdev)
    assert [one.name for one in tmp_path.iterdir()] == ["null"]


@by_option
def test_a_dash_prints_the_file_alone(
    command: str, option: str, runs: Path, written: Written, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected = written(command, option)
    capfdbinary.readouterr()
    assert run(argv(command, runs, option, "-")) == 0
    assert capfdbinary.readouterr().out == expected


@by_option
@pytest.mark.parametrize(
    "kind", ["folder", "socket", "block device", "circle", "no folder", "other descriptor"]
)
def test_what_cannot_be_written_is_refused_and_stays(
    command: str, option: str, kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "block device":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        try:
            os.mknod(path, 0o666 | stat.S_IFBLK, os.makedev(7, 250))
        except OSError:
            pytest.skip("this machine lets root create no device")
    elif kind == "circle":
        path.symlink_to(path)
    elif kind == "no folder":
        path = tmp_path / "no" / "out.json"
    else:
        path = Path(f"/dev/fd/{os.open('/dev/null', os.O_WRONLY)}")  # not inherited from the shell
    before = {one.name: (one.lstat().st_ino, one.lstat().st_mode) for one in tmp_path.iterdir()}
    assert run(argv(command, runs, option, path)) == 2
    said = capsys.readouterr().err
    words = {
        "folder": "is a folder: name a file",
        "socket": "is a socket: name a file",
        "block device": "is a block device: name a file",
        "circle": "Too many levels of symbolic links",
        "no folder": f"there is no directory {tmp_path / 'no'}",
        "other descriptor": "the shell has opened no descriptor",
    }[kind]
    assert str(path) in said
    assert words in said
    assert {one.name: (one.lstat().st_ino, one.lstat().st_mode) for one in tmp_path.iterdir()} == before
    if kind == "other descriptor":
        os.close(int(path.name))


@contextmanager
def files_of(most: int) -> Iterator[None]:
    """Let no file grow beyond this number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@by_option
@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_the_file_as_it_was(
    command: str, option: str, there: bool, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    if there:
        path.write_text("before", encoding="utf-8")
    started = command in ("compare", "history")  # their table is printed by then
    with files_of(50):
        assert run(argv(command, runs, option, path)) == (1 if started else 2)
    assert f"{path} cannot be written: File too large" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"] * there
    assert not there or path.read_text(encoding="utf-8") == "before"


@by_option
def test_a_folder_that_is_not_there_is_no_file(
    command: str, option: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run([*argv(command, runs, option, tmp_path)[:-1], f"{tmp_path}/x/"])
    assert stop.value.code == 2
    assert "x/' is a folder: name a file" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_root_of_all_folders_is_no_file() -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_output(Path("/"))


def test_standard_output_is_given_to_one_output(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--markdown", "-", "--html", "-"],
        ["--markdown", "-", "--json"],
        ["--html", "-", "--json"],
    ):
        for command in ("compare", "history"):
            stem = [word.replace("{runs}", str(runs)) for word in STEMS[command]]
            assert run([*stem, *words]) == 2
            said = capsys.readouterr()
            assert "both go to standard output: name a file for one of them" in said.err
            assert said.out == ""


def test_what_a_run_is_read_from_is_not_replaced(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(runs=runs) for word in STEMS["export"]]
    link = tmp_path / "link.csv"
    for file in (runs / "one" / "plan.json", next((runs / "two" / "cases").rglob("rank-*.jsonl"))):
        before = file.read_bytes()
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        for path in (file, link):
            assert run([*words, "--out", str(path)]) == 2
            said = capsys.readouterr().err
            assert re.search(r" is a file of the run \S+/(one|two): name another file\n", said), said
            assert file.read_bytes() == before
    for name in ("fabric.json", "merged.json", "cases/more.jsonl"):
        assert run([*words, "--out", str(runs / "one" / name)]) == 2
        assert re.search(r" would be a file of the run \S+/one: name", capsys.readouterr().err)
        assert not (runs / "one" / name).exists()
    assert run([*words, "--out", str(runs / "one" / "cases.csv")]) == 0
    assert run([*words, "--out", str(runs / "one" / "more.csv")]) == 0
    sizes = runs / "submission.json"
    sizes.write_text('{"schema_version": 1, "sizes": []}', encoding="utf-8")
    with pytest.raises(OutputError, match="is a file of the run"):
        check_output(sizes)
    sizes.unlink()


@pytest.mark.parametrize("name", ["comparison.json", "plan.json", "submission.json", "machine.json"])
def test_files_of_other_programs_are_replaced_under_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"format_version": "1.2", "cases": []}', encoding="utf-8")
    (tmp_path / "comparison.json").write_bytes(b"a plan in a binary form")
    (tmp_path / name).write_text("{}", encoding="utf-8")
    for content in ("once", "twice"):
        write_output(tmp_path / name, content)
    assert (tmp_path / name).read_text(encoding="utf-8") == "twice"


@pytest.mark.parametrize("command", ["compare", "history"])
def test_two_outputs_are_not_one_file(
    command: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(runs=runs) for word in STEMS[command]]
    (tmp_path / "link").symlink_to("file")
    for second in ("file", f"../{tmp_path.name}/file", "link"):
        pair = ["--markdown", str(tmp_path / "file"), "--html", f"{tmp_path}/{second}"]
        assert run([*words, *pair]) == 2
        said = capsys.readouterr().err
        assert (
            f"--markdown and --html both write {tmp_path / 'file'}: name another file for one of them" in said
        )
        assert not (tmp_path / "file").exists()
    assert run([*words, "--markdown", "/dev/null", "--html", "/dev/null"]) == 0


@pytest.mark.parametrize("command", ["compare", "history"])
def test_what_was_compared_is_printed_although_a_file_cannot_be_written(
    command: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files_of(50):
        assert run(argv(command, runs, "--markdown", tmp_path / "out.md")) == 1
    assert "case  " in capsys.readouterr().out


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PY": sys.executable, **more},
        timeout=120,
    )


def test_streams_of_a_shell_get_what_a_file_gets(runs: Path, tmp_path: Path) -> None:
    line = '"$PY" -m ddpbench export "$RUN" --format csv --out '
    expected = tmp_path / "expected"
    there = {"RUN": str(runs / "one"), "TMP": str(tmp_path)}
    assert shell(f'{line} "$TMP/expected"', **there).returncode == 0
    text = expected.read_text(encoding="utf-8")
    for way in (
        f"{line} /dev/stdout | cat",
        f"{line} >(cat) | cat",
        f'echo kept > "$TMP/file"; {line} /dev/stdout >> "$TMP/file"; cat "$TMP/file"',
        f'{line} /dev/fd/7 7> "$TMP/file"; cat "$TMP/file"',
    ):
        ended = shell(way, **there)
        assert ended.stderr == ""
        assert ended.stdout == ("kept\n" if "kept" in way else "") + text
    assert shell(f"{line} >(true); true", **there).returncode == 0  # without a reader


@ROOT_ONLY
@pytest.mark.parametrize("owner", [0, 65534, 12345])
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_somebody_elses_link_in_a_shared_folder_is_not_followed(
    tmp_path: Path, mode: int, owner: int
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    os.chown(shared, owner, owner)  # a folder that the other user owns is as open
    (shared / "out").symlink_to(precious)
    os.chown(shared / "out", 65534, 65534, follow_symlinks=False)
    for check in (
        check_output,
        lambda path: write_output(path, "x"),
        lambda path: replace_user_file(path, b"x"),
    ):
        with pytest.raises(
            OutputError, match="is a link of another user in a folder that everybody can write"
        ):
            check(shared / "out")
    assert precious.read_text(encoding="utf-8") == "mine"
    os.chown(shared / "out", 0, 0, follow_symlinks=False)
    write_output(shared / "out", "x")
    assert precious.read_text(encoding="utf-8") == "x"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@ROOT_ONLY
@pytest.mark.parametrize("where", ["at the end", "before the end", "behind the user's link"])
def test_somebody_elses_link_to_a_folder_is_not_followed(where: str, shared: Path, tmp_path: Path) -> None:
    """No file or directory is created in a folder that another user has chosen."""
    mine = tmp_path / "mine"
    mine.mkdir()
    planted = shared / "results"
    planted.symlink_to(mine)
    os.chown(planted, 65534, 65534, follow_symlinks=False)
    (tmp_path / "own").symlink_to(planted)
    out = {
        "at the end": planted,
        "before the end": planted / "new",
        "behind the user's link": tmp_path / "own" / "new",
    }[where]
    refusal = re.escape(f"{planted} is a link of another user in a folder that everybody can write")
    with pytest.raises(OutputError, match=refusal):
        checked_name(out)
    with pytest.raises(OutputError, match=refusal), new_folder(out):
        pass
    with pytest.raises(OutputError, match=refusal):
        write_output(out / "out.md", "x")
    assert list(mine.iterdir()) == []
    os.chown(planted, 0, 0, follow_symlinks=False)
    assert checked_name(out) == out
    with new_folder(out):
        write_output(out / "out.md", "x")
    assert len(list(mine.rglob("out.md"))) == 1


@ROOT_ONLY
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_somebody_elses_file_or_pipe_in_a_shared_folder_is_not_written(kind: str, shared: Path) -> None:
    """Its owner could read and change it, or the command would wait for its owner."""
    path = shared / "out.md"
    if kind == "file":
        path.write_text("", encoding="utf-8")
    else:
        os.mkfifo(path)
    path.chmod(0o666)
    os.chown(path, 65534, 65534)
    for check in (check_output, lambda path: write_output(path, "x")):
        with pytest.raises(OutputError, match=f"another user's {kind} in a folder that everybody can write"):
            check(path)
    assert path.stat().st_size == 0
    os.chown(path, 0, 0)
    check_output(path)


@ROOT_ONLY
def test_owner_and_mode_of_a_replaced_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before", encoding="utf-8")
    os.chown(path, 1234, 5678)
    path.chmod(0o6751)
    write_output(path, "after")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5678, 0o751)


@ROOT_ONLY
def test_a_file_that_may_not_be_written_is_not_replaced_either() -> None:
    """The folder's permissions would allow it, since a rename needs no more."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from ddpbench.records.outputs import write_output\n"
        "from ddpbench.errors import OutputError\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "write_output(Path('another'), 'after')\n"
        "try: write_output(Path('file'), 'after')\n"
        "except OutputError as error: print(error)\n"
    )
    with open_folder() as folder:
        path = folder / "file"
        path.write_text("before", encoding="utf-8")
        path.chmod(0o444)
        ended = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=folder
        )
        assert ended.stdout.startswith("file cannot be written: Permission denied")
        assert path.read_text(encoding="utf-8") == "before"
        assert (folder / "another").read_text(encoding="utf-8") == "after"


# A script that `init --write` changes.


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    body = SOUND.replace("class Measured", "class Other")
    path.write_text(f"{body}\n\nif __name__ == '__main__':\n    print('the tail of the script')\n", "utf-8")
    path.chmod(0o750)
    return path


def test_a_script_that_cannot_be_written_stays_whole(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = script.read_bytes()
    for most in (0, 100, len(before) - 1, len(before) + 20):
        with files_of(most):
            assert run(["init", str(script), "--write"]) == 2
        assert f"{script} cannot be written: File too large" in (said := capsys.readouterr().err)
        assert "it is unchanged" in said
        assert script.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_a_script_behind_a_link_is_changed_where_it_is(script: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/train.py"
    link.symlink_to("../train.py")
    assert run(["init", str(link), "--write"]) == 1  # the script does not train
    assert link.readlink() == Path("../train.py")
    text = script.read_text(encoding="utf-8")
    assert "class Measured" in text
    assert text.rstrip().endswith("print('the tail of the script')")
    assert script.stat().st_mode & 0o777 == 0o750
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bin", "train.py"]


def test_a_script_that_is_no_regular_file_is_not_written(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "pipe", Path("/dev/stdin"), Path("/dev/null"), Path("-")):
        if path.name == "pipe":
            os.mkfifo(path)
        before = path.lstat() if path.exists() else None
        assert run(["init", str(path), "--write"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert before is None or path.lstat().st_mode == before.st_mode
    with pytest.raises(OutputError, match="is not a regular file"):
        replace_user_file(tmp_path / "pipe", b"")


# Directories that commands are given.


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_directory_to_write_that_is_a_pipe_or_a_device_stays(
    kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif os.geteuid() == 0:
        try:
            os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            pytest.skip("this machine lets root create no device")
    else:
        pytest.skip("needs root")
    before = place.lstat()
    named = [
        command
        for command, parser in commands().items()
        if any(action.option_strings == ["--out"] and action.metavar == "DIR" for action in parser._actions)
    ]
    lines: dict[str, Sequence[object]] = {
        "sweep": ["quick"],
        "plan": ["quick", "--nodes", "a,b"],
        "submit": ["quick", "--nodes", "1", "--dry-run"],
        "allocation": [runs / "one"],
        "merge": [runs / "one", runs / "two"],
        "compare": ["quick", "--interleave", "--base", "HEAD", "--new", "."],
        "bisect": ["quick", "HEAD~1", "HEAD"],
        "noise": [],
    }
    assert set(lines) == set(named)
    for command in named:
        assert run([command, *map(str, lines[command]), "--out", str(place)]) == 2, command
        assert command == "merge" or "place" in capsys.readouterr().err
        assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_a_profile_is_a_json_file_or_a_stream(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "gpt:nano", "--out", str(tmp_path / "x.txt")]) == 2
    assert "the name of a profile must end in .json" in capfd.readouterr().err
    assert run(["profile", "gpt:nano", "--out", "-"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out) == json.loads(PROFILE)
    assert "profiling gpt:nano" in said.err


def test_of_pages_and_baselines_that_cannot_be_written_nothing_is_left(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "there"
    for folder in ("there", "whole"):
        assert run(["allocation", str(runs / "one"), "--out", folder]) == 0
    (there / "allocation.md").unlink()
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    sizes = {path.suffix: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    assert sizes[".md"] < sizes[".tex"]
    shutil.rmtree(tmp_path / "whole")
    capsys.readouterr()
    for words, most in (
        (["allocation", str(runs / "one"), "--out", "new/pages"], sizes[".tex"] - 1),
        (["allocation", str(runs / "one"), "--out", "there"], 100),
        (["baseline", "save", "main", str(runs / "one")], 100),
    ):
        with files_of(most):
            assert run(words) == 2
        assert "File too large" in capsys.readouterr().err
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "there",
        *(f"there/{name}" for name in sorted(before)),
    ]
    assert {path.name: path.read_bytes() for path in there.iterdir()} == before


@ROOT_ONLY
@pytest.mark.parametrize("where", ["out", "below/out", "folder/new", "../planted/out"])
def test_a_link_below_somebody_elses_folder_is_not_followed(where: str, shared: Path, tmp_path: Path) -> None:
    """Only its owner can write in the folder, but where its links lead is mine."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("mine", encoding="utf-8")
    planted = shared / "planted"
    (planted / "below").mkdir(parents=True)
    (planted / "out").symlink_to(mine / "precious")
    (planted / "below/out").symlink_to("../out")
    (planted / "folder").symlink_to(mine)
    for path in (planted, *planted.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    refusal = (
        f"is a link of another user, below their folder {planted}, which is in a folder that everybody can"
    )
    for write in (
        check_output,
        lambda path: write_output(path, "x"),
        lambda path: replace_user_file(path, b""),
    ):
        with pytest.raises(OutputError, match=re.escape(refusal)):
            write(planted / where)
    with pytest.raises(OutputError, match=re.escape(refusal)):
        checked_name(planted / where)
    assert (mine / "precious").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in mine.iterdir()) == ["precious"]
    os.chown(planted / "out", 0, 0, follow_symlinks=False)  # the user's own link there
    write_output(planted / "out", "x")
    assert (mine / "precious").read_text(encoding="utf-8") == "x"
    write_output(planted / "new", "y")
    assert (planted / "new").read_text(encoding="utf-8") == "y"


def test_two_dots_behind_a_link_mean_what_they_mean_to_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/sub")
    (tmp_path / "out").symlink_to("link/../named")
    for name in ("given", "named"):
        (tmp_path / name).write_text("another file", encoding="utf-8")
        (tmp_path / "real" / name).write_text("old", encoding="utf-8")
    write_output(tmp_path / "link/../given", "x")
    write_output(tmp_path / "out", "x")
    for name in ("given", "named"):
        assert (tmp_path / name).read_text(encoding="utf-8") == "another file"
        assert (tmp_path / "real" / name).read_text(encoding="utf-8") == "x"
    assert (tmp_path / "out").is_symlink()


def _written_in(folder: Path) -> None:
    with new_folder(folder / "new") as held:
        write_atomically(held / "precious", "x")


WAYS: dict[str, Callable[[Path], object]] = {
    "an output": lambda folder: write_output(folder / "precious", "x"),
    "a script": lambda folder: replace_user_file(folder / "precious", b"x"),
    "a baseline": lambda folder: Baselines(folder).save("main", b"x"),
    "several files": _written_in,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_link_put_in_a_folders_place_after_the_look_is_not_followed(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the folder at the last moment: files are written into the folder that was checked."""
    mine, folder, away = tmp_path / "mine", tmp_path / "shared/folder", tmp_path / "shared/away"
    for one in (mine, mine / "new", folder):
        one.mkdir(parents=True)
        (one / "precious").write_text("mine", encoding="utf-8")
    before = sorted(mine.rglob("*"))

    def exchanged(path: Path, mode: int = 0o666) -> BinaryIO:
        if not away.exists():
            folder.rename(away)
            folder.symlink_to(mine)
        return create_file(path, mode)

    monkeypatch.setattr("ddpbench.records.files.create_file", exchanged)
    WAYS[way](folder)
    assert away.exists()
    assert sorted(mine.rglob("*")) == before
    assert {path.read_text(encoding="utf-8") for path in mine.rglob("precious")} == {"mine"}
    assert "x" in {path.read_text(encoding="utf-8") for path in away.rglob("*") if path.is_file()}


def test_a_pipe_that_becomes_another_file_after_the_look_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_text("mine", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    access = os.access

    def exchanged(*words: Any) -> bool:
        (tmp_path / "pipe").unlink()
        (tmp_path / "pipe").hardlink_to(tmp_path / "precious")
        return access(*words)

    monkeypatch.setattr(os, "access", exchanged)
    with pytest.raises(OutputError, match="pipe has just become a file: give another name"):
        write_output(tmp_path / "pipe", "x")
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "mine"


def test_errors_in_a_held_folder_name_the_path_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, new_folder(tmp_path / "new") as held:
        (held / "no/there").mkdir()
    assert caught.value.filename == str(tmp_path / "new/no/there")
    assert not (tmp_path / "new").exists()
    with pytest.raises(OutputError) as refused, new_folder(tmp_path / "new") as held:
        raise OutputError(f"{held / 'file'} is it")
    assert str(refused.value) == f"{tmp_path}/new/file is it"
