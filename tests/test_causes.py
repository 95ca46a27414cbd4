"""Exceptions in words: the part of their text that is shown, and the part that is left out."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpbench
from ddpbench.causes import (
    LONGEST,
    environments_part_of,
    exception_words,
    is_users,
    limits_part,
    meaningful,
    users_line,
)
from ddpbench.errors import OutputError
from ddpbench.launch.sweep import directory
from ddpbench.records import RunDir
from ddpbench.runtime.running_server import tail_of


def worker_error(path: Path) -> str:
    """Return the exception that torch raises for an exception in a loader worker."""
    return (
        "Caught ValueError in DataLoader worker process 1.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/dist-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n'
        "    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]\n"
        "           ^^^^^^^^^^^^^^^^^^^^\n"
        f'  File "{path}", line 7, in __getitem__\n'
        '    raise ValueError("bad sample 5:\\nits label is 11, of 10 classes")\n'
        "ValueError: bad sample 5:\nits label is 11, of 10 classes\n"
    )


def test_a_loader_workers_cause_and_line_are_said(tmp_path: Path) -> None:
    said = exception_words(ValueError(worker_error(tmp_path / "mine.py")))
    assert said == (
        f"ValueError: bad sample 5: its label is 11, of 10 classes (DataLoader worker process 1, {tmp_path}/mine.py:7)"
    )


def test_advice_that_crashes_and_notes_for_who_debugs_torch_are_left_out() -> None:
    said = meaningful(
        "Expected all of it. You can make sure of it, and by \nusing all outputs. \n"
        "Parameter indices which did not receive grad for rank 1: 4 5\n"
        " In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print "
        "out information about which parameters did not receive gradient on this rank as part of this error"
    )
    assert said == "Expected all of it. You can make sure of it, and by using all outputs."
    assert meaningful("CUDA error: an illegal access\nCompile with `TORCH_USE_CUDA_DSA` to enable it.\n") == (
        "CUDA error: an illegal access"
    )


def test_lines_that_belong_to_a_heading_are_said_with_it() -> None:
    error = RuntimeError(
        'Error(s) in loading state_dict for Net:\n\tMissing key(s): "a.weight". \n\tsize mismatch for b'
    )
    assert exception_words(error) == (
        'RuntimeError: Error(s) in loading state_dict for Net: Missing key(s): "a.weight". size mismatch for b'
    )


def test_of_a_long_text_the_first_sentence_and_the_last_ones_are_said_whole() -> None:
    middle = " ".join(f"Sentence number {number} is not needed at all." for number in range(40))
    said = meaningful(f"It went wrong here. {middle}\nThe weight of layer 7 is to blame.")
    assert said.startswith("It went wrong here. ... ")
    assert said.endswith("Sentence number 39 is not needed at all. The weight of layer 7 is to blame.")
    assert len(said) <= LONGEST + len(" ... ")


class Endless:
    def __repr__(self) -> str:
        return repr(self)


def test_an_exception_that_cannot_be_written_is_said_by_its_type() -> None:
    assert exception_words(KeyError(Endless())) == "KeyError"


def test_the_cause_that_an_exception_was_raised_from_is_said() -> None:
    error = RuntimeError("the dataset cannot be read")
    error.__cause__ = FileNotFoundError("no folder /data")
    assert exception_words(error) == (
        "RuntimeError: the dataset cannot be read (from FileNotFoundError: no folder /data)"
    )


def test_warnings_that_the_environment_raises_are_put_down_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    assert exception_words(DeprecationWarning("old")) == (
        "DeprecationWarning: old; PYTHONWARNINGS=error in the environment raises warnings as errors: unset it"
    )
    monkeypatch.delenv("PYTHONWARNINGS")
    assert "warnings.simplefilter" in exception_words(UserWarning("mine"))


def test_text_that_is_read_as_ascii_is_put_down_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags:
        utf8_mode = 0

    monkeypatch.setattr(sys, "flags", Flags())
    monkeypatch.setenv("PYTHONUTF8", "0")
    error: Any = None
    try:
        "é".encode().decode("ascii")
    except UnicodeDecodeError as found:
        error = found
    said = exception_words(error)
    assert "PYTHONUTF8=0 in the environment has Python read and write text as ascii: set PYTHONUTF8=1" in said
    monkeypatch.setattr(Flags, "utf8_mode", 1)
    assert "PYTHONUTF8" not in exception_words(error)


def test_the_users_own_line_is_neither_pythons_nor_an_installed_packages() -> None:
    assert is_users(__file__)
    assert not is_users(warnings.__file__)
    assert not is_users(pytest.__file__)
    assert not is_users("<frozen importlib._bootstrap>")
    try:
        raise ValueError
    except ValueError as error:
        line = users_line(error)
    assert line.startswith((" (tests/test_causes.py:", f" ({__file__}:"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "DeprecationWarning: `torch.jit.script` is deprecated.",
            "; PYTHONWARNINGS=error in the environment raises",
        ),
        ("torch.errors.ExperimentalWarning: beware", "; PYTHONWARNINGS=error in the environment raises"),
        (
            "UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3",
            "; PYTHONUTF8=0 in the environment has Python",
        ),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xc3", ""),
        ("ValueError: a Warning: of mine", ""),
    ],
)
def test_the_last_line_of_a_process_that_did_not_start_is_put_down_to_the_environment(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not environments_part_of(line)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONUTF8", "0")
    assert environments_part_of(line).startswith(said)
    assert bool(environments_part_of(line)) == bool(said)


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError",
        "RuntimeError: Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "OSError: [Errno 12] Cannot allocate memory",
        "  what():  std::bad_alloc",
        "terminate called without an active exception",
        "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.",
        "ImportError: libtorch_cpu.so: failed to map segment from shared object",
    ],
)
def test_what_a_limit_of_the_address_space_leads_to_is_put_down_to_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    threads = "can't start new thread" in line or "Resource temporarily" in line
    assert environments_part_of(line) == (OF_PROCESSES if threads else "")
    limit = 550 << 20
    said = "; memory is limited to 550 MiB of address space: raise the limit with ulimit -v"
    assert environments_part_of(line) == said
    assert environments_part_of("ValueError: a bad label") == ""
    assert exception_words(RuntimeError("Resource temporarily unavailable")).endswith(said)
    assert exception_words(MemoryError()) == f"MemoryError{said}"
    assert said not in exception_words(ValueError("a bad label"))


def test_what_a_loader_worker_cannot_be_given_is_reported_with_what_to_do() -> None:
    class Local:
        pass

    with pytest.raises((AttributeError, pickle.PicklingError)) as raised:
        pickle.dumps(Local())
    assert "set base.loader_workers = 0" in exception_words(raised.value)
    assert "loader_workers" not in exception_words(AttributeError("no attribute 'a'"))


OF_PROCESSES = (
    "; the limit of processes and threads is reached: raise it with ulimit -u, or the container's "
    "limit of processes"
)
UNAVAILABLE = "Resource temporarily unavailable"
FORKED = """  File "/usr/lib/python3.12/subprocess.py", line 1885, in _execute_child
    self.pid = _fork_exec(
               ^^^^^^^^^^^
BlockingIOError: [Errno 11] Resource temporarily unavailable
"""
LOCKED = f"""  File "own.py", line 3, in held
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
BlockingIOError: [Errno 11] {UNAVAILABLE}
"""


def os_fork() -> None:
    """Raise what os.fork does at a limit, from a line like its own."""
    ours, theirs = os.pipe2(os.O_NONBLOCK)
    fork = partial(os.read, ours, 1)
    try:
        fork()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: can't start new thread",
        f"terminate called after throwing an instance of 'std::system_error'\n  what():  {UNAVAILABLE}\n",
        f"OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64: {UNAVAILABLE}",
        f"sh: fork: retry: {UNAVAILABLE}",
        f"Traceback (most recent call last):\n{FORKED}",
    ],
)
def test_a_limit_of_processes_is_named(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert limits_part(words) == environments_part_of(words) == OF_PROCESSES
    assert limits_part("RuntimeError: a tensor is unavailable") == ""


@pytest.mark.parametrize(
    "words",
    [
        f"BlockingIOError: [Errno 11] Unable to lock file (errno = 11, error message = '{UNAVAILABLE}')",
        LOCKED,
        f'  File "server.py", line 9, in serve\n    self._fork(rank)\n{LOCKED}',
    ],
)
def test_a_file_that_is_locked_is_no_limit_of_processes(words: str) -> None:
    assert limits_part(words) == environments_part_of(words.splitlines()[-1], words) == ""


def test_of_an_exception_the_traceback_says_whether_it_is_of_a_fork() -> None:
    with pytest.raises(BlockingIOError) as raised:
        os_fork()
    assert exception_words(raised.value).endswith(OF_PROCESSES)
    assert exception_words(BlockingIOError(errno.EAGAIN, UNAVAILABLE)).endswith(UNAVAILABLE)


def test_a_logs_last_line_is_read_with_its_traceback(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    for trace, said in ((FORKED, OF_PROCESSES), (LOCKED, "")):
        log.write_text(f"Traceback (most recent call last):\n{trace}", encoding="utf-8")
        last = f"BlockingIOError: [Errno 11] {UNAVAILABLE}{said}"
        assert tail_of(log, where=False) == f"; its last words: {last}"


def test_a_run_directory_is_not_blamed_where_no_process_can_be_started(tmp_path: Path) -> None:
    removed: list[str] = []
    prepared: Any = SimpleNamespace(resumes=False, run=RunDir(tmp_path / "run"))
    made: Any = SimpleNamespace(remove=lambda: removed.append("made"))
    with pytest.raises(OutputError) as raised, directory._writing(prepared, made):
        os_fork()
    assert str(raised.value) == (f"{tmp_path / 'run'} cannot be measured: {UNAVAILABLE}{OF_PROCESSES}")
    assert removed == ["made"]


def test_an_exception_of_a_futures_callback_is_shown_alone_with_the_users_line(tmp_path: Path) -> None:
    called = "Got the following error when running the callback: "
    mine, ours = tmp_path / "mine.py", Path(ddpbench.__file__).parent / "strategies/hook/replica.py"
    frames = f"  {ours}(97): arrived\n  {mine}(44): f\n  {mine}(40): hook\n"
    for before in ("", f"{called}RuntimeError: "):
        error = RuntimeError(f"{before}{called}ValueError: too short\n\nAt:\n{frames}\n\nAt:\n{frames}")
        assert exception_words(error) == f"ValueError: too short ({mine}:44)"
    error = RuntimeError(f"{called}ValueError: too short\n\nAt:\n  {ours}(97): arrived\n")
    assert exception_words(error) == "ValueError: too short"
