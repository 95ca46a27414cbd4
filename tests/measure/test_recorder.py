"""What a recorder keeps, with a fake clock."""

from __future__ import annotations

from ddpbench.measure.clock import FakeClock
from ddpbench.measure.recorder import NullRecorder, StepRecorder
from ddpbench.records import CommRecord, StepRecord


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


def test_the_null_recorder_keeps_nothing_and_reads_no_clock() -> None:
    recorder = NullRecorder()
    with recorder.span("forward"):
        pass
    assert not recorder.active
    assert recorder.mark() is None
