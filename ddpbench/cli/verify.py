"""`ddpbench verify`: proves strategies right against one process, and prints what was compared."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags

if TYPE_CHECKING:
    from ddpbench.launch.verify import Verdict


WIDTH = 38
"""Of the first column: the longest are `ddp halving doubling after backward` and those with options."""


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "verify",
        help="check strategies against single-process training",
        description="Train one step of each strategy on real ranks and compare its gradients and update "
        "with single-process training on the same shards; after two more updates all replicas "
        "must be equal. Inexact strategies are checked against what they promise instead. "
        "Refused while a sweep uses the cores. Exits with 1 if a check fails.",
    )
    parser.add_argument("--strategy", nargs="+", default=None, help="default: all")
    parser.add_argument(
        "--algorithm", nargs="+", default=None, help="of strategies with a choice; default: all"
    )
    parser.add_argument("--schedule", nargs="+", choices=["overlapped", "after_backward"], help="likewise")
    parser.add_argument(
        "--workload",
        nargs="+",
        help="default: mlp gpt:nano, and two_branch where a model with branches is needed",
    )
    parser.add_argument("--world-size", nargs="+", type=_world, default=[1, 2, 3, 4], help="default: 1 2 3 4")
    parser.add_argument(
        "--backend",
        choices=["gloo", "nccl"],
        default="gloo",
        help="nccl trains on GPUs, gloo on CPUs (default: gloo)",
    )
    parser.add_argument(
        "--hang-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="end a proof without progress (default: 120)",
    )
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _world(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("a world size is at least 1")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.launch.verify import verification_cases, verify
    from ddpbench.strategies import PROMISES, TABLE

    cases = []
    for workload, strategies in _by_workload(arguments.strategy or list(TABLE), arguments.workload).items():
        cases += verification_cases(
            strategies,
            [workload],
            arguments.world_size,
            arguments.backend,
            algorithms=arguments.algorithm,
            schedules=arguments.schedule,
        )
    headed = False

    def told(verdict: Verdict) -> None:
        nonlocal headed
        if not arguments.json:
            head = f"{'strategy':<{WIDTH}} {'workload':<10} ranks  {'result':<9} largest error\n"
            print("" if headed else head, _line(verdict), sep="", flush=True)  # noqa: T201
            headed = True

    verdicts = verify(cases, told, hang_timeout_s=arguments.hang_timeout)
    if arguments.json:
        json.dump([asdict(verdict) for verdict in verdicts], sys.stdout, indent=1)
    else:
        proved = sum(verdict.status == "ok" for verdict in verdicts)
        skipped = sum(verdict.status == "skipped" for verdict in verdicts)
        broken = len(verdicts) - proved - skipped
        print(f"{proved} proved, {broken} not, {skipped} skipped")  # noqa: T201
        for name, words in PROMISES.items():
            if name != "gradients" and any(verdict.promise == name for verdict in verdicts):
                print(f"{name}: {words}")  # noqa: T201
    return 0 if all(verdict.status in ("ok", "skipped") for verdict in verdicts) else 1


def _by_workload(strategies: list[str], workloads: list[str] | None) -> dict[str, list[str]]:
    """Return which strategies to prove with which workload."""
    if workloads is not None:
        return dict.fromkeys(workloads, strategies)
    from ddpbench.strategies import TABLE, load_strategy

    beside = [name for name in strategies if name in TABLE and load_strategy(name).pieces == "branches"]
    others = [name for name in strategies if name not in beside]
    chosen = {"mlp": others, "gpt:nano": others, "two_branch": beside}
    return {workload: names for workload, names in chosen.items() if names}


def _line(verdict: Verdict) -> str:
    who = " ".join([verdict.strategy, *verdict.chosen, verdict.options]).rstrip()
    head = f"{who:<{WIDTH}} {verdict.workload:<10} {verdict.world_size:>5}  {verdict.status:<9}"
    if verdict.status != "ok":
        return f"{head} {verdict.reason}"
    worst: dict[str, float] = {}
    kept = 0.0
    for proof in verdict.proofs:
        if proof.compared == "share of gradients kept back":
            kept = max(kept, proof.error)
        elif 0 < proof.tolerance < 1:  # others are yes or no
            worst[proof.dtype] = max(worst.get(proof.dtype, 0.0), proof.error)
    errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in worst.items())
    if kept:
        errors += f", kept back {100 * kept:.0f} %"
    if verdict.promise != "gradients":
        errors = f"{verdict.promise}{': ' if errors else ''}{errors}"
    return f"{head} {errors}"
