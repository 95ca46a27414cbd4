"""Pairs of blocks that a benchmark measured and that are kept, and the documentation's sentences on them."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

from scipy.special import stdtrit

from ddpbench.analysis.regression import changes
from ddpbench.analysis.statistics import correlation
from ddpbench.machine.hardware import read_hardware
from ddpbench.machine.identity import check_identity, machine_record
from ddpbench.records.files import write_atomically
from ddpbench.strategies.frameworks.installed import versions
from ddpbench.worker.probe import describe
from tests.benchmarks.ratio import Ratio, middle_ratio, paired_ratio
from tests.in_turn import verdict_in_turn
from tests.kept import REPORTS

COLUMNS = ("launch", "pair", "steps", "first_s", "second_s")
"""Columns of a file: number of steps in a block, and the block's seconds on either side of the ratio."""
WRAPPER_COSTS = REPORTS / "wrapper-costs"
ON_A_GPU = REPORTS / "wrapper-costs-h100"
GPU_WORKLOADS = {"cnn:large": (64, 10), "gpt:small": (8, 256)}
"""Workloads trained on the GPU: samples of a batch, and the number of classes that a model predicts."""
BARE_LOOPS = REPORTS / "bare-loops"
NOTING = REPORTS / "noting-a-pipeline"
"""Instrumented steps of pipelines compared with timed ones, from one day."""
NOTING_EACH = REPORTS / "noting"
"""Likewise for every case of `test_noting_a_step_costs_little`, from another day."""
BESIDE_TORCHRUN = REPORTS / "beside-torchrun"
"""Complete interleaved launches: the harness's, and torchrun's of a hand-written loop. Each pair is a launch here."""
PLANTED = REPORTS / "planted"
"""Interleaved comparisons of sides with a planted difference: each is a launch here, and its rounds are pairs."""
AFTER_A_PAUSE = REPORTS / "after-a-pause"
"""Step times of blocks right after others' work, and of their neighbours in the same launch."""
STARTS = REPORTS / "starts"
"""Starts of one loop in several ways, as `starts.py` reads them."""
FOLDERS = (WRAPPER_COSTS, ON_A_GPU, BARE_LOOPS, NOTING, NOTING_EACH, BESIDE_TORCHRUN, PLANTED, AFTER_A_PAUSE)
WRAPPERS = {
    "ddp": "DDP",
    "fabric": "Lightning, `Fabric`",
    "accelerate": "Accelerate",
    "trainer": "Lightning, `Trainer`",
    "hf_trainer": "HF Trainer",
    "deepspeed": "DeepSpeed, ZeRO 1",
    "ray_train": "Ray Train",
    "tf_mirrored": "TF MirroredStrategy",
    "tf_multi_worker": "TF MultiWorkerMirroredStrategy",
}
"""Names of the loops of `framework_loops.py` in the documentation."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Measurements of ranks that were started for them."""

    pairs: Sequence[tuple[float, float]]
    """Seconds of a block of either side."""
    steps: int
    """Steps in a block."""

    @property
    def ratio(self) -> float:
        """Return the pairs' middle ratio of the two sides' times."""
        return middle_ratio(self.pairs)


def over_launches(launches: Sequence[Launch]) -> Ratio:
    """Return the ratio over launches, each of which counts once: it is one of the ratio's `pairs`."""
    return paired_ratio([(launch.ratio, 1.0) for launch in launches])


def summary_of(ratio: Ratio, launches: Sequence[Launch]) -> str:
    """Return a ratio with its interval, and each launch's own."""
    each = ", ".join(f"{one.ratio:.3f}" for one in launches)
    return f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] (by launch {each})"


def write(path: Path, launches: Sequence[Launch]) -> None:
    """Keep all pairs; what was kept there before is replaced completely, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        (number, pair, launch.steps, f"{first:.6f}", f"{second:.6f}")
        for number, launch in enumerate(launches)
        for pair, (first, second) in enumerate(launch.pairs)
    ]
    write_atomically(path, "".join(f"{','.join(map(str, row))}\n" for row in [COLUMNS, *rows]))


def read(path: Path) -> list[Launch]:
    """Return what `write` kept."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Launch([(float(row["first_s"]), float(row["second_s"])) for row in group], int(steps))
        for (_, steps), group in groupby(rows, key=lambda row: (row["launch"], row["steps"]))
    ]


