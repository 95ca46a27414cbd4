"""Flags that several commands share, each defined once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Given(argparse.Action):
    """Stores a flag's value, or all distinct values of a repeated flag that takes several.

    A flag with one value cannot be repeated with a different value.
    """

    hint = "give it once"

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Store the values, or add them to earlier ones.

        Refuse a different second value for a flag that takes only one.

        Raises:
            ArgumentError: the flag takes one value and already has a different one.
        """
        before = getattr(namespace, self.dest, None) if self._repeated(namespace) else None
        if self.option_strings and isinstance(values, list):
            values = list(dict.fromkeys([*(before or []), *values]))
        elif before is not None and values != before:
            self._refuse(before, values)
        setattr(namespace, self.dest, values)

    def _repeated(self, namespace: argparse.Namespace) -> bool:
        given: set[str] = namespace.__dict__.setdefault("_given", set())
        again = bool(self.option_strings) and self.option_strings[0] in given
        given.update(self.option_strings[:1])
        return again

    def _refuse(self, before: object, now: object) -> None:
        from ddpbench.text_safety import given_twice

        raise argparse.ArgumentError(self, given_twice(before, now, self.hint))


class Joined(Given):
    """Stores a comma-separated list. If the flag is repeated, the lists are joined."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if self._repeated(namespace):
            values = f"{getattr(namespace, self.dest)},{values}"
        setattr(namespace, self.dest, values)


class _Setting(Given):
    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        self._add(namespace, values)

    def _add(self, namespace: argparse.Namespace, setting: str) -> None:
        overrides = [*(getattr(namespace, self.dest) or []), setting]
        setattr(namespace, self.dest, overrides)
        if len(overrides) == 1:  # a single setting needs no parsing, which would import more
            return
        from ddpbench.spec.overrides import GivenSettings

        known: GivenSettings | None = getattr(namespace, "_settings", None)
        if known is None:
            known = namespace._settings = GivenSettings()
            known.add(overrides[0])
        if twice := known.add(setting):
            self._refuse(*twice)


class _Workload(_Setting):
    hint = 'for several workloads give an axis: --set \'axes.workload=["NAME", "NAME"]\''

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Add the setting.

        Raises:
            ArgumentError: a different workload was given before.
        """
        setting, overrides = f"base.workload={values}", list(getattr(namespace, self.dest) or [])
        if self._repeated(namespace) and setting not in overrides:
            before = [one for one in overrides if one.startswith("base.workload=")]
            self._refuse(before[-1].partition("=")[2], values)
        self._add(namespace, setting)


class Renamed(argparse.Action):
    """Appends a value. If the flag was given by an old name, its current name is printed."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if option_string != self.option_strings[0]:
            from ddpbench.cli.lines import say

            say(f"{option_string} is deprecated: use {self.option_strings[0]}", sys.stderr)
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), values])


def number(flag: str, limit: str) -> Callable[[str], Any]:
    """Return a parser for the number that `flag` takes. `limit` names the allowed range in `ddpbench.spec.limits`."""

    def read(text: str) -> float:
        from ddpbench.spec import limits
        from ddpbench.spec.limits import Range

        allowed: Range = getattr(limits, limit)
        return allowed.read_flag(flag, text)

    return read


def share(text: str) -> float:
    """Return the fraction that a flag's text gives, such as 0.03 for `3%` or `0.03`.

    Raises:
        ArgumentTypeError: the text is not a number from 0 up to, but not including, 1.
    """
    from ddpbench.units import parse_share

    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def resolved(text: str) -> float:
    """Return the fraction that `--resolve` gives, such as 0.03 for `3%` or `0.03`.

    Raises:
        RequestError: the text is not a number above 0 and below 1.
    """
    from ddpbench.errors import RequestError
    from ddpbench.units import parse_share

    try:
        value = parse_share(text)
    except ValueError as error:
        raise RequestError(f"--resolve: {error}") from None
    if not value > 0:
        raise RequestError("--resolve: the change must be above 0, such as 3%")
    return value


def experiment(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the argument that names the experiment. Without a default it is required."""
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
    """Add `--set`, whose settings replace the experiment's settings."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action=_Setting,
        default=[],
        metavar="KEY=VALUE",
        help=f"override a setting, such as {example}",
    )


def workload(parser: argparse.ArgumentParser) -> None:
    """Add `--workload NAME`, short for `--set base.workload=NAME`."""
    parser.add_argument(
        "--workload",
        dest="overrides",
        action=_Workload,
        metavar="NAME",
        help="what to train, such as train.py:Measured",
    )


def out(
    parser: argparse.ArgumentParser,
    help: str = "run directory to write (default: reports/NAME-TIME)",  # noqa: A002  argparse's word
    *,
    metavar: str = "DIR",
    required: bool = False,
) -> None:
    """Add `--out`, where files are written."""
    parser.add_argument("--out", type=Path, metavar=metavar, help=help, required=required)


def output_path(text: str) -> Path:
    """Parse the path of an output file; `-` is standard output.

    Tests find arguments for output files by this `type`.

    Raises:
        ArgumentTypeError: the path ends with a slash, so that it can only be a folder.
    """
    if text.endswith("/"):
        from ddpbench.text_safety import shortened

        raise argparse.ArgumentTypeError(
            f"{shortened(text)} is a folder: name a file, a pipe or - for standard output"
        )
    return Path(text)


def output_file(parser: argparse.ArgumentParser, option: str, help: str) -> None:  # noqa: A002  argparse's word
    """Add an option that names an output file."""
    parser.add_argument(option, type=output_path, metavar="FILE", help=help)


def check_outputs(arguments: argparse.Namespace, *names: str) -> bool:
    """Check that a command's output files can be written; return whether one of them is standard output.

    Raises:
        RequestError: two outputs go to standard output, as `--json` also does, or to the same file.
        OutputError: a file cannot be written.
    """
    from ddpbench.errors import RequestError
    from ddpbench.records.outputs import STANDARD_OUTPUT, check_output

    given = {name: path for name in names if (path := getattr(arguments, name)) is not None}
    printed = [f"--{name} -" for name, path in given.items() if path == STANDARD_OUTPUT]
    if getattr(arguments, "json", False):
        printed.append("--json")
    if len(printed) > 1:
        raise RequestError(f"{' and '.join(printed)} both go to standard output: name a file for one of them")
    files: dict[Path, str] = {}
    for name, path in given.items():
        check_output(path)
        if path == STANDARD_OUTPUT or (path.exists() and not path.is_file()):
            continue  # a pipe or device can be written twice
        first = files.setdefault(path.resolve(), name)
        if first != name:
            both = f"--{first} and --{name} both write {given[first]}"
            raise RequestError(f"{both}: name another file for one of them")
    return STANDARD_OUTPUT in given.values()


def turns(parser: argparse.ArgumentParser) -> None:
    """Add `--turns`: two sides take turns after each block of steps, or after each launch."""
    parser.add_argument(
        "--turns",
        choices=("blocks", "launches"),
        help="what two sides take turns in: blocks of steps, with both sides in memory, or launches (default: blocks, "
        "unless GPUs or loader workers are used)",
    )


def as_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, for other programs."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def quiet(parser: argparse.ArgumentParser) -> None:
    """Add `-q`, for users who want the answer only."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only warnings, failed cases and the answer"
    )


def run_dir(parser: argparse.ArgumentParser, kind: str = "run directory of a sweep") -> None:
    """Add the argument that names an existing run."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help=kind)
