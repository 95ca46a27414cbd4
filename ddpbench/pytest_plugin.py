"""The fixture `ddp_benchmark` for people's own test suites: a training step of real ranks, as pytest-benchmark sees it.

    def test_step(ddp_benchmark):
        ddp_benchmark(workload="train.py:Measured", strategy="ddp", world_size=2, bucket_cap_mb=25)

Rounds are ddpbench's: each is a launch of fresh ranks, whose mean step time pytest-benchmark gets as if it had timed
it. So its table, --benchmark-autosave, --benchmark-compare and --benchmark-histogram work; the case's columns are in
`extra_info`. `--ddpbench-gate 3% --ddpbench-baseline FILE` fails tests that are shown to be slower than saved ones.
Importing this file imports neither torch nor pandas.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ddpbench.analysis.regression.gate import Gated
    from ddpbench.launch.sweep.servers import LastingServers

ROUNDS, MEASURED_S = 5, 0.6
_NOT_MEASURED = "ddpbench: not measured"
_GIVEN_BY_NAME = frozenset({"options", "env"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("ddpbench", "training steps of real ranks (ddp_benchmark)")
    group.addoption(
        "--ddpbench-rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help=f"launches of fresh ranks for each test (default: {ROUNDS})",
    )
    group.addoption(
        "--ddpbench-measured",
        type=float,
        default=MEASURED_S,
        metavar="SECONDS",
        help=f"timed steps of each launch (default: {MEASURED_S})",
    )
    group.addoption(
        "--ddpbench-gate",
        metavar="PERCENT",
        help="fail what is slower than --ddpbench-baseline by more than this, all of its interval; such as 3%%",
    )
    group.addoption(
        "--ddpbench-baseline",
        action="append",
        default=[],
        metavar="FILE",
        help="what pytest-benchmark has saved; several files are several sessions, which makes intervals narrower",
    )
    group.addoption(
        "--ddpbench-drift",
        metavar="PERCENT",
        help="standard deviation of step times between sessions on this machine (default: 4%%, or more where launches "
        "scatter more)",
    )


@dataclass
class _Bench:
    """What the tests of a session share."""

    folder: Path
    servers: LastingServers
    count: int = 0
    gated: list[Gated] = field(default_factory=list)


_BENCH = pytest.StashKey[_Bench]()
_STACK = pytest.StashKey[contextlib.ExitStack]()


class MeasuredTimer:
    """A timer for pytest-benchmark that stands still but for `advance`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Lets this much measured time pass."""
        self.now += seconds


def _bench(config: pytest.Config) -> _Bench:
    from ddpbench.launch.sweep.servers import LastingServers

    if _BENCH not in config.stash:
        stack = config.stash[_STACK] = contextlib.ExitStack()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddpbench-pytest-")))
        servers = LastingServers(folder / "server.log")
        stack.enter_context(servers)
        config.stash[_BENCH] = _Bench(folder, servers)
    return config.stash[_BENCH]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the fork servers, and removes what was measured."""
    stack = config.stash.get(_STACK, None)
    if stack is not None:
        stack.close()


@pytest.fixture
def ddp_benchmark(request: pytest.FixtureRequest) -> DdpBenchmark:
    """Measures a training step with settings of an experiment's `[base]`; see `DdpBenchmark.__call__`."""
    if not request.config.pluginmanager.hasplugin("benchmark"):
        pytest.fail(
            'ddp_benchmark needs pytest-benchmark, and not -p no:benchmark: pip install "ddpbench[pytest]"',
            pytrace=False,
        )
    timer = MeasuredTimer()
    given = request.node.get_closest_marker("benchmark")
    more = dict(given.kwargs) if given is not None else {}
    request.node.add_marker(pytest.mark.benchmark(**{**more, "timer": timer}), append=False)
    return DdpBenchmark(request, request.getfixturevalue("benchmark"), timer)


