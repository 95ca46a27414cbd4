"""Record a step's spans and transfers while it runs, and turn them into records afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack, cast

from ddpbench.measure.clock import Clock, Mark
from ddpbench.records import CommRecord, StepRecord
from ddpbench.records.operations import operation_of


class TransferFacts(TypedDict, total=False):
    """Optional facts about a transfer."""

    sent: int | None
    """Bytes that the rank passed to the network for this transfer, if counted."""
    ranks: int | None
    """The number of ranks that take part, if not all do."""
    message: int | None
    """Number by which two ranks identify an exchange that may fall in differently numbered steps of theirs."""
    begun: Mark
    """The moment at which a rank that queues transfers began this one."""
    root: int | None
    """The root rank of a gather, scatter or broadcast."""


class Recorder(Protocol):
    """The interface by which strategies and the training loop record the parts of a step."""

    @property
    def active(self) -> bool:
        """Return whether anything is recorded."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the time of the enclosed work under this name, such as one of `ddpbench.records.COMPUTE_SPANS`.

        A `synchronize` span interrupts the span around it, since a blocked rank does no work.
        """

    def mark(self) -> Mark:
        """Return this moment, for `add_span` and `add_transfer`."""

    def add_span(self, name: str, start: Mark, end: Mark) -> None:
        """Record a span whose start and end are known."""

    def add_transfer(
        self,
        *,
        bucket: int,
        op: str,
        size: int,
        start: Mark,
        end: Mark,
        **known: Unpack[TransferFacts],
    ) -> None:
        """Record this rank's part in one transfer of `size` bytes, from the call to its result.

        May be called from a thread other than the step's.
        """

    def add_later(self, note: Callable[[], None]) -> None:
        """Call `note` when the step's records are requested; it can then add spans and transfers to this step."""


class _Nothing:
    """The context manager of a span that is not recorded.

    Its methods are C functions: within a step, a Python call takes about 1 µs, ten times as long as in a tight loop.
    """

    __slots__ = ()
    __enter__: Any = "".format
    __exit__: Any = "".format


_NOTHING = cast("AbstractContextManager[None]", _Nothing())


class NullRecorder:
    """A recorder that records nothing, for timed steps."""

    active = False

    def span(self, name: str) -> AbstractContextManager[None]:
        return _NOTHING

    def mark(self) -> Mark:
        return None

    def add_span(self, name: str, start: Mark, end: Mark) -> None:
        pass

    def add_transfer(
        self,
        *,
        bucket: int,
        op: str,
        size: int,
        start: Mark,
        end: Mark,
        **known: Unpack[TransferFacts],
    ) -> None:
        pass

    def add_later(self, note: Callable[[], None]) -> None:
        pass


_FACTS = frozenset(TransferFacts.__annotations__)


@dataclass(slots=True)
class _Step:
    number: int
    start: Mark
    end: Mark


class StepRecorder:
    """Collects the spans and transfers of the steps between `begin_step` and `end_step`."""

    active = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.mark = clock.mark
        self._steps: list[_Step] = []
        self._spans: list[tuple[int, str, Mark, Mark]] = []
        self._transfers: list[tuple[tuple[int, int, str, int], Mark, Mark, TransferFacts]] = []
        """Each transfer's step, bucket, operation and bytes, its start and end, and its optional facts."""
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._step = -1

    def begin_step(self, number: int) -> None:
        """Begin step `number`, to which all spans and transfers recorded from now on belong."""
        self._step = number
        self._steps.append(_Step(number, self._clock.mark(), None))

    def end_step(self) -> None:
        """End the step begun last."""
        self._steps[-1].end = self._clock.mark()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = self._clock.mark()
        yield
        self._spans.append((self._step, name, start, self._clock.mark()))

    def add_span(self, name: str, start: Mark, end: Mark) -> None:
        self._spans.append((self._step, name, start, end))

    def add_transfer(
        self,
        *,
        bucket: int,
        op: str,
        size: int,
        start: Mark,
        end: Mark,
        **known: Unpack[TransferFacts],
    ) -> None:
        # Nothing is computed here, since that would take the step's time.
        self._transfers.append(((self._step, bucket, op, size), start, end, known))

    def add_later(self, note: Callable[[], None]) -> None:
        self._later.append((self._step, note))

    def forget(self) -> None:
        """Drop all notes so far, such as those of a warm-up."""
        self._steps, self._spans, self._transfers, self._later = [], [], [], []

    def records(self) -> list[StepRecord | CommRecord]:
        """Return the steps' records, each followed by its transfers, and forget them. Waits for the device.

        Raises:
            ValueError: the `op` of a transfer is unknown, so it is not known when its data are on their way.
            TypeError: a transfer was noted with a field that transfers do not have.
        """
        later, self._later = self._later, []
        for number, note in later:
            self._step = number
            note()
        if other := {name for *_, known in self._transfers for name in known} - _FACTS:
            raise TypeError(f"add_transfer() got an unexpected keyword argument {min(other)!r}")
        ops = {str(op) for (_, _, op, _), *_ in self._transfers}
        if unknown := sorted(op for op in ops if operation_of(op) is None):
            raise ValueError(
                f"unknown operation {', '.join(unknown)!r} of a transfer: add a data flow to its name, such as "
                f"{f'{unknown[0]}/together'!r} (ddpbench/records/operations.py lists the data flows)"
            )
        marks = [mark for step in self._steps for mark in (step.start, step.end)]
        marks += [mark for _, _, start, end in self._spans for mark in (start, end)]
        for _, start, end, known in self._transfers:
            begun = known.get("begun")
            marks += [start, end] if begun is None else [start, begun, end]
        times = iter(self._clock.resolve(marks))
        steps = [(step.number, next(times), next(times)) for step in self._steps]
        spans = [(number, (name, next(times), next(times))) for number, name, _, _ in self._spans]
        transfers = [
            CommRecord(
                step=step,
                bucket=bucket,
                op=op,
                bytes=size,
                sent_bytes=known.get("sent"),
                ranks=known.get("ranks"),
                message=known.get("message"),
                root=known.get("root"),
                start_ns=next(times),
                begun_ns=None if known.get("begun") is None else next(times),
                end_ns=next(times),
            )
            for (step, bucket, op, size), _, _, known in self._transfers
        ]
        spans_of: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        for number, span in spans:
            spans_of[number].append(span)
        sent_in: dict[int, list[CommRecord]] = defaultdict(list)
        for transfer in transfers:
            sent_in[transfer.step].append(transfer)
        records: list[StepRecord | CommRecord] = []
        for number, start_ns, end_ns in steps:
            own = interrupted(spans_of[number])
            records.append(StepRecord(step=number, start_ns=start_ns, end_ns=end_ns, spans=tuple(own)))
            sent = sent_in[number]
            sent.sort(key=lambda transfer: (transfer.start_ns, transfer.bucket))
            records += sent
        self.forget()
        return records


def interrupted(spans: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the spans in the order of their starts, split where a `synchronize` span within them blocked the rank."""
    blocked = sorted((start, end) for name, start, end in spans if name == "synchronize")
    pieces: list[tuple[str, int, int]] = []
    for name, start, end in spans:
        at = start
        for begin, until in blocked if name != "synchronize" else ():
            if at <= begin and until <= end:
                pieces += [(name, at, begin)] if begin > at else []
                at = until
        if at < end or at == start:
            pieces.append((name, at, end))
    return sorted(pieces, key=lambda span: span[1])
