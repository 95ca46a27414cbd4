"""A framework's loop run half a step at a time: the loop here is a few lines, with each fault that it may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("greenlet", reason="needs greenlet")
from ddpbench.strategies.frameworks.inverted import Inverted, LoopEndedError


def loop_of(done: list[str], ends_after: int | None = None) -> Inverted:
    """A loop that notes what it does."""

    def run(loop: Inverted) -> None:
        done.append("begin")
        batches: Iterator[Any] = loop.batches()
        for number, batch in enumerate(batches):
            if number == ends_after:
                return
            done.append(f"gradients of {batch}")
            loop.gradients_are_there(batch * 10)
            done.append(f"update of {batch}")
        done.append("end")

    return Inverted("Looper", run)


def test_halves_of_steps_come_when_they_are_asked_for() -> None:
    done: list[str] = []
    loop = loop_of(done)
    assert done == []
    assert loop.gradients_of(1) == 10
    assert done == ["begin", "gradients of 1"]
    loop.update()
    assert loop.gradients_of(2) == 20
    loop.update()
    loop.close()
    assert done == ["begin", "gradients of 1", "update of 1", "gradients of 2", "update of 2", "end"]
    loop.close()
    with pytest.raises(LoopEndedError):
        loop.update()


def test_it_may_be_closed_before_it_began_and_between_halves() -> None:
    done: list[str] = []
    loop_of(done).close()
    assert done == []
    loop = loop_of(done)
    loop.gradients_of(1)
    loop.close()
    assert done[-1] == "end"


def test_a_loop_out_of_turn_is_an_error() -> None:
    loop = loop_of([], ends_after=1)
    loop.gradients_of(1)
    with pytest.raises(LoopEndedError, match="waits for its update"):
        loop.gradients_of(2)
    loop.update()
    with pytest.raises(LoopEndedError, match="ended by itself"):
        loop.gradients_of(2)

    def skips(loop: Inverted) -> None:
        for batch in loop.batches():
            assert batch

    with pytest.raises(LoopEndedError, match="it must make one update per batch"):
        Inverted("Looper", skips).gradients_of(1)


def test_what_is_raised_in_the_loop_comes_out_of_it() -> None:
    def fails(loop: Inverted) -> None:
        next(loop.batches())
        raise ZeroDivisionError("in the loop")

    with pytest.raises(ZeroDivisionError, match="in the loop"):
        Inverted("Looper", fails).gradients_of(1)
