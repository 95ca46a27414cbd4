"""Processes that work in parallel with this one: a report on a large run has work for several cores.

Run as `python -m ddpbench.helper_process MODULE ...`, it imports these modules while it gets no question. A question is
a function of some module and its argument; it comes in pickled, and so does the answer go out.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
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
"""The variable with folders whose code comes before any other: a side of a comparison."""


def child_environment(*more: str) -> dict[str, str]:
    """Return the environment for a child that runs a module of this package, from any working directory.

    The package's folder comes first in PYTHONPATH, then what the user gave, then `more`; `python -P` leaves out the
    working directory, which may hold another. If the package is installed, its folder holds all other packages, too,
    and is left out: an interpreter finds its own. The folders of `CODE_FIRST` come before all.
    """
    given = os.environ.get("PYTHONPATH", "")
    first = os.environ.get(CODE_FIRST, "")
    package = Path(__file__).resolve().parents[1]
    own = [] if package.name in ("site-packages", "dist-packages") else [str(package)]
    parts = [*([first] if first else []), *own, *([given] if given else []), *more]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}


_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class Helper(AbstractContextManager["Helper"]):
    """A further process, asked one thing after another; if it cannot answer, the answer is None."""

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
        """Send a function and its argument, and return; `answer` waits."""
        # In a thread: a pipe holds little, and the other process may still be importing.
        telling = Thread(target=self._tell, args=((work, question),), daemon=True)
        telling.start()
        self._telling = telling  # set once it can be waited for: another thread may end this

    def _tell(self, question: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(pickle.dumps(question))
            self.process.stdin.flush()
        except Exception:
            self.process.kill()  # it has ended, or cannot be reached

    def answer(self) -> Any:
        """Return its answer to the question, or None."""
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
        except (OSError, ValueError):  # what was not sent yet cannot be sent any more
            self.process.wait()


class Others(AbstractContextManager["Others"]):
    """The processes that work in parallel with this one; there may be none. They end with the block."""

    def __init__(self, *processes: Helper) -> None:
        self.processes = processes

    @property
    def first(self) -> Helper | None:
        """Return one of them, for work that cannot be shared."""
        return self.processes[0] if self.processes else None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.processes:
            one.process.kill()  # all of them, even if the wait for one fails
        with ExitStack() as ends:
            for one in self.processes:
                ends.push(one)


NOBODY = Others()
"""No further process: this one does all."""


class Dealt(Generic[_Question, _Answer]):
    """Questions of one kind for several processes: a free process takes the next. Failed ones are answered here."""

    def __init__(
        self, work: Callable[[_Question], _Answer], questions: Sequence[_Question], others: Others
    ) -> None:
        """Start the other processes on the first ones. `answers` takes part."""
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
                return  # `answers` finds that it is missing
            self._found[number], answer = answer, None

    def answers(self, on_done: Callable[[int], None] = lambda done: None) -> list[_Answer]:
        """Return all answers in the order of their questions. `on_done` gets how many exist before each made here."""
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
"""Cases from which other processes are worth it: a report on fewer is made before a second process has imported its
modules.
"""
_MOST_HELPERS = 3
"""Most further processes: each takes the memory of one more, and work that cannot be shared soon is most of the rest.
"""
_OF_A_REPORT = (
    "ddpbench.analysis.read.reading",
    "ddpbench.report.draw.painter",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "ddpbench.report.page",
)
"""Modules that the others import, in the order of use: the last has all that draws."""


def for_report(cases: int) -> Others:
    """Return processes for a report on this many cases, planned or measured; none if they are not worth it.

    Call it before pandas is imported here: that takes as long as their start.
    """
    settle_matplotlib()
    return start_others(*_OF_A_REPORT) if cases >= WORTH_STARTING else NOBODY


def start_others(*modules: str) -> Others:
    """Return a process for each core but this one's, up to a few; they import these modules first."""
    started: list[Helper] = []
    with suppress(OSError):  # no more processes, or no memory for one: use those that started
        while len(started) < min(further_cores(), _MOST_HELPERS):
            started.append(Helper(*modules))
    return Others(*started)


def further_cores() -> int:
    """Return the number of cores in addition to this process's."""
    return granted_cores() - 1


def serve(questions: BinaryIO, answers: BinaryIO, modules: list[str]) -> None:
    """Answer one question after another, until their end. A failure ends the process."""
    gc.disable()  # nothing in a question is garbage before it is answered
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
    # Output of modules must not get among the answers.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, out, sys.argv[1:])