def note_machine(folder: Path, frameworks: Iterable[str]) -> None:
    """Keep where pairs are measured, and with which versions; a folder has pairs of only one machine and one code.

    Raises:
        ddpbench.errors.IdentityError: the folder has pairs of another machine or code.
    """
    path = folder / "machine.json"
    found: dict[str, Any] = machine_record(read_hardware(), describe(), "", ())
    for empty in ("experiment_digest", "workload_digest"):
        del found["identity"][empty]
    for name in sorted(frameworks):
        found["identity"] |= versions(name)
    if path.exists():
        check_identity(json.loads(path.read_text(encoding="utf-8")), found, path)
        return
    del found["context"]["command"]  # it differs between the measuring processes
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


Cost = tuple[str, int, str]
"""A loop, its world size, and what it is compared with: `bare` torch, `ddp` at one rank, or `itself`."""


def wrapper_costs(folder: Path = WRAPPER_COSTS) -> dict[Cost, Ratio]:
    """Return the step time of each framework's strategy relative to plain torch's.

    The loop `plain` is plain torch on both sides.
    """
    found: dict[Cost, Ratio] = {}
    for path in sorted(folder.glob("*.csv")):
        loop, world, against = path.stem.split("-")
        is_expected = (
            against == "itself" if loop == "plain" else against == "bare" or (world, against) == ("1", "ddp")
        )
        assert is_expected, f"{path.name} has another comparison"
        found[loop, int(world), against] = over_launches(read(path))
    return found


def folder_of(workload: str) -> str:
    """Return the name of a folder for a workload's pairs."""
    return workload.replace(":", "-")


def sentences_on_a_gpu(folder: Path = ON_A_GPU) -> list[str]:
    """Return the table of a GPU's costs, with each launch's ratio (too few for an interval) and times."""
    cnn, gpt = (
        {path.stem: read(path) for path in (folder / folder_of(one)).glob("*.csv")} for one in GPU_WORKLOADS
    )
    cases = {"ddp-1-bare": "DDP, over one process"}
    cases |= {
        f"{loop}-1-ddp": f"{name}, over DDP" for loop, name in WRAPPERS.items() if f"{loop}-1-ddp" in cnn
    }
    heads = [
        f"`{one}`, {batch} samples, {_step_ms(found['ddp-1-ddp']):.0f} ms a step"
        for (one, (batch, _)), found in zip(GPU_WORKLOADS.items(), (cnn, gpt), strict=True)
    ]
    rows = [
        f"| {name} | {' | '.join(', '.join(f'{one.ratio:.3f}' for one in found[case]) for found in (cnn, gpt))} |"
        for case, name in cases.items()
    ]
    engine = "deepspeed-1-ddp"
    by_launch = " and ".join(f"{_more_ms([one]):.1f}" for one in gpt[engine])
    return [
        f"| | {' | '.join(heads)} |",
        *rows,
        f"takes {_more_ms(gpt['ddp-1-bare']):.1f} ms more of `gpt:small`'s step",
        f"a step of `cnn:large`, {_more_ms(cnn[engine]):.0f} ms, and {by_launch} ms more than one of",
    ]


def _step_ms(launches: Sequence[Launch]) -> float:
    """Return the time of the second side's middle block, ms per step."""
    return statistics.median(1e3 * second / one.steps for one in launches for _, second in one.pairs)


def _more_ms(launches: Sequence[Launch]) -> float:
    """Return the additional time of the first side in the middle pair, ms per step."""
    return statistics.median(
        1e3 * (first - second) / one.steps for one in launches for first, second in one.pairs
    )


Loop = tuple[str, int]
"""A loop written by hand in a framework, and its world size."""


