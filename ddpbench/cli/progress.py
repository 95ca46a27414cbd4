"""The progress of a sweep: on a terminal a bar with the time left, elsewhere plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from ddpbench.cli.lines import wrapped
from ddpbench.launch.listener import Listener
from ddpbench.launch.outlook import Outlook
from ddpbench.launch.plan import Plan
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.heartbeat import Pulse
from ddpbench.runtime.estimate import about
from ddpbench.spec import PlannedCase
from ddpbench.spec.settings import MOST_ROUNDS
from ddpbench.text_safety import clean
from ddpbench.units import format_about, format_at_most, format_number, format_seconds


@contextmanager
def listening(console: Console, *, after_s: float = 0.0) -> Iterator[Listener]:
    """Yield a listener for the sweep, which draws a bar on a terminal and otherwise prints lines.

    `after_s` is the expected time (s) from the last launch to the command's end.
    """
    if console.is_terminal:
        with BarListener(console, after_s=after_s) as bar:
            yield bar
    else:
        yield LineListener(console, after_s=after_s)


@contextmanager
def only_warnings(console: Console) -> Iterator[Listener]:
    """Yield a listener that prints warnings and nothing else."""
    yield _WarningListener(console)


class _WarningListener(Listener):
    def __init__(self, console: Console) -> None:
        self._console = console

    def warn(self, text: str) -> None:
        self._console.print(clean(f"warning: {text}"), markup=False, soft_wrap=True)


def _result(label: str, what: str, outcome: LaunchOutcome, rate: float | None) -> str:
    shown = f"{format_number(rate)} samples/s" if rate is not None else outcome.status
    error = f": {outcome.error}" if outcome.error else ""
    return f"{what}  {label}  {shown}{error}"


class LineListener(Listener):
    """Prints one line per launch."""

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, *, after_s: float = 0.0
    ) -> None:
        self._console = console
        self._clock = clock
        self._after_s = after_s
        self._what = ""
        self._running, self._done, self._total = False, 0, 0
        self._left_s, self._since = 0.0, clock()

    def _label(self, entry: PlannedCase) -> str:
        return self.names.full(entry.case)

    def _say(self, text: str) -> None:
        self._console.print(clean(text), markup=False, soft_wrap=True)

    def planned(self, plan: Plan, run: RunDir, done: int, estimate_s: float) -> None:
        super().planned(plan, run, done, estimate_s)
        resumed = f"launches done already: {done}; " if done else ""
        whole_s = round(estimate_s + self._after_s)
        self._say(f"{resumed}{about(plan.experiment.budget)} {format_seconds(whole_s)} to go")

    def looked_at(self, what: str) -> None:
        self._say(what)

    def launch_started(self, entry: PlannedCase, what: str, done: int, total: int, left_s: float) -> None:
        self._what = what
        self._running, self._done, self._total = True, done, total
        self._left_s, self._since = left_s, self._clock()

    def _ended(self) -> None:
        self._done += 1  # starts do not count, because several launches may run at once
        self._running = False

    def _left(self) -> str:
        """Return the expected time left as a phrase; empty below one second.

        A late launch does not shorten the time for the launches after it.
        """
        after = max(0, self._total - self._done - self._running)
        left_s = max(self._left_s - (self._clock() - self._since), self._left_s * after / (after + 1))
        left_s += self._after_s
        return f"{format_seconds(round(left_s))} left" if left_s >= 1 else ""

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        self._ended()
        left = self._left() if self._done < self._total else ""
        count = f"[{self._done}/{self._total}{f', {left}' if left else ''}]"
        self._say(f"{count} {_result(self._label(entry), self._what, outcome, samples_per_s)}")

    def round_ended(
        self,
        number: int,
        half_widths: dict[str, float | None],
        stop_reason: str,
        outlook: Outlook | None = None,
    ) -> None:
        self._say(_round_line(number, half_widths, stop_reason, outlook))

    def note(self, text: str) -> None:
        self._say(text)

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}")


def _round_line(
    number: int, half_widths: dict[str, float | None], stop_reason: str, outlook: Outlook | None
) -> str:
    known = [width for width in half_widths.values() if width is not None]
    widest = f"widest interval ±{format_at_most(max(known))}" if known else "no intervals yet"
    if outlook is not None and stop_reason != "target reached":
        widest += _expected_words(outlook, ended=bool(stop_reason))
    then = f"stopping: {stop_reason}" if stop_reason else "another round"
    return f"after round {number + 1}: {widest}; {then}"


def _expected_words(outlook: Outlook, *, ended: bool) -> str:
    target = f"±{100 * outlook.target:g} %"
    if outlook.reaches_target and outlook.target_s is not None:
        return f"; {target} expected at about {format_about(outlook.target_s)}"
    end = format_seconds(outlook.total_s) if outlook.ends_by_time else f"{outlook.end_rounds} rounds"
    at_end = "" if ended else f", about ±{format_at_most(outlook.at_end)} at the end of {end}"
    needed = (
        f"over {MOST_ROUNDS:,} rounds"
        if outlook.target_s is None
        else f"about {format_about(outlook.target_s)}"
    )
    return f"{at_end}; {target} would take {needed}"


class BarListener(LineListener):
    """Shows a bar with the running case, its throughput so far and the time left. Failures are printed above."""

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, *, after_s: float = 0.0
    ) -> None:
        super().__init__(console, clock, after_s=after_s)
        # Redrawn at most once per second, because the ranks may need these cores.
        self._progress = Progress(
            TextColumn("{task.fields[what]:<8}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=14, table_column=Column(min_width=14)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]:>15}", table_column=Column(no_wrap=True)),
            # On a narrow terminal, only the end of this column is cut off.
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            expand=True,
            auto_refresh=False,
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("", total=None, what="", left="")
        self._drawn = 0.0

    def __enter__(self) -> BarListener:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _say(self, text: str) -> None:
        for line in wrapped(text, self._console.width, indent=2):
            super()._say(line)

    def _draw(self, *, description: str | None = None, **changes: object) -> None:
        if description is not None:
            changes["description"] = escape(clean(description))
        self._progress.update(self._task, left=self._left(), **changes)  # type: ignore[arg-type]
        self._progress.refresh()
        self._drawn = self._clock()

    def planned(self, plan: Plan, run: RunDir, done: int, estimate_s: float) -> None:
        super().planned(plan, run, done, estimate_s)
        self._left_s, self._since = estimate_s, self._clock()

    def preparing(self, what: str) -> None:
        self._draw(description=what)

    def launch_started(self, entry: PlannedCase, what: str, done: int, total: int, left_s: float) -> None:
        super().launch_started(entry, what, done, total, left_s)
        self._draw(what=what, completed=done, total=total, description=self._label(entry))

    def pulse(self, entry: PlannedCase, pulse: Pulse, samples_per_s: float | None) -> None:
        if self._clock() - self._drawn < 1.0:
            return
        rate = f"{format_number(samples_per_s)} samples/s" if samples_per_s else pulse.phase
        self._draw(description=f"{rate}  {self._label(entry)}")

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        self._ended()
        self._progress.update(self._task, completed=self._done)
        if outcome.status != "ok":
            self._say(_result(self._label(entry), self._what, outcome, samples_per_s))
