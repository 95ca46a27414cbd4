"""Helper processes answer one question after another; if one cannot, the answer is None."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from threading import Event

import pytest

from ddpbench.helper_process import NOBODY, Dealt, Helper, Others, start_others


def test_it_answers_one_question_after_another() -> None:
    with Helper("fractions", "decimal") as helper:
        for question in (4.0, 9.0):
            helper.ask(math.sqrt, question)
            assert helper.answer() == math.sqrt(question)
        helper.ask(os.getpid.__class__, helper)  # no pickle
        assert helper.answer() is None


def test_a_question_larger_than_a_pipe_does_not_stop_the_one_who_asks() -> None:
    with Helper() as helper:
        helper.ask(len, b"x" * 10_000_000)
        assert helper.answer() == 10_000_000


def test_what_a_module_prints_is_no_answer() -> None:
    with Helper() as helper:
        helper.ask(print, "words")
        assert helper.answer() is None  # what print returns
        helper.ask(math.sqrt, 16.0)
        assert helper.answer() == 4.0


def test_what_fails_or_is_not_there_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with Helper() as helper:
        helper.ask(math.sqrt, -1.0)
        assert helper.answer() is None
        helper.ask(math.sqrt, 1.0)
        assert helper.answer() is None
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Helper() as helper:
        helper.ask(len, b"x" * 10_000_000)
        assert helper.answer() is None


def test_an_answer_that_cannot_be_read_ends_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for the answer to the next question."""

    def fails(_: object) -> None:
        raise MemoryError

    with Helper() as helper:
        helper.ask(math.sqrt, 4.0)
        with monkeypatch.context() as patch:
            patch.setattr("pickle.load", fails)
            assert helper.answer() is None
        assert helper.process.wait(60) != 0
        helper.ask(math.sqrt, 9.0)
        assert helper.answer() is None


class Stand:
    """A second process, run in this one, that answers a limited number of questions."""

    def __init__(self, able: int, began: Event | None = None) -> None:
        self.able, self.began = able, began
        self.asked: list[float] = []
        self.was_asked = Event()

    def ask(self, work: Callable[[float], float], question: float) -> None:
        self.asked.append(question)
        self.was_asked.set()

    def answer(self) -> float | None:
        if self.began is not None:
            self.began.wait(60)
        if len(self.asked) > self.able:
            return None
        return math.sqrt(self.asked[-1])


@pytest.mark.parametrize("able", [0, 1, 3, 99])
def test_who_is_free_takes_the_next_question(able: int) -> None:
    stand = Stand(able)
    counts: list[int] = []
    dealt = Dealt(math.sqrt, [1.0, 4.0, 9.0, 16.0], Others(stand))  # type: ignore[arg-type]
    dealt._dealing[0].join(60)  # while this process does other work
    assert dealt.answers(counts.append) == [1.0, 2.0, 3.0, 4.0]
    assert stand.asked == [1.0, 4.0, 9.0, 16.0][: able + 1]
    assert counts == list(range(min(able, 4), 3 if able < 4 else 0))


def test_three_others_share_what_there_is() -> None:
    questions = [float(number * number) for number in range(40)]
    stands = [Stand(2), Stand(0), Stand(99)]
    dealt = Dealt(math.sqrt, questions, Others(*stands))  # type: ignore[arg-type]
    for thread in dealt._dealing:
        thread.join(60)
    assert dealt.answers() == [float(number) for number in range(40)]
    assert sorted(one for stand in stands for one in stand.asked) == questions  # each was asked once


def test_there_are_as_many_as_further_cores_up_to_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, count in [(1, 0), (2, 1), (3, 2), (64, 3)]:
        monkeypatch.setattr("ddpbench.helper_process.further_cores", lambda cores=cores: cores - 1)
        with start_others() as others:
            assert len(others.processes) == count
            assert others.first in others.processes or not count
        assert all(one.process.poll() is not None for one in others.processes)


def test_the_other_works_on_one_while_this_answers_the_rest() -> None:
    began = Event()
    stand = Stand(99, began)

    def work(question: float) -> float:
        assert stand.was_asked.wait(60)
        if question == 16.0:
            began.set()
        return math.sqrt(question)

    dealt = Dealt(work, [1.0, 4.0, 9.0, 16.0], Others(stand))  # type: ignore[arg-type]
    assert dealt.answers() == [1.0, 2.0, 3.0, 4.0]
    assert stand.asked == [1.0]


def test_a_failure_here_is_one_of_this_process_whatever_its_kind() -> None:
    def fails(question: float) -> float:
        raise IndexError(question)

    with pytest.raises(IndexError, match=r"1\.0"):
        Dealt(fails, [1.0, 4.0], NOBODY).answers()


def test_processes_share_many_questions() -> None:
    with Others(Helper("math"), Helper()) as others:
        questions = [float(number) for number in range(500)]
        assert Dealt(math.sqrt, questions, others).answers() == [math.sqrt(one) for one in questions]
        assert Dealt(math.sqrt, [], others).answers() == []
        helper = others.processes[1]
        helper.ask(math.sqrt, 4.0)
        assert helper.answer() == 2.0
