"""Setup for all tests: which of them share a process and the cores, and Ctrl-C in the processes that they start."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from ddpbench.strategies.frameworks.installed import missing
from tests.lighter import sitecustomize as lighter

if TYPE_CHECKING:
    from ddpbench.analysis import Checked

TESTS = Path(__file__).parent

# A shell without job control has its background jobs ignore SIGINT, and so their children: sweeps that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A machine that others slow down must not fail a test's examples.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--share`."""
    parser.addoption(
        "--share", metavar="K/N", help="of the chosen tests every N-th, from the K-th (0 to N - 1) on"
    )


class Share:
    """Selects every n-th of the tests that all other options have selected."""

    def __init__(self, text: str) -> None:
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or int(found[1]) >= int(found[2]):
            raise pytest.UsageError(f"--share {text}: give K/N, such as 0/8, K less than N")
        self._first, self._of = int(found[1]), int(found[2])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Select by name, so that parameters of one test and tests of one file fall to different shares."""
        mine = set(sorted(item.nodeid for item in items)[self._first :: self._of])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in mine])
        items[:] = [item for item in items if item.nodeid in mine]


def pytest_configure(config: pytest.Config) -> None:
    """Let sweeps of tests run in parallel; a sweep whose ratios are measured claims its cores.

    A GPU is hidden from all tests but those of `-m gpu`: processes of other tests would train on it, one rank at a
    time.
    """
    os.environ["DDPBENCH_CACHE"] = ""  # tests neither keep what they read and draw, nor use what others kept
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if not config.getoption("--ratios", default=False):
        os.environ["DDPBENCH_SHARED_MACHINE"] = "1"
        # Processes that tests start do less as well, unless ratios are measured.
        given = os.environ.get("PYTHONPATH")
        folder = str(Path(lighter.__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([given] if given else [])])
    else:
        lighter.undo()
    if share := config.getoption("--share"):
        config.pluginmanager.register(Share(share))
    if config.getoption("--keep", default=None) and not config.getoption("--ratios", default=False):
        raise pytest.UsageError("--keep is of use with --ratios alone")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Turn off garbage collection while all tests are imported, which makes hardly any, and freeze what they leave."""
    gc.disable()
    try:
        _import_own_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_own_share(config: pytest.Config) -> None:
    """Import each worker's share of all tests first: what it compiles the other workers need not compile.

    Collection reports the modules that cannot be imported.
    """
    worker: Any = getattr(config, "workerinput", None)
    if worker is None or TESTS not in map(Path.absolute, map(Path, config.args)):
        return
    first, of = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(TESTS.rglob("test_*.py"))[first::of]:
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of frameworks that are not installed, and run files with sweeps first, since they take longest."""
    for item in items:
        for marker in item.iter_markers("framework"):
            for name in marker.args:
                if reason := missing(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
        _UNFOUND.extend(
            f"{item.nodeid}: `make test` looks for mark.{name} in its file"
            for name in ("links", "alone")
            if item.get_closest_marker(name) and f"mark.{name}" not in item.path.read_text(encoding="utf-8")
        )
        if item.get_closest_marker("thorough") and item.get_closest_marker("alone"):
            _UNFOUND.append(
                f"{item.nodeid}: `make thorough` runs it in parallel with others, which mark.alone forbids"
            )
    long = {item.path for item in items if item.get_closest_marker("multiprocess")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Use one thread for computation in tests: threads of several tests wait for each other on the cores."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


_UNFOUND: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def _marked_in_their_files() -> None:
    """Fail if a test's marks would make `make` run it nowhere, or next to others."""
    assert not _UNFOUND, "\n".join(_UNFOUND)


@pytest.fixture(scope="session", autouse=True)
def _nothing_impossible() -> Iterator[None]:
    """Fail if a report made in the test's process has measured what is impossible, unless `violating` is used."""
    from ddpbench.analysis import decided

    check = decided.check_cases

    def strict(*arguments: Any) -> Checked:
        found: Checked = check(*arguments)
        assert _VIOLATING or not found.impossible, "\n".join(found.sentences)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decided, "check_cases", strict)
        yield


_VIOLATING: list[bool] = []


@pytest.fixture
def violating() -> Iterator[None]:
    """Allow what is impossible, for tests that plant it."""
    _VIOLATING.append(True)
    yield
    _VIOLATING.pop()


@pytest.fixture(scope="session", autouse=True)
def _lent_servers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Share fork servers among sweeps in the test's process, unless `own_servers` is used or times count."""
    if request.config.getoption("--ratios", default=False):
        yield
        return
    from tests.lasting import lent_servers

    with lent_servers():
        yield


@pytest.fixture
def own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each sweep start and end its own fork servers, for tests that look at them."""
    from ddpbench.runtime.server import ServerProcess
    from tests.lasting import STARTED_IN

    for module in STARTED_IN:
        monkeypatch.setattr(f"{module}.ServerProcess", ServerProcess)


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures, for tests that look at them: all others only lay them out."""
    monkeypatch.setenv(lighter.PAINTS, "1")


@pytest.fixture
def whole_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep torch's compiler, for tests of its effect on importing processes: all others leave it out."""
    folder = str(Path(lighter.__file__).parent)
    kept = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", folder)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(kept))


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a report's second process, for tests of it; fail if no process was asked for anything."""
    from ddpbench.helper_process import Helper

    asked: list[object] = []
    ask = Helper.ask
    monkeypatch.setenv(lighter.SHARES, "1")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(
        Helper, "ask", lambda self, work, question: asked.append(work) or ask(self, work, question)
    )
    yield
    assert asked, "one process did all"
