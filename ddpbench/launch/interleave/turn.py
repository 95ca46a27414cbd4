"""`python -m ddpbench.launch.interleave.turn`: one side's sweep, which runs a round on request.

The process reads `begin`, `go`, `go in turn` or `stop` from standard input, one per line. It writes lines of JSON to
standard output: its plan, what it is doing, when it is ready for a round, how each launch ended, and errors. It starts
nothing before `begin`. After `go in turn`, launches of both sides run at the same time, and wait between blocks at the
turnstile that the environment names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from ddpbench.command_line import carrying_out
from ddpbench.errors import DdpbenchError, RequestError
from ddpbench.inherited_signals import accept_signals
from ddpbench.launch.interleave.agreement import AGREES, BEGIN, plan_message
from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import make_plan, skip_reasons
from ddpbench.launch.sweep.preparation import Prepared, SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.launch.watch import whole_because
from ddpbench.records import LaunchOutcome
from ddpbench.records.heartbeat import Pulse
from ddpbench.runtime.turnstile import IN_TURN, TURNSTILE, WHOLE, Turn, TurnstileGoneError, turn_from
from ddpbench.side_code import OUTSIDE, shared_module
from ddpbench.spec import Budget, PlannedCase

_MESSAGES: list[TextIO] = []
"""The stream for messages, a copy of the original standard output; other output goes to standard error."""


def _tell(event: str, **more: Any) -> None:
    for stream in _MESSAGES:
        stream.write(json.dumps({"event": event, **more}) + "\n")
        stream.flush()


def _keep_messages_apart() -> None:
    _MESSAGES.append(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)


_PULSE_S = 5.0
"""Shortest time between two messages about a running launch, seconds."""


class _Telling(Listener):
    def __init__(self, turn: Turn | None) -> None:
        self._turn = turn
        self._pulsed = 0.0
        self._whole: set[str] = set()

    def preparing(self, what: str) -> None:
        _tell("doing", what=what)

    def launch_started(self, entry: PlannedCase, what: str, done: int, total: int, left_s: float) -> None:
        _tell("doing", what=f"launching {self.names.full(entry.case)} ({what})")

    def pulse(self, entry: PlannedCase, pulse: Pulse, samples_per_s: float | None) -> None:
        if time.monotonic() - self._pulsed > _PULSE_S:
            self._pulsed = time.monotonic()
            _tell("doing", what=f"launching {self.names.full(entry.case)}")

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        _tell(
            "launch",
            label=self.names.full(entry.case),
            status=outcome.status,
            error=outcome.error,
            samples_per_s=samples_per_s,
        )
        if outcome.status != "ok" and OUTSIDE in outcome.error:
            raise RequestError(outcome.error)
        asked = self._turn is not None and not self._turn.alone and not whole_because(entry.case)
        blocks = outcome.noise.in_turn or outcome.status != "ok" or outcome.purpose != "measure"
        if asked and not blocks and entry.case.case_id not in self._whole:
            self._whole.add(entry.case.case_id)
            self.warn(
                f"{self.names.full(entry.case)}: {WHOLE}, because the workload's loader has worker processes"
            )

    def warn(self, text: str) -> None:
        _tell("warning", text=text)


def _told_to_go(number: int, *, turn: Turn | None, cases: Sequence[PlannedCase]) -> bool:
    """Report a round as ready, with the cases that cannot alternate in blocks; return whether to run it.

    `cases` includes skipped ones, because the sides identify cases by position.
    """
    own = [(at, entry.case) for at, entry in enumerate(cases) if entry.skip_reason is None]
    whole = {at: why for at, case in own if (why := whole_because(case))}
    _tell(
        "ready",
        round=number,
        turnstile=turn is not None,
        cases=[at for at, _ in own],
        whole=whole,
        checks_modules=True,  # that all of them are the side's own
    )
    word = sys.stdin.readline().strip()
    if turn is not None:
        turn.alone = word != IN_TURN
    return word in ("go", IN_TURN)


def _in_agreed_order(cases: list[PlannedCase], budget: Budget) -> list[PlannedCase]:
    """Describe the plan, wait, and return the cases in the order that both sides use; none if the side is to end."""
    _tell("planned", **plan_message(cases, budget.model_dump(mode="json")))
    word = sys.stdin.readline().strip()
    if not word.startswith(BEGIN):
        return []
    order = json.loads(word.removeprefix(BEGIN))
    return cases if order is None else [cases[index] for index in order]


def _prepared(request: SweepRequest, *, agrees: bool) -> Prepared | None:
    """Plan the side's cases, in the order that both sides use if it `agrees`; None if the side is to end.

    Raises:
        RequestError: the request cannot be met, or no case can run.
    """
    prepared = prepare(request)
    if said := shared_module():
        raise RequestError(said)
    for note in prepared.notes:
        _tell("warning", text=note)
    own = [entry for entry in prepared.plan.cases if not entry.added_as_baseline]  # no speed-up is needed
    if all(entry.skip_reason is not None for entry in own):
        raise RequestError(f"no case of this experiment can run here\n{skip_reasons(own)}")
    if agrees and not (own := _in_agreed_order(own, prepared.experiment.budget)):
        return None
    return replace(prepared, plan=make_plan(prepared.experiment, own))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run one side's sweep, round by round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    accept_signals()
    signal.signal(signal.SIGTERM, _interrupt)
    _keep_messages_apart()
    _tell("doing", what="planning the experiment")
    turn, parent = None, os.getppid()
    agrees = os.environ.pop(AGREES, "") == "1"
    with contextlib.suppress(TurnstileGoneError):  # for example in a different file system
        turn = turn_from(TURNSTILE)
    try:
        request = SweepRequest(
            experiment=arguments.experiment, out=arguments.out, overrides=arguments.overrides
        )
        prepared = _prepared(request, agrees=agrees)
        if prepared is None:
            return
        sweep = Sweep(
            prepared,
            _Telling(turn),
            gate=lambda number: _told_to_go(number, turn=turn, cases=sweep.planned),
            turn=turn,
        )
        sweep.run()
        _tell("done")
    except (DdpbenchError, OSError) as error:
        _tell("failed", error=shared_module() or str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if turn is not None:
            turn.close()
            if os.getppid() != parent:  # the parent was killed and has not removed the turnstile
                turn.remove()


if __name__ == "__main__":
    with carrying_out("python", "-m", "ddpbench.launch.interleave.turn", words=sys.argv[1:]):
        main()
