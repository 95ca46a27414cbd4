"""`ddpbench verify`: prove that strategies train as a single process does, and print what was compared."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import broken, columns_here, say, show, wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from ddpbench.launch.verify import ProofVerdict
    from ddpbench.spec import Case

_HEAD = "largest error"
_NAME, _DETAIL = 20, 30
"""The smallest widths of the first and the last column on a terminal, in characters."""


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "verify",
        help="check strategies against single-process training",
        description="Train one step of each strategy on real ranks, and compare gradients and update with "
        "single-process training on the same shards. After two more updates all replicas must be equal. "
        "Inexact strategies are checked against what they promise. Exit with 1 if a check fails or "
        "nothing was proved.",
    )
    parser.add_argument("--strategy", nargs="+", default=None, help="strategies (default: all)")
    parser.add_argument(
        "--algorithm", nargs="+", default=None, help="algorithms, for strategies with a choice (default: all)"
    )
    parser.add_argument(
        "--schedule",
        nargs="+",
        choices=["overlapped", "after_backward"],
        help="schedules, for strategies with a choice (default: all)",
    )
    parser.add_argument(
        "--workload",
        nargs="+",
        help="workloads (default: mlp gpt:nano, and two_branch for strategies that need branches)",
    )
    parser.add_argument(
        "--world-size",
        nargs="+",
        type=flags.number("--world-size", "RANKS"),
        default=None,
        help="numbers of ranks (default: 1 2 3 4)",
    )
    parser.add_argument(
        "--backend",
        choices=["gloo", "nccl", "mpi"],
        default="gloo",
        help="nccl for GPUs, gloo or mpi for CPUs (default: gloo)",
    )
    parser.add_argument(
        "--hang-timeout",
        type=flags.number("--hang-timeout", "HANG_TIMEOUT_S"),
        default=120.0,
        metavar="SECONDS",
        help="seconds without progress after which a proof ends (default: 120)",
    )
    flags.overrides(parser, "--set options.ddp.static_graph=true")
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.launch.shipped_names import hidden_names
    from ddpbench.launch.verify import owned_overrides, registered_names, verification_cases, verify
    from ddpbench.strategies import TABLE

    named = {kind: getattr(arguments, kind) or [] for kind in ("strategy", "workload", "algorithm")}
    for sentence in hidden_names(named) if any(named.values()) else ():
        say(sentence, sys.stderr)
    groups = _by_workload(arguments.strategy or list(TABLE), arguments.workload)
    strategies_asked = dict.fromkeys(name for names in groups.values() for name in names)
    overrides = owned_overrides(arguments.overrides, strategies_asked, groups)
    cases = []
    for workload, strategies in groups.items():
        cases += verification_cases(
            strategies,
            [workload],
            arguments.world_size or [1, 2, 3, 4],
            arguments.backend,
            algorithms=arguments.algorithm,
            schedules=arguments.schedule,
            overrides=overrides,
        )
    columns = _Columns.of([entry.case for entry in cases], registered_names(strategies_asked, groups))
    headed = False

    def on_verdict(verdict: ProofVerdict) -> None:
        nonlocal headed
        if not arguments.json:
            head = [] if headed else [columns.head()]
            show(*head, *columns.lines(verdict))
            headed = True

    def kept(folder: Path) -> None:
        say(f"logs of the ranks: {folder}", sys.stderr)

    verdicts = verify(cases, on_verdict, hang_timeout_s=arguments.hang_timeout, on_logs=kept)
    results = Counter(verdict.result for verdict in verdicts)
    proved, unproved, skipped = results["ok"], results["unproved"], results["skipped"]
    broken = len(verdicts) - proved - unproved - skipped
    if arguments.json:
        results_json = [asdict(one) | {"result": one.result, "unproved": one.unproved} for one in verdicts]
        show(json.dumps(results_json, indent=1), end="")
    else:
        left = f", {unproved} unproved" if unproved else ""
        show(f"{proved} proved, {broken} not, {skipped} skipped{left}")
        for line in _promises(verdicts):
            say(line)
    if not proved and not broken:
        what = "skipped, or have nothing to compare" if unproved else "skipped"
        say(
            f"nothing was proved: all cases were {what}. Choose other strategies or another --world-size",
            sys.stderr,
        )
    return 0 if proved and not broken else 1


def _promises(verdicts: Sequence[ProofVerdict]) -> list[str]:
    from ddpbench.strategies import PROMISES

    kept = {one.promise for one in verdicts if one.result in ("ok", "unproved")} - {"gradients"}
    return [f"{name}: {words}" for name, words in PROMISES.items() if name in kept]


def _by_workload(strategies: list[str], workloads: list[str] | None) -> dict[str, list[str]]:
    if workloads is not None:
        return dict.fromkeys(workloads, strategies)
    from ddpbench.strategies import TABLE, load_strategy

    with_branches = [
        name for name in strategies if name in TABLE and load_strategy(name).pieces == "branches"
    ]
    others = [name for name in strategies if name not in with_branches]
    chosen = {"mlp": others, "gpt:nano": others, "two_branch": with_branches}
    return {workload: names for workload, names in chosen.items() if names}


@dataclass(frozen=True, slots=True)
class _Columns:
    """The widths of the table's columns; long names and reasons wrap to fit the terminal."""

    name: int
    workload: int
    detail: int
    """Width of the last column; 0 if unlimited, because other programs read the lines."""
    called: Mapping[str, str] = field(default_factory=dict)
    """Maps paths of classes to the names by which the user requested them."""

    @classmethod
    def of(cls, cases: Sequence[Case], called: Mapping[str, str]) -> _Columns:
        from ddpbench.launch.verify import name_of

        name = max((len(_called(name_of(case), case.strategy, called)) for case in cases), default=0)
        workloads = [called.get(case.workload, case.workload) for case in cases]
        name, workload = max(name, 8), max(8, *map(len, workloads))
        if not sys.stdout.isatty():
            return cls(name, workload, 0, called)
        left = columns_here() - workload - len(_line("", "", "", "", ""))
        name = min(name, max(left - _DETAIL, _NAME))
        return cls(name, workload, max(left - name, _DETAIL), called)

    def head(self) -> str:
        return _line(f"{'strategy':<{self.name}}", f"{'workload':<{self.workload}}", "ranks", "result", _HEAD)

    def lines(self, verdict: ProofVerdict) -> list[str]:
        names = broken(_called(verdict.name, verdict.strategy, self.called), self.name)
        detail = _detail(verdict)
        details = wrapped(detail, self.detail) if self.detail else [detail]
        first, *rest = zip_longest(names, details, fillvalue="")
        workload = self.called.get(verdict.workload, verdict.workload)
        middle = f"{workload:<{self.workload}}", str(verdict.world_size), verdict.result
        lines = [_line(f"{first[0]:<{self.name}}", *middle, first[1])]
        blank = " " * self.workload
        lines += [_line(f"{name:<{self.name}}", blank, "", "", detail) for name, detail in rest]
        return [line.rstrip() for line in lines]


