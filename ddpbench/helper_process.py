"""A second process that works beside this one: a report of a large run has work for two cores.

Run as `python -m ddpbench.helper_process MODULE ...`, it imports these modules while nothing is asked of it. A question
is a function of some module and its argument; it comes in pickled and the answer goes out so.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, BinaryIO, Generic, TypeVar

CODE_FIRST = "DDPBENCH_CODE_FIRST"
"""A variable with folders whose code comes before any other: a side of a comparison."""


def child_environment(*more: str) -> dict[str, str]:
    """This process's environment for a child that runs a module of this package: its own, wherever it is started.

    The package's folder comes first in PYTHONPATH, then what the user gave, then `more`; `python -P` leaves out the
    working directory, which may hold another. Where the package is installed its folder has all others, too, and is
    left out: an interpreter finds its own. Before all stand the folders of `CODE_FIRST`.
    """
    given = os.environ.get("PYTHONPATH", "")
    first = os.environ.get(CODE_FIRST, "")
    package = Path(__file__).resolve().parents[1]
    own = [] if package.name in ("site-packages", "dist-packages") else [str(package)]
    parts = [*([first] if first else []), *own, *([given] if given else []), *more]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}


_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class Beside(AbstractContextManager["Beside"]):
    """A second process. It is asked one thing after another; where it cannot answer, the answer is None."""

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
        """Hands over a function and its argument, and returns; `answer` waits."""
        # In a thread: a pipe holds little, and the other process may still be importing.
        self._telling = Thread(target=self._tell, args=((work, question),), daemon=True)
        self._telling.start()

    def _tell(self, told: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(pickle.dumps(told))
            self.process.stdin.flush()
        except Exception:
            self.process.kill()  # it has ended, or cannot be told

    def answer(self) -> Any:
        """Return what it made of the question, or None."""
        assert self.process.stdout is not None
        try:
            found = pickle.load(self.process.stdout)
        except Exception:  # whatever it is, what comes next out of this pipe is no whole answer
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
        except (OSError, ValueError):  # what was not told yet cannot be told any more
            self.process.wait()


class Dealt(Generic[_Question, _Answer]):
    """Questions of one kind for two processes: who is free takes the next. What fails in the other is answered here."""

    def __init__(
        self, work: Callable[[_Question], _Answer], questions: Sequence[_Question], beside: Beside | None
    ) -> None:
        """Has the second process, where there is one, begin at the end. `answers` works from the beginning on."""
        self._work = work
        self._questions = questions
        self._left = deque(range(len(questions)))
        self._found: dict[int, _Answer] = {}
        self._dealing: Thread | None = None
        if beside is not None:
            self._dealing = Thread(target=self._deal, args=(beside,), daemon=True)
            self._dealing.start()

    def _deal(self, beside: Beside) -> None:
        answer: _Answer | None = None
        while (number := self._taken(self._left.pop)) is not None:
            with suppress(Exception):
                beside.ask(self._work, self._questions[number])
                answer = beside.answer()
            if answer is None:
                return  # `answers` finds that it is missing
            self._found[number], answer = answer, None

    @staticmethod
    def _taken(take: Callable[[], int]) -> int | None:
        """Return the next question's number; None once all are taken."""
        try:
            return take()
        except IndexError:
            return None

    def answers(self, told: Callable[[int], None] = lambda done: None) -> list[_Answer]:
        """Return all answers in the order of their questions. `told` takes how many there are before each made here."""
        while (number := self._taken(self._left.popleft)) is not None:
            told(len(self._found))
            self._found[number] = self._work(self._questions[number])
        if self._dealing is not None:
            self._dealing.join()
        for number, question in enumerate(self._questions):
            if number not in self._found:
                self._found[number] = self._work(question)
        return [self._found[number] for number in range(len(self._questions))]


WORTH_STARTING = 5
"""Cases: a report on fewer is made before a second process has imported what it reads and draws with."""
_OF_A_REPORT = (
    "ddpbench.analysis.read.reading",
    "ddpbench.report.draw.painter",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "ddpbench.report.page",
)
"""Imported by the second process, in the order of their use: the last has all that paints."""


def for_report(cases: int) -> Beside | None:
    """Return a process for a report on so many cases, planned or measured; None where it is not worth one.

    Call it before pandas is imported here: that takes as long as it takes there.
    """
    return Beside(*_OF_A_REPORT) if cases >= WORTH_STARTING and second_core() else None


def second_core() -> bool:
    """Return whether there is a core for a second process."""
    return len(os.sched_getaffinity(0)) > 1


def serve(questions: BinaryIO, answers: BinaryIO, modules: list[str]) -> None:
    """Answers one question after another, until their end. What fails ends the process."""
    gc.disable()  # nothing of what is asked for is garbage before it is answered
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
    # What modules print must not get among the answers.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, out, sys.argv[1:])
