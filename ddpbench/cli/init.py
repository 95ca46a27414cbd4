"""`ddpbench init SCRIPT`: writes the class that lets a training script be measured, as far as the script shows it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ddpbench.cli.lines import show
from ddpbench.texts import command


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "init",
        help="print, or insert, the class that makes a training script a workload",
        description="Read a training script, without running it, and print the class Measured that makes it a "
        "workload. What the script does not show is a line with `...` and a comment that says what belongs there.",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a training script, such as train.py")
    parser.add_argument("--write", action="store_true", help="insert the class into the script")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.launch.own_class import NAME, inserted, place_of, read_script, written_class
    from ddpbench.records.outputs import replace_user_file

    script = read_script(arguments.script)
    line = place_of(script)
    written = written_class(script)
    if arguments.write:
        replace_user_file(arguments.script, inserted(script, written.text).encode(script.encoding))
        _say(f"wrote class {NAME} into {arguments.script}, line {line}")
    else:
        show(written.text.rstrip("\n"))
        where = 'before `if __name__ == "__main__":`' if script.guard else "at the end"
        _say(f"goes into {arguments.script} {where}, line {line}; --write inserts it")
    for each in written.left:
        _say(f"to do: {each}")
    _say(f"try it: {command('ddpbench', 'sweep', 'quick', '--workload', f'{arguments.script}:{NAME}')}")
    return 0


def _say(line: str) -> None:
    show(line, file=sys.stderr)
