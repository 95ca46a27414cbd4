"""A second process answers one question after another; where it cannot, the answer is None."""

from __future__ import annotations

import math
import os
import sys

import pytest

from ddpbench.helper_process import Beside


def test_it_answers_one_question_after_another() -> None:
    with Beside("fractions", "decimal") as beside:
        for question in (4.0, 9.0):
            beside.ask(math.sqrt, question)
            assert beside.answer() == math.sqrt(question)
        beside.ask(os.getpid.__class__, beside)  # no pickle
        assert beside.answer() is None


def test_a_question_larger_than_a_pipe_does_not_stop_the_one_who_asks() -> None:
    with Beside() as beside:
        beside.ask(len, b"x" * 10_000_000)
        assert beside.answer() == 10_000_000


def test_what_a_module_prints_is_no_answer() -> None:
    with Beside() as beside:
        beside.ask(print, "words")
        assert beside.answer() is None  # what print returns
        beside.ask(math.sqrt, 16.0)
        assert beside.answer() == 4.0


def test_what_fails_or_is_not_there_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with Beside() as beside:
        beside.ask(math.sqrt, -1.0)
        assert beside.answer() is None
        beside.ask(math.sqrt, 1.0)
        assert beside.answer() is None
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Beside() as beside:
        beside.ask(len, b"x" * 10_000_000)
        assert beside.answer() is None
