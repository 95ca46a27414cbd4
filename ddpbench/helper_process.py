"""Helper processes that work in parallel with this one, for example on a large run's report.

A helper, `python -m ddpbench.helper_process MODULE ...`, imports the modules, then answers questions (a function and
its argument), which are pickled.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pickle
import select
import site
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, BinaryIO, Generic, TypeVar

from ddpbench.cpu_quota import granted_cores
from ddpbench.matplotlib_folder import settle_matplotlib

CODE_FIRST = "DDPBENCH_CODE_FIRST"
"""The environment variable with the folders to search for code first, set for a side of a comparison."""

_FIND_S = 60
"""Time limit for an interpreter to find this package, seconds."""


def child_environment(*more: str) -> dict[str, str]:
    """Return the environment for a child that runs a module of this package, from any working directory.

    PYTHONPATH has the folders of `CODE_FIRST`, the folder of this package unless the child finds it there anyway, the
    user's own PYTHONPATH, then `more`. Start the child with `python -P`, because the working directory may have a
    different ddpbench.
    """
    given = os.environ.get("PYTHONPATH", "")
    first = os.environ.get(CODE_FIRST, "")
    package = Path(__file__).resolve().parents[1]
    own = [] if os.pathsep in str(package) or _is_found_in(package) else [str(package)]
    parts = [*([first] if first else []), *own, *([given] if given else []), *more]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}


@functools.cache
def _is_found_in(folder: Path) -> bool:
    """Return whether another process of this interpreter finds this package in a folder without being told.

    It does not if a program has added the folder to its own `sys.path`.
    """
    if folder.name not in ("site-packages", "dist-packages"):
        return False
    usual = [*site.getsitepackages(), site.getusersitepackages() if site.ENABLE_USER_SITE else ""]
    if folder in [Path(one).resolve() for one in usual if one]:
        return True
    line = "import importlib.util; print(importlib.util.find_spec('ddpbench').origin)"
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            [sys.executable, "-P", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_FIND_S,
            check=True,
        )
        return Path(os.fsdecode(found.stdout).strip()).resolve().is_relative_to(folder)
    return False


_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class Helper(AbstractContextManager["Helper"]):
    """A helper process, which calls the functions that it is sent. If it fails, its answer is None."""

    def __init__(self, *modules: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ddpbench.helper_process", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        self._telling: Thread | None = None

    def ask(self, work: Callable[[Any], Any], question: Any) -> None:
        """Send a function and its argument, without waiting for the answer."""
        # In a thread, because a pipe holds little, and the other process may still be importing.
        telling = Thread(target=self._tell, args=((work, question),), daemon=True)
        telling.start()
        self._telling = telling  # only now can it be joined, which another thread may do

    def _tell(self, question: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(pickle.dumps(question))
            self.process.stdin.flush()
        except Exception:
            self.process.kill()  # the process has ended, or cannot be reached

    def answer(self) -> Any:
        """Wait for the answer to the last question, and return it; None if the process failed."""
        assert self.process.stdout is not None
        try:
            found = pickle.load(self.process.stdout)
        except Exception:  # after any error, nothing that follows in this pipe is a whole answer
            self.process.kill()
            found = None
        if self._telling is not None:
            self._telling.join()
        return found

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        if self._telling is not None:
            self._telling.join()
        try:
            self.process.communicate()
        except (OSError, ValueError):  # the rest of a question cannot be sent any more
            self.process.wait()


class Others(AbstractContextManager["Others"]):
    """The helper processes of this process, if any. They end with the `with` block."""

    def __init__(self, *processes: Helper) -> None:
        self.processes = processes

    @property
    def first(self) -> Helper | None:
        """Return one of the processes, for work that cannot be shared; None without processes."""
        return self.processes[0] if self.processes else None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.processes:
            one.process.kill()  # kill all of them first, because the wait for one may fail
        with ExitStack() as ends:
            for one in self.processes:
                ends.push(one)


NOBODY = Others()
"""An `Others` without helper processes, for work that this process does alone."""


class Dealt(Generic[_Question, _Answer]):
    """Calls of one function with many arguments, spread over helpers and this process, which repeats failed ones."""

    def __init__(
        self, work: Callable[[_Question], _Answer], questions: Sequence[_Question], others: Others
    ) -> None:
        """Start the helpers on the first questions, which are arguments for `work`.

        This process answers some of the other questions itself, when `answers` is called.
        """
        self._work = work
        self._questions = questions
        self._left = iter(range(len(questions)))
        self._found: dict[int, _Answer] = {}
        self._dealing = [Thread(target=self._deal, args=(one,), daemon=True) for one in others.processes]
        for thread in self._dealing:
            thread.start()

    def _deal(self, helper: Helper) -> None:
        answer: _Answer | None = None
        for number in self._left:
            with suppress(Exception):
                helper.ask(self._work, self._questions[number])
                answer = helper.answer()
            if answer is None:
                return  # `answers` finds that this answer is missing
            self._found[number], answer = answer, None

    def answers(self, on_done: Callable[[int], None] = lambda done: None) -> list[_Answer]:
        """Return all answers in the order of their questions.

        `on_done` gets the number of answers so far, before each question that this process answers.
        """
        for number in self._left:
            on_done(len(self._found))
            self._found[number] = self._work(self._questions[number])
        for thread in self._dealing:
            thread.join()
        for number, question in enumerate(self._questions):
            if number not in self._found:
                self._found[number] = self._work(question)
        return [self._found[number] for number in range(len(self._questions))]


WORTH_STARTING = 5
"""Fewest cases for which helpers are started; a report on fewer cases is finished before a helper has imported its
modules.
"""
_MOST_HELPERS = 3
"""Most helpers to start. Each helper takes memory. With more helpers, most of the time would be spent on work that
can't be shared.
"""
_OF_A_REPORT = (
    "ddpbench.analysis.read.reading",
    "ddpbench.report.draw.painter",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "ddpbench.report.page",
)
"""Modules that helpers import, in the order in which they are used."""


def for_report(cases: int) -> Others:
    """Start helpers for a report on this many cases, if it is large enough to benefit.

    Call this before importing pandas, so that the helpers start meanwhile.
    """
    settle_matplotlib()
    return start_others(*_OF_A_REPORT) if cases >= WORTH_STARTING else NOBODY


def start_others(*modules: str) -> Others:
    """Start a helper for each core but one, up to `_MOST_HELPERS` helpers, and have each of them import `modules`."""
    started: list[Helper] = []
    with suppress(OSError):  # if the system allows no more processes, use those that have started
        while len(started) < min(further_cores(), _MOST_HELPERS):
            started.append(Helper(*modules))
    return Others(*started)


def further_cores() -> int:
    """Return the number of cores that helpers can use, which leaves one core for this process."""
    return granted_cores() - 1


def serve(questions: BinaryIO, answers: BinaryIO, modules: list[str]) -> None:
    """Answer questions until the stream `questions` ends, and import `modules` in between. Failures are not caught."""
    gc.disable()  # nothing becomes garbage before the answer is sent
    while True:
        while modules and not select.select([questions], [], [], 0)[0]:
            importlib.import_module(modules.pop(0))
        try:
            work, question = pickle.load(questions)
        except EOFError:
            return
        pickle.dump(work(question), answers)
        answers.flush()


if __name__ == "__main__":
    # Output of the modules must not get between the answers.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, out, sys.argv[1:])