class DdpBenchmark:
    """What the fixture gives a test."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any, timer: MeasuredTimer) -> None:
        self._request, self._benchmark, self._timer = request, benchmark, timer

    def __call__(
        self, *, rounds: int | None = None, measured: float | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Measure a case and return its row of `cases.csv`.

        Args:
            rounds: launches; by default `--ddpbench-rounds`, and one where benchmarks are disabled.
            measured: seconds of timed steps in each; by default `--ddpbench-measured`.
            settings: those of an experiment's `[base]`, such as `workload`, `strategy`, `world_size`, `bucket_cap_mb`;
                `options={"ddp": {...}}` and `env={...}` are its sections. A workload's file is looked for beside the
                test, then in pytest's root.

        Fails the test where the case cannot be measured, with the reason.
        """
        config = self._request.config
        disabled = bool(getattr(self._benchmark, "disabled", False))
        count = rounds or (1 if disabled else config.getoption("--ddpbench-rounds"))
        seconds = measured or (0.05 if disabled else config.getoption("--ddpbench-measured"))
        if disabled:
            self._request.node.user_properties.append((_NOT_MEASURED, True))
        bench = _bench(config)
        bench.count += 1
        row, steps_s, identity = self._measure(bench, self._located(settings), count, seconds)
        self._benchmark.group = f"step at {row['world_size']} rank{'s' if row['world_size'] != 1 else ''}"
        self._benchmark.extra_info.update(row, identity=identity, steps_s=steps_s)
        rest = itertools.cycle(steps_s)  # a profiler of pytest-benchmark's asks once more

        def one_round() -> None:
            self._timer.advance(next(rest))

        self._benchmark.pedantic(one_round, rounds=len(steps_s), iterations=1)
        self._gate(bench, steps_s, row, identity)
        return row

    def _located(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings with a workload's file found."""
        from ddpbench.launch.own_workloads import located

        name = settings.get("workload")
        if not isinstance(name, str):
            return settings
        for folder in (self._request.path.parent, self._request.config.rootpath):
            found = located(name, folder)
            if found != name:
                return {**settings, "workload": found}
        return settings

    def _measure(
        self, bench: _Bench, settings: dict[str, Any], rounds: int, measured_s: float
    ) -> tuple[dict[str, Any], list[float], dict[str, Any]]:
        import tomli_w

        from ddpbench.analysis import load
        from ddpbench.analysis.export import load_launches
        from ddpbench.errors import DdpbenchError
        from ddpbench.launch.listener import Listener
        from ddpbench.launch.plan import make_plan
        from ddpbench.launch.sweep.preparation import SweepRequest, prepare
        from ddpbench.launch.sweep.sweep import Sweep
        from ddpbench.records.machine import read_machine

        name = "".join(letter if letter.isalnum() else "_" for letter in self._request.node.name)[:60]
        text: dict[str, Any] = {
            "base": {key: value for key, value in settings.items() if key not in _GIVEN_BY_NAME},
            **{key: settings[key] for key in _GIVEN_BY_NAME & settings.keys()},
            "budget": {
                "rounds_min": rounds,
                "rounds_max": rounds,
                "measured_s": measured_s,
                "total": "1 h",
            },
        }
        source = bench.folder / f"{bench.count}_{name}.toml"
        source.write_text(tomli_w.dumps(text), encoding="utf-8")
        problem = ""
        try:
            prepared = prepare(SweepRequest(experiment=source, out=bench.folder / source.stem))
            own = [entry for entry in prepared.plan.cases if not entry.added_as_baseline]
            if len(own) != 1:
                pytest.fail(
                    f"ddp_benchmark measures one case, and these settings are {len(own)}", pytrace=False
                )
            if own[0].skip_reason is not None:
                pytest.fail(f"this case cannot be measured here: {own[0].skip_reason}", pytrace=False)
            prepared = replace(prepared, plan=make_plan(prepared.experiment, own))
            bench.servers.rewind()
            with _one_at_a_time():
                Sweep(prepared, Listener(), servers=bench.servers).run()
            (row,) = load(prepared.run).to_dict("records")
            if row["status"] != "ok":
                pytest.fail(f"{row['status']}: {row['error']}", pytrace=False)
            launches = load_launches(prepared.run)
            identity = read_machine(prepared.run)["identity"]
        except DdpbenchError as error:
            problem = str(error)
        if problem:
            pytest.fail(problem.replace(f"{source}: ", ""), pytrace=False)
        told = {str(key): value for key, value in json.loads(json.dumps(row, default=_plain)).items()}
        kept = {key: value for key, value in told.items() if value is not None and value == value}  # noqa: PLR0124  no NaN
        return kept, launches, identity

    def _gate(
        self, bench: _Bench, steps_s: list[float], row: dict[str, Any], identity: dict[str, Any]
    ) -> None:
        config = self._request.config
        if config.getoption("--ddpbench-gate") is None:
            return
        from ddpbench.analysis.regression.gate import gated
        from ddpbench.errors import DdpbenchError
        from ddpbench.units import parse_share

        limit, drift = (
            None if given is None else parse_share(given)
            for given in (config.getoption(f"--ddpbench-{name}") for name in ("gate", "drift"))
        )
        assert limit is not None
        files = [Path(each) for each in config.getoption("--ddpbench-baseline")]
        problem = ""
        try:
            found = gated(
                self._request.node.nodeid,
                steps_s,
                row=row,
                identity=identity,
                baselines=files,
                limit=limit,
                drift=drift,
            )
            bench.gated.append(found)
            problem = found.sentence if found.fails else ""
        except DdpbenchError as error:
            problem = str(error)
        if problem:
            pytest.fail(problem, pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a gate that could not fail."""
    gate = config.getoption("--ddpbench-gate", None)
    if gate is None or hasattr(config, "workerinput"):
        return
    from ddpbench.analysis.regression.gate import check_baselines
    from ddpbench.errors import DdpbenchError
    from ddpbench.units import parse_share

    if config.getoption("numprocesses", None) or config.getoption("benchmark_disable", False):
        raise pytest.UsageError(
            "--ddpbench-gate measures, which it cannot with --benchmark-disable or beside pytest-xdist: leave one out"
        )
    try:
        for name in ("gate", "drift"):
            if (given := config.getoption(f"--ddpbench-{name}")) is not None:
                parse_share(given)
        check_baselines([Path(each) for each in config.getoption("--ddpbench-baseline")])
    except (ValueError, DdpbenchError) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run whose gate has judged nothing at all."""
    bench = session.config.stash.get(_BENCH, None)
    nothing = bench is None or not any(one.ratio is not None for one in bench.gated)
    asked = session.config.getoption("--ddpbench-gate", None) is not None
    if asked and nothing and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else None


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Waits for other processes of this user that measure by this plugin, such as pytest-xdist's."""
    path = Path(tempfile.gettempdir()) / f"ddpbench-pytest-{os.getuid()}.lock"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tells what the gate has decided, and what was not measured."""
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, ())]
    seen = sum(
        (_NOT_MEASURED, True) in map(tuple, getattr(one, "user_properties", ()))
        for one in reports
        if getattr(one, "when", "") == "call"
    )
    if seen:
        terminalreporter.write_line(
            f"ddpbench: {seen} test{'s' if seen > 1 else ''} ran once and measured nothing, as benchmarks are disabled "
            "(--benchmark-disable, or pytest-xdist)"
        )
    bench = config.stash.get(_BENCH, None)
    if config.getoption("--ddpbench-gate", None) is None:
        return
    terminalreporter.write_sep("-", "ddpbench gate")
    gated = bench.gated if bench is not None else []
    for found in gated:
        terminalreporter.write_line(found.sentence)
    if not any(found.ratio is not None for found in gated):
        terminalreporter.write_line("nothing could be judged: the gate has not been passed")