def _called(name: str, strategy: str, called: Mapping[str, str]) -> str:
    return called.get(strategy, strategy) + name.removeprefix(strategy)


def _line(name: str, workload: str, ranks: str, result: str, detail: str) -> str:
    return f"{name} {workload} {ranks:>5}  {result:<8} {detail}"


def _detail(verdict: ProofVerdict) -> str:
    if verdict.result != "ok":
        return verdict.reason or verdict.unproved
    worst: dict[str, float] = {}
    kept = 0.0
    for proof in verdict.proofs:
        if proof.compared == "share of gradients kept back":
            kept = max(kept, proof.error)
        elif proof.was_made and proof.tolerance > 0:  # other proofs have no error to report
            worst[proof.dtype] = max(worst.get(proof.dtype, 0.0), proof.error)
    errors = ", ".join(f"{dtype} {f'{error:.1e}' if error else '0'}" for dtype, error in worst.items())
    if kept:
        errors += f", kept back {100 * kept:.0f} %"
    if verdict.promise != "gradients":
        errors = f"{verdict.promise}{': ' if errors else ''}{errors}"
    return "; ".join(filter(None, [errors, _left_out(verdict)]))


def _left_out(verdict: ProofVerdict) -> str:
    made = {proof.compared for proof in verdict.proofs if proof.was_made}
    left: dict[str, str] = {}
    for proof in verdict.proofs:
        if proof.compared not in made and not proof.compared.startswith(
            "gradients"
        ):  # some gradients are compared, or the verdict is unproved
            left.setdefault(proof.compared, proof.note)
    return "; ".join(f"not compared: {compared} ({note})" for compared, note in left.items())
