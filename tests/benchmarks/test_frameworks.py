"""Fidelity of the frameworks' strategies: their numbers are those of a loop written by hand in the framework."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Say, by_python, torchrun
from tests.benchmarks.keeping import keep, refuse_kept
from tests.benchmarks.kept_pairs import LOOP_BOUNDS, Launch, is_bounded, over_launches, summary_of
from tests.benchmarks.test_own_script import KEEPS_MEMORY

FRAMEWORKS = {
    "accelerate": "accelerate",
    "fabric": "lightning",
    "trainer": "lightning",
    "hf_trainer": "hf_trainer",
    "deepspeed": "deepspeed",
    "ray_train": "ray_train",
    "tf_mirrored": "tensorflow",
    "tf_multi_worker": "tensorflow",
}
"""The loops, and the framework that each needs."""
CLASSES = {"tf_mirrored": 10, "tf_multi_worker": 10}
"""Classes of the loops' targets; otherwise bytes."""
MEASURED = [(loop, world) for loop in FRAMEWORKS for world in (1, 2)]
SHOWN_TO_WORK = [("accelerate", 1), ("fabric", 1), ("trainer", 2), ("hf_trainer", 1)]
THOROUGH = [("deepspeed", 2), ("ray_train", 2), ("tf_mirrored", 2), ("tf_multi_worker", 2)]
"""Loops that are also shown to work, if there is time."""
BRIEF = ("--pairs", 2, "--pairs-max", 2, "--block-seconds", 0.02)
LONG = ("--pairs", 20, "--pairs-max", 60, "--block-seconds", 0.2, "--seconds-max", 15)
LAUNCHES = (12, 20)
"""The least number, and the largest while the ratio is not known well enough.

Counts processes, as in a sweep: two equal sides differ by a percent or two within a process, so that pairs of one
process describe only that process. `--alike` shows it.
"""


COSTS = [("ddp", 1), *(case for case in MEASURED if case != ("tf_mirrored", 2))]
"""Cases of DDP's own cost, which includes most frameworks' wrapping at one rank; and cases whose blocks can alternate
with plain torch's: MirroredStrategy at 2 has both replicas in one process."""
COSTS_OVER_DDP = ["ddp", "fabric", "accelerate", "trainer", "hf_trainer", "deepspeed"]
"""Loops that wrap a model in DDP, or similarly, at one rank as well; and DDP itself, for no difference."""
COSTS_SHOWN_TO_WORK = [("accelerate", 2, "bare")]
COSTS_OF = ("--workload", "cnn:large", "--local-batch", 64)
"""The training of `experiments/frameworks.toml`, with its malloc settings; batches come from a loader, on both
sides."""
LAUNCHES_OF_COSTS = (8, 12)
"""The least number, and the largest while the ratio is not known well enough."""
KNOWN_TO = 0.03
LOOP_KNOWN_TO = 0.0125


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--ratios", default=False)
    if metafunc.function is test_what_a_framework_costs_over_plain_torch:
        all_costs = [*((*case, "bare") for case in COSTS), *((loop, 1, "ddp") for loop in COSTS_OVER_DDP)]
        alike = metafunc.config.getoption("--alike", default=False)
        if alike:  # plain torch on both sides, for any loop
            costs = [("accelerate", ranks, "itself") for ranks in (1, 2)]
        else:
            costs = all_costs if full else COSTS_SHOWN_TO_WORK
        metafunc.parametrize(("loop", "world", "against"), [_marked(*case) for case in costs])
    else:
        cases = MEASURED if full else SHOWN_TO_WORK + THOROUGH
        metafunc.parametrize(("loop", "world"), [_marked(*case) for case in cases])


def _marked(loop: str, world: int, *against: str) -> object:
    marks = [pytest.mark.framework(FRAMEWORKS[loop])] if loop in FRAMEWORKS else []
    if (loop, world) in THOROUGH:
        marks.append(pytest.mark.thorough)
    return pytest.param(loop, world, *against, marks=marks)


