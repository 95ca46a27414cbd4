"""Both sides of a comparison end within seconds of Ctrl-C, even a stopped one or one that ignores signals."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from ddpbench.errors import SideError
from ddpbench.launch.interleave import turns
from ddpbench.launch.interleave.agreement import SidePlan
from ddpbench.launch.interleave.sides import Placed, SideSpec
from ddpbench.launch.interleave.turns import Turns
from ddpbench.side_code import SideCode

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
WITH_A_CHILD = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-c', {DEAF!r}], stdout=subprocess.PIPE); "
    "child.stdout.readline(); import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(child.pid, flush=True); child.wait()"
)


def side(code: str) -> tuple[turns._Process, str]:
    """Return a side whose process runs this code, and the first line that it prints."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    found = turns._Process.__new__(turns._Process)
    found._process = subprocess.Popen(
        [sys.executable, "-c", code], text=True, start_new_session=True, **pipes
    )  # type: ignore[call-overload]
    assert found._process.stdout is not None
    line = found._process.stdout.readline()
    found._heard = queue.SimpleQueue()
    found._last_words, found._turnstile = [], None
    found._said = threading.Thread(target=found._listen)
    found._words = threading.Thread(target=found._read_errors)
    found._said.start()
    found._words.start()
    return found, line


def both(*processes: turns._Process) -> Turns:
    found = Turns.__new__(Turns)
    found._processes, found._turnstile = [*processes], None
    return found


PLANS = """
import json, sys
print("ready", flush=True)
print(json.dumps({"event": "planned", "cases": [], "budget": {}}), flush=True)
print(json.dumps({"event": "failed", "error": sys.stdin.readline()}), flush=True)
"""


@pytest.mark.parametrize("order", [[2, 0, 1], None])
def test_a_side_waits_for_the_order_of_its_cases(order: list[int] | None) -> None:
    process, _ = side(PLANS)
    process.plan, process._waits, process._kept, process._patience_s = None, False, None, 60.0
    process._placed = cast("Placed", SimpleNamespace(code=None, spec=SideSpec(name="new")))
    process.await_plan()
    assert process.plan == SidePlan(cases=(), skipped=(), budget={})
    process.begin(order)
    with pytest.raises(SideError) as error:
        process.await_ready(first=True)
    assert str(error.value) == f"new: begin {json.dumps(order)}\n"
    both(process).end()


def test_a_side_that_is_stopped_ends_by_the_signal_that_it_could_not_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_AT_ONCE_S", 60.0)  # far more than a process needs: none is killed
    one, _ = side(SLEEPS)
    other, _ = side(SLEEPS)
    for process in (one, other):
        process._process.send_signal(signal.SIGSTOP)
        while psutil.Process(process._process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
    both(one, other).end(at_once=True)
    assert [one._process.returncode, other._process.returncode] == [-signal.SIGTERM] * 2


def test_a_side_that_hears_no_signal_is_killed_with_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_AT_ONCE_S", 0.2)
    one, line = side(WITH_A_CHILD)
    child = psutil.Process(int(line))
    both(one).end(at_once=True)
    assert one._process.returncode == -signal.SIGKILL
    _, alive = psutil.wait_procs([child], timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def test_both_sides_share_the_seconds_that_an_interrupt_may_take() -> None:
    """5 s; the rest is for the command itself."""
    assert turns._AT_ONCE_S < 5.0


@pytest.mark.parametrize(("sent", "is_told"), [({"checks_modules": True}, False), ({}, True)])
def test_a_side_whose_older_version_checks_no_modules_is_said_to_be_one(
    sent: dict[str, bool], is_told: bool
) -> None:
    events: list[str] = []
    listener: Any = SimpleNamespace(event=events.append)
    process = turns._Process.__new__(turns._Process)
    process._heard, process._patience_s = queue.SimpleQueue(), 1.0
    process._listener, process.words = listener, "base (ref=old)"
    process._placed = cast("Placed", SimpleNamespace(code=SideCode(own="/own")))
    process.plan, process._waits, process._kept = None, False, None
    process._heard.put({"event": "ready", "cases": [0], "whole": {}, **sent})
    process.await_plan()  # which older versions do not describe
    assert process.plan is None
    process.begin(None)  # for which they do not wait
    assert process.await_ready(first=True)
    assert bool(events) is is_told
    assert all(text.startswith("base (ref=old): its ddpbench is older") for text in events)
