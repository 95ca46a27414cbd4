"""The fixture `ddp_benchmark`, by which users' own test suites measure training steps for pytest-benchmark.

    def test_step(ddp_benchmark):
        ddp_benchmark(workload="train.py:Measured", strategy="ddp", world_size=2, bucket_cap_mb=25)

Each round is a launch of fresh ranks, whose mean step time pytest-benchmark gets as if it had timed it. The case's
columns are in `extra_info`. `--ddpbench-gate 3% --ddpbench-baseline BASELINE` fails a test that is shown to be slower
than its saved result, or than other code measured in alternation. Importing this file imports neither torch nor pandas.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

if TYPE_CHECKING:
    from ddpbench.analysis.regression import Change, Side
    from ddpbench.analysis.regression.gate import Gated
    from ddpbench.launch.interleave.sides import SideSpec
    from ddpbench.launch.listener import Listener
    from ddpbench.launch.sweep.servers import LastingServers
    from ddpbench.records import RunDir

ROUNDS, MEASURED_S, TOTAL = 5, 0.6, "3 min"
_NOT_MEASURED = "ddpbench: not measured"
_UNDECIDED = "ddpbench: undecided by the gate"
_LOG_BYTES = 1 << 12
"""Most bytes of a log to show below a failed test."""
_COMPARE = re.compile(r"ddpbench compare --interleave\b")
_FLAG = re.compile(r"(?<![\w-])--(base|gate|total|rounds|measured|turns|drift)(?![\w-])")
_ROUNDS = re.compile(r"set budget\.rounds_min, or a test's rounds, to ")
_ONE_VALUE = ("rounds", "measured", "gate", "total", "turns", "drift")
"""Options that may be given only once, unlike `--ddpbench-baseline`."""
_GIVEN_BY_NAME = frozenset({"options", "env"})
_AXIS = re.compile(r"several values are an axis: axes\.\S+")


def in_pytest(text: str) -> str:
    """Return a message with the flags of ddpbench's command line replaced by the plugin's equivalent options."""
    text = _ROUNDS.sub("--ddpbench-rounds=", _COMPARE.sub("--ddpbench-baseline=ref=COMMIT", text))
    text = _AXIS.sub("for several values parametrize the test", text)
    return _FLAG.sub(lambda flag: f"--ddpbench-{'baseline' if flag[1] == 'base' else flag[1]}", text)


def _within_limits(name: str) -> Callable[[str], float]:
    """Return a parser that refuses numbers outside the range `name` of `spec.limits`."""

    def read(text: str) -> float:
        from ddpbench.spec import limits

        allowed: limits.Range = getattr(limits, name)
        try:
            return allowed.parsed(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `--ddpbench-...` options to pytest."""
    group = parser.getgroup("ddpbench", "training steps of real ranks (ddp_benchmark)")
    group.addoption(
        "--ddpbench-rounds",
        type=_within_limits("ROUNDS"),
        default=ROUNDS,
        metavar="N",
        help=f"launches of fresh ranks for each test (default: {ROUNDS})",
    )
    group.addoption(
        "--ddpbench-measured",
        type=_within_limits("MEASURED_S"),
        default=MEASURED_S,
        metavar="SECONDS",
        help=f"timed steps of each launch (default: {MEASURED_S})",
    )
    group.addoption(
        "--ddpbench-gate",
        metavar="PERCENT",
        help="fail a test whose whole interval is slower than --ddpbench-baseline by more than this, such "
        "as 3%%",
    )
    group.addoption(
        "--ddpbench-baseline",
        action="append",
        default=[],
        metavar="BASELINE",
        help="baseline that pytest-benchmark has saved, as a file or a name such as 0001, or a run directory; "
        "several are several sessions, which makes intervals narrower. Or a side to measure now, "
        "interleaved with this code: a checkout's folder, ref=COMMIT, path=FOLDER, python=INTERPRETER",
    )
    group.addoption(
        "--ddpbench-total",
        metavar="TIME",
        help=f"time limit of each interleaved test (default: '{TOTAL}')",
    )
    group.addoption(
        "--ddpbench-turns",
        choices=("blocks", "launches"),
        help="what is interleaved: blocks of steps, with launches of both sides in memory, or launches "
        "(default: blocks)",
    )
    group.addoption(
        "--ddpbench-drift",
        metavar="PERCENT",
        help="standard deviation of step times between sessions on this machine (default: 4%%, or more where launches "
        "scatter more)",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gate:
    limit: float
    drift: float | None
    total_s: float
    saved: tuple[Side, ...] = ()
    in_turn: tuple[SideSpec, SideSpec] | None = None

    @property
    def words(self) -> str:
        if self.in_turn is not None:
            base, new = self.in_turn
            return f"{base.words} against {new.words}, interleaved"
        return f"against {', '.join(side.name for side in self.saved)}"


@dataclass
class _Bench:
    """State that a session's tests share; also the listener of comparisons."""

    folder: Path
    servers: LastingServers
    run_id: str = field(default_factory=lambda: secrets.token_hex(6))
    """The id of all runs of the session, which lets two tests of the same case share its proof."""
    runs: list[RunDir] = field(default_factory=list)
    count: int = 0
    gated: list[Gated] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences on the measurements, each once, as keys in order."""
    shows: bool = False
    """True if progress is to be printed, because pytest does not capture output (`-s`)."""

    def begun(self, out: Path) -> None:
        """Do nothing, because the directory is temporary."""

    def event(self, text: str) -> None:
        self.notes[text] = None

    def round_made(self, number: int, left_s: float) -> None:
        left = f", at most {_seconds(left_s)} left" if round(left_s) > 0 else ", no time left"
        self.show(f"round {number} of both sides{left}")

    def show(self, text: str) -> None:
        if self.shows:
            from ddpbench.text_safety import clean

            print(clean(f"ddpbench: {text}"), flush=True)  # noqa: T201


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """The measurement that a test asks for: `[base]` settings, launches, timed seconds per launch."""

    settings: dict[str, Any]
    rounds: int
    measured_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    side: Side
    row: dict[Any, Any]
    change: Change | None = None
    unlike: str = ""
    """Why the other code could not be measured; empty if it was measured, or if no interleaved comparison was
    requested.
    """

    @property
    def steps_s(self) -> list[float]:
        """Return the mean step time of each successful launch, seconds."""
        return [timing.step_s for run in self.side.cases for timing in run.timings]


_Key: Any = getattr(pytest, "StashKey", object)
"""`pytest.StashKey`, or a stand-in for pytest before 7, which lacks it but loads this file in every suite."""
_GATE: pytest.StashKey[_Gate] = _Key()
_BENCH: pytest.StashKey[_Bench] = _Key()
_STACK: pytest.StashKey[contextlib.ExitStack] = _Key()
_WITH_BENCHMARK: pytest.StashKey[bool] = _Key()
"""True for a test that also asks for pytest-benchmark's own fixture; not set for other tests."""


def _stash(config: pytest.Config) -> pytest.Stash:
    """Return pytest's stash; an empty dictionary before pytest 7."""
    return cast("pytest.Stash", getattr(config, "stash", {}))


def _too_old() -> str:
    """Say why this plugin cannot measure with the installed pytest; empty if it can."""
    if _Key is not object:
        return ""
    return (
        f"needs pytest 8.3 or newer, but {pytest.__version__} is installed; run: pip install "
        '"ddpbench[pytest]"'
    )


class MeasuredTimer:
    """A timer for pytest-benchmark whose time advances only when `advance` is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the time forward by the seconds that were measured."""
        self.now += seconds


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make pytest-benchmark's --benchmark-only and --benchmark-skip count a test with `ddp_benchmark` as a benchmark.

    Its fixture's name is added last to the test's, because `ddp_benchmark` must set its timer first.
    """
    names = list(getattr(item, "fixturenames", ()))
    if _too_old() or not _has_pytest_benchmark(item.config) or "ddp_benchmark" not in names:
        return
    if "benchmark" in names:
        item.stash[_WITH_BENCHMARK] = True
    else:
        item.fixturenames = [*names, "benchmark"]  # type: ignore[attr-defined]


def _has_pytest_benchmark(config: pytest.Config) -> bool:
    # Ask for an option, because the plugin's name depends on how it was loaded.
    return config.getoption("benchmark_disable", None) is not None


def _bench(config: pytest.Config) -> _Bench:
    from ddpbench.guarded_folder import GuardedFolder
    from ddpbench.launch.sweep.servers import LastingServers

    if _BENCH not in _stash(config):
        stack = _stash(config)[_STACK] = contextlib.ExitStack()
        folder = stack.enter_context(GuardedFolder("ddpbench-pytest-"))
        servers = LastingServers(folder / "server.log", log_stays=False)
        stack.enter_context(servers)
        _stash(config)[_BENCH] = _Bench(
            folder, servers, shows=config.getoption("capture", "") in ("no", "tee-sys")
        )
    return _stash(config)[_BENCH]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the fork servers, and remove the folder with the measurements."""
    stack = _stash(config).get(_STACK, None)
    if stack is not None:
        stack.close()


def _fail(message: str) -> NoReturn:
    """Fail with a message, its flags as in pytest and its control characters removed."""
    from ddpbench.text_safety import clean

    pytest.fail(clean(in_pytest(message)), pytrace=False)


@pytest.fixture
def ddp_benchmark(request: pytest.FixtureRequest) -> DdpBenchmark:
    """Return a callable that measures a training step; its arguments are settings of `[base]` (see `DdpBenchmark`)."""
    if _too_old():
        _fail(f"ddp_benchmark {_too_old()}")
    if not _has_pytest_benchmark(request.config):
        _fail(
            "ddp_benchmark needs pytest-benchmark: leave out -p no:benchmark, or run: pip install "
            '"ddpbench[pytest]"'
        )
    if _WITH_BENCHMARK in request.node.stash:
        _fail("a test cannot use both ddp_benchmark and benchmark: write one test for each")
    timer = MeasuredTimer()
    given = request.node.get_closest_marker("benchmark")
    more = dict(given.kwargs) if given is not None else {}
    request.node.add_marker(pytest.mark.benchmark(**{**more, "timer": timer}), append=False)
    return DdpBenchmark(request, request.getfixturevalue("benchmark"), timer)


class DdpBenchmark:
    """The value of the fixture `ddp_benchmark`."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any, timer: MeasuredTimer) -> None:
        self._request, self._benchmark, self._timer = request, benchmark, timer

    def __call__(
        self, *, rounds: int | None = None, measured: float | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Measure a case and return its row of `cases.csv`.

        Args:
            rounds: number of launches; by default `--ddpbench-rounds`, or one if benchmarks are disabled.
            measured: seconds of timed steps in each launch; by default `--ddpbench-measured`.
            settings: those of an experiment's `[base]`, such as `workload`, `strategy`, `world_size`, `bucket_cap_mb`;
                `options={"ddp": {...}}` and `env={...}` are the experiment's sections of that name. A setting of None
                is left out. A user's file is looked for next to the test, then in pytest's root, then in the working
                directory.

        Fails the test, with the reason, if the case cannot be measured, or if the test has measured a case before.
        """
        if self._benchmark._mode:
            _fail("a test can measure only one case: write a test for each case, or parametrize this one")
        try:
            with _working_directory(self._request.config):
                return self._measured(rounds, measured, settings)
        except BaseException:
            # Mark pytest-benchmark's fixture as used, so that it does not warn that the test didn't use it.
            self._benchmark._mode = self._benchmark._mode or "ddp_benchmark(...)"
            raise

    def _measured(self, rounds: Any, measured: Any, settings: dict[str, Any]) -> dict[str, Any]:
        config = self._request.config
        disabled = bool(getattr(self._benchmark, "disabled", False))
        count, seconds = _number("rounds", rounds, int), _number("measured", measured, int, float)
        if count is None:
            count = 1 if disabled else config.getoption("--ddpbench-rounds")
        if seconds is None:
            seconds = 0.05 if disabled else config.getoption("--ddpbench-measured")
        bench = _bench(config)
        bench.count += 1
        wanted = _Wanted(settings=self._located(settings), rounds=count, measured_s=seconds)
        found = self._measure(bench, wanted)
        if disabled:
            self._request.node.user_properties.append((_NOT_MEASURED, True))
        steps_s, columns = found.steps_s, self._columns(found)
        ranks = found.side.cases[0].case.world_size
        self._benchmark.group = f"step at {ranks} rank{'s' if ranks != 1 else ''}"
        self._benchmark.extra_info.update(columns)
        rest = itertools.cycle(steps_s)  # if pytest-benchmark profiles, it calls once more

        def one_round() -> None:
            self._timer.advance(next(rest))

        self._benchmark.pedantic(one_round, rounds=len(steps_s), iterations=1)
        self._hold_against(bench, found)
        return {key: value for key, value in columns.items() if key in found.row}

    def _columns(self, found: _Measured) -> dict[str, Any]:
        from ddpbench.analysis.export import extra_info

        (run,) = found.side.cases
        return extra_info(run, found.row, found.side.identity)

    def _located(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings as in a file, with users' paths; fail if one is invalid or not found."""
        from ddpbench.errors import RequestError
        from ddpbench.launch.own_workloads import located_among
        from ddpbench.spec.given import as_toml

        folders = (self._request.path.parent, self._request.config.rootpath, Path.cwd())
        advice = "give its path from the test's folder or from pytest's root"
        problem = ""
        try:
            given = {key: as_toml(key, value) for key, value in settings.items() if value is not None}
            return _with_files(given, partial(located_among, folders=folders, advice=advice))
        except RequestError as error:
            problem = str(error)
        _fail(problem)

    def _measure(self, bench: _Bench, wanted: _Wanted) -> _Measured:
        from ddpbench.errors import DdpbenchError, ExperimentError, SideError
        from ddpbench.side_code import OUTSIDE

        gate = _stash(self._request.config).get(_GATE, None)
        source = bench.folder / f"{bench.count}_{self._name}.toml"
        problem, unlike = "", ""
        try:
            if gate is not None and gate.in_turn is not None:
                try:
                    return self._in_turn(bench, gate, source, wanted)
                except SideError as error:
                    if error.side != "base" or OUTSIDE in str(error):
                        raise
                    unlike = str(error)  # the base may lack a new test's code; then measure this code alone
                    source = source.with_name(f"{source.stem}_alone.toml")
            return replace(self._alone(bench, source, wanted), unlike=unlike)
        except ExperimentError as error:  # the summary of failed tests has room for the first line only
            problem = str(error).partition("\n")[2].lstrip()
        except DdpbenchError as error:
            problem = str(error)
        _fail(problem.replace(f"{source}: ", ""))

    @property
    def _name(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in self._request.node.name)[:60]

    def _write(self, source: Path, settings: dict[str, Any], budget: dict[str, Any]) -> None:
        import tomli_w

        text: dict[str, Any] = {
            "base": {key: value for key, value in settings.items() if key not in _GIVEN_BY_NAME},
            **{key: settings[key] for key in _GIVEN_BY_NAME & settings.keys()},
            "budget": budget,
        }
        source.write_text(tomli_w.dumps(text), encoding="utf-8")

    def _alone(self, bench: _Bench, source: Path, wanted: _Wanted) -> _Measured:
        from ddpbench.launch.plan import make_plan
        from ddpbench.launch.sweep.preparation import SweepRequest, prepare
        from ddpbench.launch.sweep.sweep import Sweep

        budget = {
            "rounds_min": wanted.rounds,
            "rounds_max": wanted.rounds,
            "measured_s": wanted.measured_s,
            "total": "1 h",
        }
        self._write(source, wanted.settings, budget)
        prepared = prepare(SweepRequest(experiment=source, out=bench.folder / source.stem))
        own = [entry for entry in prepared.plan.cases if not entry.added_as_baseline]
        _check_one(len(own))
        if own[0].skip_reason is not None:
            _fail(f"this case cannot be measured here: {own[0].skip_reason}")
        plan = replace(make_plan(prepared.experiment, own), run_id=bench.run_id)
        prepared = replace(prepared, plan=plan)
        bench.servers.rewind()
        with _one_at_a_time(), _ranks_search(self._request.config):
            Sweep(prepared, _listener(bench), servers=bench.servers, lenders=bench.runs).run()
        bench.runs.append(prepared.run)
        found = _read(prepared.run.path)
        if found.row["status"] != "ok":
            self._fail_as(found, prepared.run.path)
        return found

    def _in_turn(self, bench: _Bench, gate: _Gate, source: Path, wanted: _Wanted) -> _Measured:
        from ddpbench.launch.interleave.compare import ComparisonRequest, interleave
        from ddpbench.machine.claim import claimed
        from ddpbench.machine.disturbance import own_environment_allows_sharing
        from ddpbench.machine.hardware import read_hardware

        assert gate.in_turn is not None
        base, new = gate.in_turn
        settings = _within(wanted.settings, Path(new.path)) if new.path else wanted.settings
        self._write(source, settings, {"measured_s": wanted.measured_s})
        asked = ComparisonRequest(
            experiment=source,
            base=base,
            new=new,
            out=bench.folder / source.stem,
            code=bench.folder,
            total_s=gate.total_s,
            fewest=wanted.rounds,
            limit=gate.limit,
            alpha=self._alpha,
            turns=self._request.config.getoption("--ddpbench-turns") or "blocks",
        )
        free = own_environment_allows_sharing()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_one_at_a_time())
            if not free:
                stack.enter_context(claimed(read_hardware().cores))
            if new.path:  # otherwise, both sides run the code in the test's working directory
                stack.enter_context(_where_pytest_began(self._request.config))
            changes = interleave(asked, bench)
        for difference in changes.unlike:
            bench.event(f"the sides differ in more than the program: {difference}")
        _check_one(len(changes.new.cases))
        found = _read(changes.new.path)
        if not found.steps_s:
            self._fail_as(found, changes.new.path)
        return replace(found, change=changes.changes[-1])

    def _fail_as(self, found: _Measured, run: Path) -> NoReturn:
        """Fail with the case's error and its log's end, because the log is removed with the session."""
        from ddpbench.records.files import read_end

        problem = f"{found.row['status']}: {found.row['error']}"
        if named := re.search(r"; see (\S+\.log)$", problem):
            logs = sorted(run.rglob(named[1]), key=lambda each: each.stat().st_mtime)
            text = read_end(logs[-1], _LOG_BYTES).decode(errors="replace") if logs else ""
            if text.strip():
                self._request.node.add_report_section("call", named[1], text)
            else:
                problem = problem.removesuffix(named[0])
        _fail(problem)

    @property
    def _alpha(self) -> float:
        """Return the error probability per test at which all verdicts together have 95 % confidence."""
        from ddpbench.analysis.statistics.stats import ALPHA

        items = self._request.session.items
        return ALPHA / max(1, sum("ddp_benchmark" in getattr(item, "fixturenames", ()) for item in items))

    def _hold_against(self, bench: _Bench, found: _Measured) -> None:
        gate = _stash(self._request.config).get(_GATE, None)
        if gate is None:
            return
        from ddpbench.analysis.regression.gate import Gated, decided, gated
        from ddpbench.errors import DdpbenchError

        test, problem = self._request.node.nodeid, ""
        try:
            if found.change is not None:
                decision = decided(test, found.change, gate.limit)
            elif gate.in_turn is not None:
                reason = f"{test}: not comparable: {found.unlike}"
                decision = Gated(name=test, judged=False, fails=False, sentence=reason)
            else:
                decision = gated(
                    test, found.side, gate.saved, limit=gate.limit, drift=gate.drift, alpha=self._alpha
                )
            bench.gated.append(decision)
            if decision.undecided:
                self._request.node.user_properties.append((_UNDECIDED, True))
            problem = decision.sentence if decision.fails else ""
        except DdpbenchError as error:
            problem = str(error)
        if problem:
            _fail(problem)


def _seconds(seconds: float) -> str:
    from ddpbench.units import format_seconds

    return format_seconds(round(seconds))


def _listener(bench: _Bench) -> Listener:
    from ddpbench.launch.listener import Listener
    from ddpbench.units import format_number

    class Shown(Listener):
        def launch_ended(self, entry: Any, outcome: Any, samples_per_s: float | None) -> None:
            what = "proof" if outcome.purpose == "proof" else f"round {outcome.round + 1}"
            rate = f", {format_number(samples_per_s)} samples/s" if samples_per_s is not None else ""
            bench.show(f"{self.names.full(entry.case)}: {what} {outcome.status}{rate}")

        def warn(self, text: str) -> None:
            bench.show(f"warning: {text}")

    return Shown()


def _check_one(cases: int) -> None:
    if cases != 1:
        _fail(f"ddp_benchmark measures one case, but these settings make {cases}")


def _read(path: Path) -> _Measured:
    from ddpbench.analysis import load
    from ddpbench.analysis.regression import read_side
    from ddpbench.records import RunDir

    run = RunDir(path)
    (row,) = load(run).to_dict("records")
    return _Measured(side=read_side(run), row=row)


def _number(name: str, value: Any, *kinds: type) -> Any:
    """Return a Python number or None; fail the test for other values."""
    from ddpbench.text_safety import shortened

    if getattr(value, "shape", None) == ():
        value = value.item()  # NumPy's
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        _fail(f"{name}: {shortened(value)} is not a {'whole ' if kinds == (int,) else ''}number")
    return value


def _with_files(settings: dict[str, Any], file_of: Callable[[str, str], str]) -> dict[str, Any]:
    """Replace users' files by `file_of(setting, name)`, also where they are keys of `options`."""
    from ddpbench.launch.own_workloads import OWN_SETTINGS

    for key in OWN_SETTINGS:
        name, options = settings.get(key), settings.get("options")
        if not isinstance(name, str):
            continue
        found = file_of(key, name)
        if isinstance(options, dict):
            before, now = (
                one.rpartition(":")[0] if key == "workload" else one for one in (name, found)
            )  # as the tables of their options are called
            options = {now if owner == before else owner: given for owner, given in options.items()}
            settings = {**settings, "options": options}
        settings = {**settings, key: found}
    return settings


def _within(settings: dict[str, Any], root: Path) -> dict[str, Any]:
    """Make users' files relative to `root`, since the two versions of the code are in different folders."""
    from ddpbench.launch.own_workloads import file_in, with_file

    def file_of(_kind: str, given: str) -> str:
        if not (file := file_in(given)):
            return given
        path = Path(file).resolve()
        return with_file(given, path.relative_to(root) if path.is_relative_to(root) else path)

    return _with_files(settings, file_of)


def pytest_configure(config: pytest.Config) -> None:
    """Set up the gate if one is asked for.

    Refuse the gate's options without a gate, and refuse a gate in a session that does not measure.
    """
    if hasattr(config, "workerinput"):
        return
    if not _too_old():
        _check_given_once(config)
    if config.getoption("--ddpbench-gate", None) is None:
        for name in ("baseline", "drift", "total", "turns"):
            if config.getoption(f"--ddpbench-{name}", None):
                raise pytest.UsageError(f"--ddpbench-{name} needs the gate: add --ddpbench-gate, such as 3%")
        return
    if _too_old():
        raise pytest.UsageError(f"--ddpbench-gate {_too_old()}")
    if any(config.getoption(name, False) for name in ("collectonly", "setuponly")):
        return  # no test is run
    from ddpbench.errors import DdpbenchError

    if config.getoption("numprocesses", None) or config.getoption("benchmark_disable", False):
        raise pytest.UsageError(
            "--ddpbench-gate cannot measure with --benchmark-disable or under pytest-xdist: leave that out, or the gate"
        )
    try:
        with _where_pytest_began(config):
            _stash(config)[_GATE] = _gate_of(config)
    except (ValueError, DdpbenchError) as error:
        raise pytest.UsageError(in_pytest(str(error))) from None


def _check_given_once(config: pytest.Config) -> None:
    """Check that the command line gives no option two values; it may override `addopts`.

    Raises:
        UsageError: an option has two values.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in _ONE_VALUE:
        parser.add_argument(f"--ddpbench-{name}", dest=name, action="append", default=[])
    given, _ = parser.parse_known_args(list(map(str, config.invocation_params.args)))
    for name, values in vars(given).items():
        if len(set(values)) > 1:
            from ddpbench.text_safety import given_twice

            raise pytest.UsageError(f"--ddpbench-{name}: {given_twice(values[0], values[-1])}")


def _gate_of(config: pytest.Config) -> _Gate:
    """Return the gate that the options ask for.

    Raises:
        ValueError: a share or a time is invalid.
        RequestError: a baseline is missing or not usable, two baselines are of different kinds, or another option does
            not fit them.
        IdentityError: a saved baseline is damaged, of a different schema, or not from ddpbench.
    """
    from ddpbench.analysis.regression.baselines import Baselines
    from ddpbench.analysis.regression.gate import read_baselines
    from ddpbench.errors import RequestError
    from ddpbench.launch.interleave.sides import beside_this_code, is_side_word
    from ddpbench.spec import limits
    from ddpbench.units import parse_seconds, parse_share

    limit, drift = _read_option(config, "gate", parse_share), _read_option(config, "drift", parse_share)
    total_s = _read_option(config, "total", limits.DECIDING_S.parsed)
    assert limit is not None
    gate = _Gate(limit=limit, drift=drift, total_s=parse_seconds(TOTAL) if total_s is None else total_s)
    words = config.getoption("--ddpbench-baseline")
    if not words:
        raise RequestError(
            "--ddpbench-gate needs --ddpbench-baseline: a file that --benchmark-json=FILE has written, or a side "
            "to interleave with, such as ref=main"
        )
    sides = [word for word in words if is_side_word(word)]
    if not sides:
        if config.getoption("--ddpbench-turns"):
            raise RequestError(
                "--ddpbench-turns needs an interleaved baseline, such as --ddpbench-baseline ref=main"
            )
        storage = str(config.getoption("benchmark_storage", "")).removeprefix("file://") or ".benchmarks"
        return replace(gate, saved=read_baselines(words, Baselines(Path(storage))))
    if len(sides) < len(words):
        saved = next(word for word in words if word not in sides)
        raise RequestError(
            f"--ddpbench-baseline: {saved} is a saved file, but {sides[0]} is interleaved: give only one kind of "
            "baseline"
        )
    return replace(gate, in_turn=beside_this_code(words))


def _read_option(config: pytest.Config, name: str, read: Callable[[str], float]) -> float | None:
    """Return an option's parsed value, or None.

    Raises:
        ValueError: the value is invalid; the message names the option.
    """
    given = config.getoption(f"--ddpbench-{name}")
    try:
        return None if given is None else read(given)
    except ValueError as error:
        raise ValueError(f"--ddpbench-{name}: {error}") from None


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Count a test that the gate cannot decide as `undecided`."""
    found = (_UNDECIDED, True) in map(tuple, getattr(report, "user_properties", ()))
    if found and report.when == "call" and report.outcome == "passed":
        return "undecided", "u", "UNDECIDED"
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session in which the gate has judged no test."""
    bench = _stash(session.config).get(_BENCH, None)
    nothing = bench is None or not any(one.judged for one in bench.gated)
    asked = _GATE in _stash(session.config)
    if asked and nothing and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@contextlib.contextmanager
def _ranks_search(config: pytest.Config) -> Iterator[None]:
    """Let ranks find modules in the folders of pytest's setting `pythonpath`."""
    folders: list[str] = []
    with contextlib.suppress(ValueError):  # without pytest's plugin for that setting
        folders = [str(folder) for folder in config.getini("pythonpath")]
    given = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as environment:
        if folders:
            environment.setenv("PYTHONPATH", os.pathsep.join([*folders, *([given] if given else [])]))
        yield


def _working_directory(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """Return a context that works in the folder in which pytest was started if a test has removed the present one."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return _where_pytest_began(config)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _where_pytest_began(config: pytest.Config) -> Iterator[None]:
    """Work in the folder in which pytest was started, to which its options refer.

    Tests and conftest files may work in another folder, even in another repository.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(config.invocation_params.dir)
        yield
    finally:
        os.fchdir(here)
        os.close(here)


_LOCKS = 100


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait for this user's other measuring processes, such as those of pytest-xdist.

    Without a free name for the lock, the body runs anyway: ddpbench still claims its cores.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for number in range(_LOCKS):
        name = f"ddpbench-pytest-{os.getuid()}{f'-{number}' if number else ''}.lock"
        try:
            descriptor = os.open(Path(tempfile.gettempdir()) / name, flags, 0o600)
        except OSError:
            continue
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            os.close(descriptor)
            continue
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    yield


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what the gate has decided, and how many tests ran without measuring."""
    reports = [
        one for kind in ("passed", "undecided", "failed") for one in terminalreporter.stats.get(kind, ())
    ]
    seen = sum(
        (_NOT_MEASURED, True) in map(tuple, getattr(one, "user_properties", ()))
        for one in reports
        if getattr(one, "when", "") == "call"
    )
    if seen:
        terminalreporter.write_line(
            f"ddpbench: {seen} test{'s' if seen > 1 else ''} ran once without measuring, because "
            "benchmarks are disabled (--benchmark-disable, or pytest-xdist)"
        )
    bench = _stash(config).get(_BENCH, None)
    if _GATE not in _stash(config):
        return
    from ddpbench.text_safety import clean

    terminalreporter.write_sep("-", "ddpbench gate")
    terminalreporter.write_line(clean(_stash(config)[_GATE].words))
    gated = bench.gated if bench is not None else []
    for sentence in (*(bench.notes if bench is not None else ()), *(found.sentence for found in gated)):
        terminalreporter.write_line(clean(in_pytest(sentence)))
    undecided = sum(found.undecided for found in gated)
    if undecided:
        terminalreporter.write_line(
            f"undecided: {undecided} of the {len(gated)} tests measured. Their intervals are neither "
            "wholly beyond the gate nor wholly within it, so they neither fail nor count as passed"
        )
    if not any(found.judged for found in gated):
        terminalreporter.write_line("no test could be judged, so the gate was not passed")