def bare_loops(folder: Path = BARE_LOOPS) -> dict[Loop, Ratio]:
    """Return the step time of each framework's strategy relative to that of a loop written by hand in it.

    A folder in `folder` is one session, on one machine; a case measured in several sessions counts all launches.
    """
    launches: dict[Loop, list[Launch]] = defaultdict(list)
    for path in sorted(folder.glob("*/*.csv")):
        loop, world, against = path.stem.split("-")
        assert against == "strategy", f"{path.name} tells of another comparison"
        launches[loop, int(world)] += read(path)
    return {loop: over_launches(found) for loop, found in launches.items()}


LOOP_BOUNDS = (0.97, 1.03)
"""Bounds for the interval of a strategy's step time relative to a loop written by hand in the framework."""


def is_bounded(ratio: Ratio) -> bool:
    """Return whether such a ratio's interval is within the bounds."""
    low, high = LOOP_BOUNDS
    return low <= ratio.low <= ratio.high <= high


def beyond(loops: Mapping[Loop, Ratio]) -> dict[Loop, Ratio]:
    """Return those whose interval is not."""
    return {loop: ratio for loop, ratio in loops.items() if not is_bounded(ratio)}


def sentence_on_loops(loops: Mapping[Loop, Ratio]) -> str:
    """Return the documentation's sentence on them."""
    values = sorted(ratio.value for ratio in loops.values())
    lowest = min(loops, key=lambda loop: loops[loop].low)
    highest = max(loops, key=lambda loop: loops[loop].high)
    outside = [
        f"**`{loop}` at {ranks}, {ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]**"
        for (loop, ranks), ratio in beyond(loops).items()
    ]
    return (
        f"{len(loops)} cases: {values[0]:.4f} to {values[-1]:.4f}; the lowest end of an interval is "
        f"{loops[lowest].low:.4f} (`{lowest[0]}` at {lowest[1]}), the highest {loops[highest].high:.4f} "
        f"(`{highest[0]}` at {highest[1]}); outside the bound: {', '.join(outside) or 'none'}"
    )


def sentences(costs: Mapping[Cost, Ratio]) -> list[str]:
    """Return the rows of the documentation's table, and the text below it."""
    rows = [
        f"| {name} | {' | '.join(_cell(costs.get((loop, *column))) for column in COLUMNS_OF_COSTS)} |"
        for loop, name in WRAPPERS.items()
    ]
    one, two = (_cell(costs["plain", ranks, "itself"]) for ranks in (1, 2))
    return [
        *rows,
        f"With one process on both sides the same measurement gives {one}, with DDP at 2 ranks {two}",
    ]


COLUMNS_OF_COSTS = ((1, "bare"), (1, "ddp"), (2, "bare"))


def _cell(ratio: Ratio | None) -> str:
    return "–" if ratio is None else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def noting(folder: Path = NOTING_EACH) -> dict[Loop, Ratio]:
    """Return the time of instrumented steps relative to timed ones, of each strategy at a number of ranks."""
    return _of_each(folder, "timed")


def beside_torchrun(folder: Path = BESIDE_TORCHRUN) -> dict[Loop, Ratio]:
    """Return the step time of the harness's launches relative to torchrun's of a hand-written loop, likewise."""
    return _of_each(folder, "torchrun")


def after_a_pause(folder: Path = AFTER_A_PAUSE) -> dict[Loop, Ratio]:
    """Return the step time of blocks after a pause relative to their neighbours without one, likewise."""
    return _of_each(folder, "without")


def _of_each(folder: Path, of: str) -> dict[Loop, Ratio]:
    found: dict[Loop, Ratio] = {}
    for path in sorted(folder.glob("*.csv")):
        strategy, ranks, against = path.stem.rsplit("-", 2)
        assert against == of, f"{path.name} tells of another comparison"
        found[strategy, int(ranks)] = over_launches(read(path))
    return found


def sentence_on_each(ratios: Mapping[Loop, Ratio]) -> str:
    """Return the documentation's sentence on them."""
    return "; ".join(
        f"`{strategy}` at {ranks} {ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
        for (strategy, ranks), ratio in sorted(ratios.items())
    )


