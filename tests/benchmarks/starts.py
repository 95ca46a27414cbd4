"""Start one training loop in several ways in turn: does the step time depend on the way?

    python -m tests.benchmarks.starts --strategy ddp --world-size 2 --rounds 40 --out FILE.csv
    python -m tests.benchmarks.starts --read FILE.csv [FILE.csv ...] [--base WAY[,WAY]] [--ways WAY,WAY]

With `--read` several ways can be joined: in each round their geometric mean counts.

In each round every way has one start, in random order. A row has a start's step time, and rank 0's processor
time and minor page faults per step. The loop is `bare_loop.py`, except for the harness's ways.

- `torchrun`: the usual way
- `exec`: a new Python process for each rank, without torchrun's agent
- `exec-all`: the same, after importing all that ddpbench's fork server imports, and its `gc.freeze()`
- `fork`: forked from a process that has imported torch
- `fork-all`: forked from one that has imported what ddpbench's fork server has, with its `gc.freeze()`
- `harness`: a launch of ddpbench, from a new fork server
- `harness-torchrun`, `harness-spawn`: a launch of ddpbench whose ranks torchrun starts, or a new Python process each

With `--in-turn` two ways' starts are in memory together and their blocks of steps alternate, as in `ddpbench compare
--interleave`: what disturbs the machine for a second disturbs both. The loop is then `bare_blocks.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddpbench.analysis.read.measurement import read_measurement
from ddpbench.analysis.statistics.correlation import estimated, widening
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.plan import plan_launch
from ddpbench.launch.watch import LaunchRunner
from ddpbench.machine.hardware import read_hardware
from ddpbench.machine.ports import free_port
from ddpbench.records import Address, Block, RunDir, read_rank
from ddpbench.runtime.launched import LaunchedRanks
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.turnstile import TURN, Turn, Turnstile
from ddpbench.spec import Case
from ddpbench.worker.server import preload
from tests.benchmarks import bare_blocks, bare_loop
from tests.benchmarks.bare_blocks import of_blocks
from tests.benchmarks.ratio import Ratio, paired_ratio
from tests.processes import python_path

ROOT = Path(__file__).parents[2]
COLUMNS = ("round", "place", "way", "step_s", "cpu_s", "minor_faults")
Found = tuple[float, float, float]
"""Time and processor time of a step, seconds, and its minor page faults."""


def _environment(rank: int = 0, world: int = 1, port: int = 0) -> dict[str, str]:
    common = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    if not port:
        return common
    return {
        **common,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Starts:
    """Starts one case in every way."""

    def __init__(self, case: Case, measured_s: float, folder: Path) -> None:
        self.case, self.measured_s, self.folder = case, measured_s, folder
        self.out = folder / "bare.json"
        self.words = [
            *("--strategy", case.strategy, "--workload", case.workload),
            *("--local-batch", str(case.local_batch), "--seconds", str(measured_s), "--out", str(self.out)),
        ]
        self.count = 0
        self.turn: Turn | None = None
        """The turnstile at which blocks of steps wait, alternating with another start's; None: they do not wait."""

    @property
    def loop(self) -> str:
        return (bare_blocks if self.turn else bare_loop).__file__

    def environment(self, rank: int = 0, world: int = 1, port: int = 0) -> dict[str, str]:
        return _environment(rank, world, port) | ({TURN: self.turn.address} if self.turn else {})

    def bare(self, *commands: tuple[list[str], Mapping[str, str]]) -> Found:
        """Run these commands at once, the ranks of a bare loop, and return what rank 0 measured."""
        started = [
            subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
            for words, env in commands
        ]
        for process in started:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
        found = json.loads(self.out.read_text(encoding="utf-8"))
        return found["step_s"], found["cpu_s"], found["minor_faults"]

    def torchrun(self) -> Found:
        launcher = [
            *("-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={self.case.world_size}",
        ]
        return self.bare(([*launcher, self.loop, *self.words], self.environment()))

    def execute(self, *program: str) -> Found:
        port, world = free_port(), self.case.world_size
        words = [*(program or (self.loop,)), *self.words]
        return self.bare(*((words, self.environment(rank, world, port)) for rank in range(world)))

    def fork(self, *more: str) -> Found:
        words = ["-m", __spec__.name, "--fork", str(self.case.world_size), *more, *self.words]
        return self.bare((words, self.environment()))

    def harness(self, launcher: str = "local") -> Found:
        self.count += 1
        case = replace(self.case, launcher=launcher)
        folder = self.folder / f"run-{self.count}"
        run = RunDir(folder)
        run.create()
        directory = run.launch(case.case_id, "measure", 0)
        plan = plan_launch(
            case, "measure", 0, directory=directory, hardware=read_hardware(), catalog=TableCatalog()
        )
        runner = LaunchRunner(run, hang_timeout_s=60, hang_setting="the test's", shared=False, turn=self.turn)
        log = folder / "server.log"
        with (
            ServerProcess(plan.server_env, log) if launcher == "local" else LaunchedRanks(case, log)
        ) as server:
            outcome = runner.run_launch(server, plan, measured_s=self.measured_s, server_share_s=0.0)
        assert outcome.status == "ok", outcome
        launch = read_measurement(directory, Address(case, case.case_id, "measure", 0)).launch
        assert launch is not None
        assert launch.timing is not None
        step_s, cpu_s, faults = of_blocks(
            [block for block in read_rank(directory.records(0)).of(Block) if block.phase == "timed"]
        )
        # In turn, both sides' times come from rank 0 alone.
        return step_s if self.turn else launch.timing.time_s / launch.timing.steps, cpu_s, faults

    @property
    def ways(self) -> dict[str, Callable[[], Found]]:
        return {
            "torchrun": self.torchrun,
            "exec": self.execute,
            "exec-all": lambda: self.execute("-m", __spec__.name, "--import-all"),
            "fork": self.fork,
            "fork-all": lambda: self.fork("--all"),
            "harness": self.harness,
            "harness-torchrun": lambda: self.harness("torchrun"),
            "harness-spawn": lambda: self.harness("spawn"),
        }


def read(*paths: Path) -> dict[str, list[Found]]:
    """Return each way's starts by round; the files' rounds follow one another.

    Raises:
        ValueError: a round is incomplete.
    """
    found: dict[str, list[Found]] = defaultdict(list)
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for row in sorted(rows, key=lambda row: int(row["round"])):
            found[row["way"]].append((float(row["step_s"]), float(row["cpu_s"]), float(row["minor_faults"])))
        if len({len(starts) for starts in found.values()}) != 1:
            raise ValueError(f"{path}: a round is incomplete")
    return dict(found)


def ratio(first: Sequence[Found], second: Sequence[Found], number: int = 0) -> Ratio:
    """Return the geometric mean of the rounds' ratios, with an interval widened by their correlation."""
    pairs = [(one[number], other[number]) for one, other in zip(first, second, strict=True)]
    found = paired_ratio(pairs)
    logs = np.array([[math.log(one / other) for one, other in pairs]])
    rounds = [(place, "") for place in range(len(pairs))]
    wider = widening(rounds, estimated(logs, rounds, ratios=True).reckoned)
    half = wider * math.log(found.high / found.value)
    return Ratio(found.value, found.value * math.exp(-half), found.value * math.exp(half), found.pairs)


def together(starts: Mapping[str, Sequence[Found]], ways: str) -> list[Found]:
    """Return the geometric mean of several ways in each round; `ways` has commas between them."""
    rounds = zip(*(starts[way] for way in ways.split(",")), strict=True)
    return [
        (
            statistics.geometric_mean(one[0] for one in own),
            statistics.geometric_mean(one[1] for one in own),
            statistics.fmean(one[2] for one in own),
        )
        for own in rounds
    ]


def table(starts: Mapping[str, Sequence[Found]], base: str) -> list[str]:
    """Return a line for each way: step time and processor time relative to the base's, and page faults per step."""
    lines = []
    for way, own in starts.items():
        faults = statistics.median(one[2] for one in own)
        step, cpu = (ratio(own, starts[base], number) for number in (0, 1))
        lines.append(f"{way}: step {step}, processor time {cpu}, {faults:.1f} faults")
    return lines


def loop() -> None:
    """Run the loop, in turn with another start's where the environment says so."""
    (bare_blocks if TURN in os.environ else bare_loop).main()


def in_turn(starts: Mapping[str, Starts], order: Sequence[str], turnstile: Turnstile) -> dict[str, Found]:
    """Start these two ways, the first first, and return the results of each: their blocks of steps alternate."""

    def start(way: str) -> Found:
        turn = starts[way].turn
        assert turn is not None
        with turn.held():
            return starts[way].ways[way]()

    turnstile.begin(order)
    with ThreadPoolExecutor(len(order)) as pool:
        return dict(zip(order, pool.map(start, order), strict=True))


def fork_ranks(world: int, preloading: bool, words: list[str]) -> None:
    """Fork `world` ranks of the bare loop from this process, and wait for them."""
    if preloading:
        preload()
    port = free_port()
    ranks = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.environ.update(_environment(rank, world, port))
            sys.argv[1:] = words
            loop()
        ranks.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in ranks):
        sys.exit(1)


