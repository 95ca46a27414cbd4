"""Flags that several commands have: each is defined once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def number(flag: str, limit: str) -> Callable[[str], Any]:
    """Return what reads a flag's number: one that the table of limits has under that name."""

    def read(text: str) -> float:
        from ddpbench.spec import limits
        from ddpbench.spec.limits import Range

        allowed: Range = getattr(limits, limit)
        return allowed.read_flag(flag, text)

    return read


def share(text: str) -> float:
    """Return a flag's fraction, from `3%` or `0.03`.

    Raises:
        ArgumentTypeError: it is none, or not between 0 and 1.
    """
    from ddpbench.units import parse_share

    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def experiment(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """What to run. Without a default it must be given."""
    if default is None:
        parser.add_argument("experiment", metavar="EXPERIMENT", help="a name, a TOML file or a run directory")
    else:
        parser.add_argument(
            "experiment",
            nargs="?",
            default=default,
            metavar="EXPERIMENT",
            help=f"a name, a TOML file or a run directory (default: {default})",
        )


def overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Settings that take the place of the experiment's."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"override a setting: {example}",
    )


def workload(parser: argparse.ArgumentParser) -> None:
    """The shorter form of the setting that is given most often."""
    parser.add_argument(
        "--workload",
        dest="overrides",
        action="append",
        type=lambda name: f"base.workload={name}",
        metavar="NAME",
        help="what to train, such as train.py:Measured: short for --set base.workload=NAME",
    )


def out(
    parser: argparse.ArgumentParser,
    help: str = "the run directory (default: reports/NAME-TIME)",  # noqa: A002  argparse's word
    *,
    metavar: str = "DIR",
    required: bool = False,
) -> None:
    """Where files go."""
    parser.add_argument("--out", type=Path, metavar=metavar, help=help, required=required)


def turns(parser: argparse.ArgumentParser, who: str) -> None:
    """What two sides (`who`) take turns in."""
    parser.add_argument(
        "--turns",
        choices=("blocks", "launches"),
        help=f"what {who} take turns in: blocks of steps, while launches of both sides are in memory, or one launch "
        "after the other (default: blocks, where neither a GPU nor loader workers are used)",
    )


def as_json(parser: argparse.ArgumentParser, what: str = "the result") -> None:
    """For other programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def run_dir(parser: argparse.ArgumentParser, kind: str = "a sweep's run directory") -> None:
    """A run that is there."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help=kind)