def sentence_on_torchrun(folder: Path = BESIDE_TORCHRUN) -> str:
    """Return a sentence on each case, and on all together: their mean log ratios, weighted by their precision."""
    every = [
        [math.log(one.ratio) for one in read(folder / f"{strategy}-{ranks}-torchrun.csv")]
        for strategy, ranks in beside_torchrun(folder)
    ]
    weights = [len(logs) / statistics.variance(logs) for logs in every]
    mean = sum(w * statistics.fmean(logs) for w, logs in zip(weights, every, strict=True)) / sum(weights)
    half = float(stdtrit(sum(len(logs) - 1 for logs in every), 0.975)) / math.sqrt(sum(weights))
    value, low, high = (math.exp(one) for one in (mean, mean - half, mean + half))
    together = (
        f"together {value:.3f} [{low:.3f}, {high:.3f}]{'' if low <= 1 <= high else ', which leaves 1 out'}"
    )
    return f"{sentence_on_each(beside_torchrun(folder))}; {together}"


def verdict_of(comparison: Launch) -> str:
    """Return the verdict of its rounds on the new side, which is the pairs' first."""
    return verdict_in_turn([math.log(new / base) for new, base in comparison.pairs])


def sentence_on_planted(path: Path) -> str:
    """Return how much more time the new side took, and in how many comparisons and rounds that was found.

    The difference is over all rounds of all comparisons, with its 95 % t-interval.
    """
    comparisons = read(path)
    slower = sum(verdict_of(one) == "slower" for one in comparisons)
    ratio = paired_ratio([pair for one in comparisons for pair in one.pairs])
    value, low, high = (100 * (one - 1) for one in (ratio.value, ratio.low, ratio.high))
    found = f"found {slower} of {len(comparisons)} times, in {_rounds(comparisons)}"
    return f"{value:.1f} % [{low:.1f}, {high:.1f}] slower, {found}"


def found_if_widened_at_once() -> dict[str, int]:
    """Return how often each planted difference is found if intervals allow for correlation from the first rounds on."""
    with mock.patch.object(changes, "IN_TURN_FROM", 0), mock.patch.object(correlation, "IN_TURN_FROM", 0):
        return {
            path.stem: sum(verdict_of(one) == "slower" for one in read(path))
            for path in sorted(PLANTED.glob("*/*.csv"))
            if not path.stem.startswith("equal")
        }


def sentence_on_equal(path: Path) -> str:
    """Return how often equal sides were distinguished, by the same arithmetic, and their ratio over all rounds."""
    comparisons = read(path)
    apart = sum(verdict_of(one) in ("slower", "faster") for one in comparisons)
    ratio = paired_ratio([pair for one in comparisons for pair in one.pairs])
    distinguished = f"told apart {apart} of {len(comparisons)} times, in {_rounds(comparisons)}"
    return f"{distinguished}; all rounds together {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _rounds(comparisons: Sequence[Launch]) -> str:
    fewest, most = min(rounds := [len(one.pairs) for one in comparisons]), max(rounds)
    return f"{fewest} rounds each" if fewest == most else f"{fewest} to {most} rounds"


def sentence_on(path: Path) -> str:
    """Return a sentence on a file of comparisons."""
    return sentence_on_equal(path) if path.stem.startswith("equal") else sentence_on_planted(path)


def main() -> None:
    """Print the documentation's sentences on the kept pairs."""
    print(*sentences(wrapper_costs()), *sentences_on_a_gpu(), sep="\n")
    print(sentence_on_loops(bare_loops()))
    print(sentence_on_each(noting()), sentence_on_torchrun(), sentence_on_each(after_a_pause()), sep="\n")
    for path in sorted(PLANTED.glob("*/*.csv")):
        print(f"{path.stem}: {sentence_on(path)}")
    for name, count in found_if_widened_at_once().items():
        print(f"{name}: widened from the first rounds on, found {count} of 10 times")


if __name__ == "__main__":
    main()