def main() -> None:
    if sys.argv[1:2] == ["--fork"]:
        preloading = sys.argv[3:4] == ["--all"]
        fork_ranks(int(sys.argv[2]), preloading, sys.argv[4 if preloading else 3 :])
        return
    if sys.argv[1:2] == ["--import-all"]:
        preload()
        del sys.argv[1]
        loop()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--read", type=Path, nargs="+")
    parser.add_argument("--base", default="torchrun")
    parser.add_argument("--strategy", choices=["single", "ddp"], default="ddp")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--workload", default="gpt:nano")
    parser.add_argument("--ways", default="")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.read:
        starts = read(*asked.read)
        names = [asked.ways] if asked.ways else [*starts]
        named = {name: together(starts, name) for name in (*names, asked.base)}
        print("\n".join(table(named, asked.base)))
        return
    if asked.out is None:
        parser.error("give --out or --read")
    case = Case(
        workload=asked.workload,
        strategy=asked.strategy,
        backend="gloo",
        world_size=asked.world_size,
        ranks_per_node=asked.world_size,
        bucket_cap_mb="default" if asked.strategy == "ddp" else None,
        local_batch=4,
        global_batch=4 * asked.world_size,
    )
    draw = random.Random(asked.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Turnstile()) as turnstile,
        asked.out.open("x", encoding="utf-8", newline="") as file,
    ):
        ways = [
            way
            for way in Starts(case, 0, Path(folder)).ways
            if not asked.ways or way in asked.ways.split(",")
        ]
        if asked.in_turn and len(ways) != 2:
            parser.error("--in-turn takes turns of two --ways")
        sides = {way: Starts(case, asked.seconds, Path(folder, way)) for way in ways}
        for way, side in sides.items():
            side.folder.mkdir()
            side.turn = Turn(turnstile.address(way)) if asked.in_turn else None
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for number in range(asked.rounds):
            order = draw.sample(ways, len(ways))
            found = (
                in_turn(sides, order, turnstile)
                if asked.in_turn
                else {way: sides[way].ways[way]() for way in order}
            )
            for place, (way, (step_s, cpu_s, faults)) in enumerate(found.items()):
                rows.writerow((number, place, way, f"{step_s:.6f}", f"{cpu_s:.6f}", f"{faults:.2f}"))
            file.flush()


if __name__ == "__main__":
    main()
