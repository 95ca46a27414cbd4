"""The contents of a recorder, with a fake clock."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ddpbench.measure.recorder import NullRecorder, StepRecorder
from ddpbench.records import CommRecord, StepRecord
from tests.fake_clock import FakeClock


def test_spans_and_transfers_belong_to_their_step() -> None:
    clock = FakeClock()
    recorder = StepRecorder(clock)
    for number in (3, 4):
        recorder.begin_step(number)
        with recorder.span("data"):
            clock.advance(5)
        start = recorder.mark()
        clock.advance(20)
        recorder.add_transfer(bucket=0, op="all_reduce", size=64, start=start, end=recorder.mark())
        recorder.add_span("backward", start, recorder.mark())
        recorder.end_step()
    assert recorder.records() == [
        StepRecord(step=3, start_ns=0, end_ns=25, spans=(("data", 0, 5), ("backward", 5, 25))),
        CommRecord(step=3, bucket=0, op="all_reduce", bytes=64, start_ns=5, end_ns=25),
        StepRecord(step=4, start_ns=25, end_ns=50, spans=(("data", 25, 30), ("backward", 30, 50))),
        CommRecord(step=4, bucket=0, op="all_reduce", bytes=64, start_ns=30, end_ns=50),
    ]
    assert recorder.records() == []


def test_a_transfer_from_a_queue_says_when_its_rank_turned_to_it() -> None:
    clock = FakeClock()
    recorder = StepRecorder(clock)
    recorder.begin_step(1)
    start = recorder.mark()
    clock.advance(5)
    begun = recorder.mark()
    clock.advance(7)
    recorder.add_transfer(bucket=0, op="ring", size=8, start=start, begun=begun, end=recorder.mark(), sent=6)
    recorder.add_transfer(bucket=1, op="gather", size=8, start=start, end=recorder.mark(), root=3)
    recorder.end_step()
    _, *transfers = recorder.records()
    assert transfers == [
        CommRecord(step=1, bucket=0, op="ring", bytes=8, start_ns=0, begun_ns=5, end_ns=12, sent_bytes=6),
        CommRecord(step=1, bucket=1, op="gather", bytes=8, start_ns=0, end_ns=12, root=3),
    ]


def test_what_is_noted_later_belongs_to_the_step_that_asked_for_it() -> None:
    clock = FakeClock()
    recorder = StepRecorder(clock)
    called: list[int] = []

    def note(number: int, start: int, end: int) -> None:
        called.append(number)
        recorder.add_span("forward", start, end)
        recorder.add_transfer(bucket=0, op="send", size=8, start=start, end=end)

    for number in (3, 4):
        recorder.begin_step(number)
        start = recorder.mark()
        clock.advance(5)
        recorder.add_later(partial(note, number, start, recorder.mark()))
        recorder.end_step()
    assert not called, "it would be in the step's time"
    expected: list[StepRecord | CommRecord] = []
    for number, start in ((3, 0), (4, 5)):
        expected += [
            StepRecord(step=number, start_ns=start, end_ns=start + 5, spans=(("forward", start, start + 5),)),
            CommRecord(step=number, bucket=0, op="send", bytes=8, start_ns=start, end_ns=start + 5),
        ]
    assert recorder.records() == expected
    assert called == [3, 4]
    recorder.add_later(partial(note, 5, 0, 5))
    recorder.forget()
    assert recorder.records() == []
    assert called == [3, 4]


def test_the_null_recorder_keeps_nothing_and_reads_no_clock() -> None:
    recorder = NullRecorder()
    with recorder.span("forward"):
        pass
    assert not recorder.active
    assert recorder.mark() is None


def test_what_fails_in_a_span_that_is_not_noted_fails() -> None:
    recorder = NullRecorder()
    with pytest.raises(ZeroDivisionError), recorder.span("forward"), recorder.span("data"):
        raise ZeroDivisionError


def test_what_a_rank_is_blocked_in_interrupts_the_span_around_it() -> None:
    clock = FakeClock()
    recorder = StepRecorder(clock)
    recorder.begin_step(0)
    with recorder.span("forward"):  # starts with a wait, and has another in it
        for computed in (7, 11):
            with recorder.span("synchronize"):
                clock.advance(5)
            clock.advance(computed)
    with recorder.span("backward"), recorder.span("synchronize"):  # nothing but a wait
        clock.advance(3)
    start = recorder.mark()
    clock.advance(2)
    recorder.add_span("optimizer", start, recorder.mark())
    with recorder.span("synchronize"):  # next to it, not within
        clock.advance(4)
    recorder.end_step()
    (step,) = recorder.records()
    assert isinstance(step, StepRecord)
    assert step.spans == (
        ("synchronize", 0, 5),
        ("forward", 5, 12),
        ("synchronize", 12, 17),
        ("forward", 17, 28),
        ("synchronize", 28, 31),
        ("optimizer", 31, 33),
        ("synchronize", 33, 37),
    )


def test_an_operation_without_an_entry_in_the_table_is_refused() -> None:
    recorder = StepRecorder(FakeClock())
    recorder.begin_step(1)
    recorder.add_transfer(bucket=0, op="gossip", size=8, start=recorder.mark(), end=recorder.mark())
    recorder.end_step()
    with pytest.raises(ValueError, match=r"'gossip'.*operations\.py"):
        recorder.records()


def test_what_is_forgotten_is_in_no_record() -> None:
    """Steps of a warm-up share a number: records of each would hold the spans of all, gigabytes for tiny steps."""
    clock = FakeClock()
    recorder = StepRecorder(clock)
    for number in (-1, -1, 0):
        if number == 0:
            recorder.forget()
        recorder.begin_step(number)
        with recorder.span("forward"):
            clock.advance(5)
        recorder.end_step()
    (step,) = recorder.records()
    assert isinstance(step, StepRecord)
    assert (step.step, len(step.spans)) == (0, 1)


def test_what_is_no_fact_of_a_transfer_is_refused() -> None:
    """A user's own strategy may misspell one: it would be left out of the records."""
    recorder = StepRecorder(FakeClock())
    recorder.begin_step(0)
    mark = recorder.mark()
    misspelt: dict[str, Any] = {"sents": 5}
    recorder.add_transfer(bucket=0, op="all_reduce", size=8, start=mark, end=mark, **misspelt)
    recorder.end_step()
    with pytest.raises(TypeError, match="unexpected keyword argument 'sents'"):
        recorder.records()
