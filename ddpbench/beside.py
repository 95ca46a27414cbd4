"""One module's work done by a second process beside this one: a report of a large run has work for two cores.

The module is run as `python -m MODULE` and calls `serve`; what is asked comes in pickled and the answer goes out so.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any


def child_environment(*more: str) -> dict[str, str]:
    """This process's environment for a child that runs a module of this package: its own, wherever it is started.

    The package's folder comes first in PYTHONPATH, then what the user gave, then `more`; `python -P` leaves out the
    working directory, which may hold another.
    """
    given = os.environ.get("PYTHONPATH", "")
    own = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([own, *([given] if given else []), *more])}


class Beside(AbstractContextManager["Beside"]):
    """A second process. It is asked once; where it cannot answer, for whatever reason, the answer is None."""

    def __init__(self, module: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )

    def ask(self, question: Any) -> None:
        """Hands the question over and returns; `answer` waits."""
        assert self.process.stdin is not None
        try:
            pickle.dump(question, self.process.stdin)
            self.process.stdin.flush()
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            self.process.kill()  # it has ended, or cannot be told

    def answer(self) -> Any:
        """What it made of the question, or None."""
        told, _ = self.process.communicate()
        return pickle.loads(told) if self.process.returncode == 0 else None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdout is not None
        if not self.process.stdout.closed:  # it was not heard to its end
            self.process.kill()
            self.process.communicate()


def second_core() -> bool:
    """Whether there is a core for a second process."""
    return len(os.sched_getaffinity(0)) > 1


def serve(work: Callable[[Any], Any]) -> None:
    """Answers the one question that comes in; the end of the input without one ends it too."""
    try:
        question = pickle.load(sys.stdin.buffer)
    except EOFError:
        return
    pickle.dump(work(question), sys.stdout.buffer)