@pytest.mark.multiprocess
def test_blocks_in_turn_with_a_loop_in_the_framework(
    loop: str,
    world: int,
    full: bool,
    say: Say,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    folder: Path | None,
) -> None:
    """Bound: the 95 % interval of strategy / hand-written loop is within 0.97 to 1.03.

    It is over processes. Each adds pairs until their mean is known to 0.8 %, from 20 to 60; after 15 s it stops. In
    every other process the loop's model is made first. Processes are added while the interval is wider than 1.25 % to
    either side, from 12 to 20.
    """
    against = "own" if request.config.getoption("--alike", default=False) else "strategy"
    name = f"{loop}-{world}-{against}"
    refuse_kept(name, folder, FRAMEWORKS.values())
    launches: list[Launch] = []
    least, most = LAUNCHES if full else (1, 1)
    while len(launches) < least or (
        len(launches) < most and over_launches(launches).half_width > LOOP_KNOWN_TO
    ):
        launches.append(
            measured(loop, world, against, full, tmp_path, other_first=other_is_first(launches, world))
        )
        keep(launches, name, folder)
    if full:
        ratio = over_launches(launches)
        side = "the same loop" if against == "own" else "strategy"
        bounds = "within {} to {}".format(*LOOP_BOUNDS)
        say(f"{side} / loop written in it, {loop} at {world}: {summary_of(ratio, launches)}, {bounds}")
        assert is_bounded(ratio)


@pytest.mark.multiprocess
def test_what_a_framework_costs_over_plain_torch(
    loop: str,
    world: int,
    against: str,
    full: bool,
    say: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path | None,
) -> None:
    """Bound: the ratio of its step time to that of plain torch in the same processes, known to 3 %.

    Plain torch is DDP, or `single` at one rank unless the loop is compared with DDP there too.
    """
    for name, value in KEEPS_MEMORY.items():
        monkeypatch.setenv(name, value)
    least, most = LAUNCHES_OF_COSTS if full else (1, 1)
    name = f"{'plain' if against == 'itself' else loop}-{world}-{against}"
    refuse_kept(name, folder, FRAMEWORKS.values())
    launches: list[Launch] = []
    while len(launches) < least or (len(launches) < most and over_launches(launches).half_width > KNOWN_TO):
        launches.append(
            measured(loop, world, against, full, tmp_path, other_first=other_is_first(launches, world))
        )
        keep(launches, name, folder)
    if full:
        ratio = over_launches(launches)
        side = "plain torch" if against == "itself" else loop
        known = f"known to {100 * ratio.half_width:.1f} % of at most 3"
        plain = "ddp" if world > 1 or against == "ddp" else "single"
        say(f"step of {side} / of {plain}, {world}: {summary_of(ratio, launches)}, {known}")
        assert ratio.half_width <= KNOWN_TO


def other_is_first(launches: Sequence[Launch], world: int) -> bool:
    """Return whether the next launch makes the other side's model first; of single launches those of two ranks do."""
    return bool((len(launches) + world - 1) % 2)


def measured(loop: str, world: int, against: str, full: bool, folder: Path, *, other_first: bool) -> Launch:
    """Interleave both sides in ranks that are started for it, whose models are made in either order."""
    plain = against not in ("strategy", "own")
    words = (*(COSTS_OF if plain else ()), *(LONG if full else BRIEF))
    classes = 10 if plain else CLASSES.get(loop, 256)
    return launched(
        loop, world, against, folder / "pairs.json", words, other_first=other_first, classes=classes
    )


def launched(
    loop: str,
    world: int,
    against: str,
    out: Path,
    more: Sequence[object],
    *,
    other_first: bool,
    classes: int,
) -> Launch:
    """Interleave both sides, with more arguments for the script; both initially guess among that many classes."""
    words = ("--loop", loop, "--world-size", world, "--against", against, "--out", out, *more)
    words = (*words, *(["--other-first"] if other_first else []))
    if loop == "ray_train":
        by_python("framework_loops.py", *words)
    else:
        torchrun("framework_loops.py", 1 if loop == "tf_mirrored" else world, *words)
    found = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    pairs = [(one, other) for one, other in found["pairs"]]
    assert all(one > 0 and other > 0 for one, other in pairs)
    # Both sides train: from the loss of a guess, downwards.
    sides = ["losses"] if against == "own" else ["losses", "losses_of_strategy"]
    for before, after in (found[side] for side in sides):
        assert before == pytest.approx(math.log(classes), rel=0.2)
        assert after < 0.95 * before
    return Launch(pairs, found["steps"])
