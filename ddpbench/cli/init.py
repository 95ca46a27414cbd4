"""`ddpbench init SCRIPT`: write, as far as possible, the class that lets ddpbench measure a training script."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.cli.lines import show
from ddpbench.text_safety import command

_SHOWN = 6
"""Maximum number of left-out statements printed per group. The class's comment lists all, with line numbers."""

if TYPE_CHECKING:
    from ddpbench.launch.own_class import Script, Written


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "init",
        help="print, or insert, the class that makes a training script a workload",
        description="Read a training script and print the class Measured that makes it a workload, what the class "
        "leaves out, and the settings to use instead. A line with `...` has to be filled in. Without such "
        "lines, one step is tried in a separate process. Exit codes: 0 the step works; 1 fill in a line, "
        "or the step fails; 2 the script cannot be read.",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="training script, such as train.py")
    parser.add_argument("--write", action="store_true", help="insert the class into the script")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.launch.own_class import (
        NAME,
        can_guard,
        inserted,
        package_of,
        place_of,
        read_script,
        written_class,
    )
    from ddpbench.launch.own_class.dropped import summary
    from ddpbench.launch.own_class.writing import in_toml
    from ddpbench.records.outputs import replace_user_file

    script = read_script(arguments.script)
    place_of(script)
    written = written_class(script)
    ends = written.ends if can_guard(script, written.ends) else []
    line = place_of(script, ends)
    text = written.whole
    moved = f", and puts {_lines(ends)} below a guard" if ends else ""
    works, sentence = _tried(script, written, inserted(script, text, ends))
    if arguments.write:
        replace_user_file(arguments.script, script.encoded(inserted(script, text, ends)))
        _say(f"wrote class {NAME} into {arguments.script}, line {line}{moved.replace('puts', 'put')}")
    else:
        show(text.rstrip("\n"))
        guarded = script.guard or ends
        where = 'before `if __name__ == "__main__":`' if guarded else "at the end"
        _say(f"goes into {arguments.script} {where}, line {line}; --write inserts it{moved}")
    for each in summary(written.dropped, _SHOWN):
        _say(f"left out: {each}")
    for setting in written.settings:
        _say(f"set in the experiment: {in_toml(setting)} (line {setting.line})")
    for each in written.notes:
        _say(f"note: {each}")
    for each in written.left:
        if not (ends and each.startswith("The script trains when it is imported")):
            _say(f"to do: {each}")
    _say(sentence)
    settings = [
        word for each in written.settings if each.value for word in ("--set", f"{each.key}={each.value}")
    ]
    package = package_of(script)
    module = str(arguments.script) if package is None else package[1]
    place = "" if package is None or package[0] == Path.cwd() else f" in {package[0]}"
    call = command("ddpbench", "sweep", "quick", "--workload", f"{module}:{NAME}", *settings)
    _say(f"{'try it' if works else 'once it works'}{place}: {call}")
    return 0 if works else 1


def _lines(statements: list[ast.stmt]) -> str:
    first, last = statements[0].lineno, statements[-1].end_lineno
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _tried(script: Script, written: Written, source: str) -> tuple[bool, str]:
    from ddpbench.errors import DdpbenchError
    from ddpbench.launch.own_class import can_guard, package_of
    from ddpbench.launch.own_class.trial import trial_of

    if written.is_open:
        return (
            False,
            "not finished: fill in the lines with `...`; then `ddpbench sweep` tries a step of the class",
        )
    if written.ends and not can_guard(script, written.ends):
        return False, "not tried, because importing the script would start training"
    if importlib.util.find_spec("torch") is None:
        return False, "not tried, because torch is not installed; run: pip install torch"
    try:
        works, sentence = trial_of(script.path, script.encoded(source), package=package_of(script))
    except DdpbenchError as error:
        return False, f"not tried: {error}"
    return works, f"tried one step: {sentence}" if works else f"does not work yet: {sentence}"


def _say(line: str) -> None:
    show(line, file=sys.stderr)
