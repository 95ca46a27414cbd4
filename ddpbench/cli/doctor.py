"""`ddpbench doctor`: report what can run on this machine, and why other things cannot and what to do."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags, lines
from ddpbench.errors import RequestError
from ddpbench.text_safety import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ddpbench.launch.doctor import CheckResult

_MARKS = {"ok": "✓", "note": "!", "problem": "✗"}
_PLAIN_MARKS = {"ok": "+", "note": "!", "problem": "x"}
_SUBJECT_WIDTH = 16
"""The longest subject, in characters, whose finding follows on the same line."""
_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check what can run on this machine and what to fix",
        description="Check in a few seconds torch, backends, strategies, cores, memory, GPUs, network, limits and "
        "environment, without training. Exit with 1 if nothing can train here. With --nodes, nodes of a "
        "job check their interfaces, connections, bandwidths and clocks with each other.",
    )
    parser.add_argument(
        "--nodes",
        action=flags.Joined,
        metavar="A,B",
        help="nodes to check with each other; run the same command on each, or once under srun with --nodes slurm",
    )
    parser.add_argument(
        "--port", type=flags.number("--port", "PORT"), help="free port of the first node (default: 29501)"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also describe checks that found no problem (--nodes implies this)",
    )
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.launch.doctor import examine

    if arguments.nodes is not None:
        from ddpbench.launch.doctor.nodes.checking import PORT, check_nodes

        said: set[str] = set()

        def waiting(text: str) -> None:
            if text not in said:
                said.add(text)
                lines.say(text, sys.stderr)

        found = check_nodes(arguments.nodes, arguments.port or PORT, waiting=waiting)
        if found is None:  # the first node prints
            return 0
        findings = list(found)
    elif arguments.port is not None:
        raise RequestError("--port is for --nodes")
    else:
        findings = examine()
    if arguments.json:
        lines.show(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        from ddpbench.cli.console import Progressive

        show(findings, Progressive(stderr=False), verbose=arguments.verbose or arguments.nodes is not None)
    return 0 if findings[-1].level == "ok" else 1


def show(findings: Sequence[CheckResult], console: Console, *, verbose: bool = False) -> None:
    """Print the verdict, which is the last finding, then the notes and problems under their topics.

    Findings that need no action are only named, unless `verbose`.
    """
    from rich.text import Text

    *every, verdict = (_cleaned(finding) for finding in findings)
    listed = [finding for finding in every if verbose or finding.level != "ok"]
    unicode = console.encoding.lower().startswith("utf")
    marks, arrow = (_MARKS, "→") if unicode else (_PLAIN_MARKS, "->")
    words = {finding: f"{marks[finding.level]} {finding.level}" for finding in (*listed, verdict)}
    level_width = max(map(len, words.values()))
    subjects = [len(finding.subject) for finding in listed]
    subject_width = max((size for size in subjects if size <= _SUBJECT_WIDTH), default=0)
    indent = 2 + level_width + 2 + subject_width + 2
    console.print(Text(verdict.found, style=f"bold {_STYLES[verdict.level]}"), soft_wrap=True)
    counts = [
        f"{count} {level}{'s' if count != 1 else ''}"
        for level in ("problem", "note")
        if (count := sum(finding.level == level for finding in every))
    ]
    console.print(Text(", ".join(counts) or "nothing to do"))
    topic = ""
    for finding in listed:
        if finding.topic != topic:
            topic = finding.topic
            console.print(Text(f"\n{topic}", style="bold"))
        style = _STYLES[finding.level]
        line = Text("  ").append(words[finding].ljust(level_width + 2), style=style)
        line.append(finding.subject.ljust(subject_width + 2))
        lines = _wrapped(finding.found, console.width - indent)
        if len(finding.subject) <= subject_width:
            line.append(lines.pop(0))
        console.print(line, soft_wrap=True)
        for text in lines:
            console.print(Text(" " * indent + text), soft_wrap=True)
        for number, text in enumerate(_wrapped(finding.advice, console.width - indent - len(arrow) - 1)):
            lead = arrow if number == 0 else " " * len(arrow)
            console.print(Text(" " * indent).append(lead, style=style).append(f" {text}"), soft_wrap=True)
    if fine := [finding.subject for finding in every if finding not in listed]:
        console.print()
        for text in _wrapped(
            f"ok: {', '.join(fine)} (ddpbench doctor --verbose describes them)", console.width
        ):
            console.print(Text(text), soft_wrap=True)


def _cleaned(finding: CheckResult) -> CheckResult:
    return replace(finding, found=clean(finding.found), advice=clean(finding.advice))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
