"""`ddpbench list`: the strategies, workloads and experiments there are."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ddpbench.cli import flags


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("list", help="list strategies, workloads and experiments")
    flags.as_json(parser, "the lists")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import tomllib

    from ddpbench.launch.experiments import known_experiments
    from ddpbench.strategies import TABLE
    from ddpbench.workloads import summaries

    experiments: dict[str, str] = {}
    for name, path in known_experiments().items():
        try:
            experiments[name] = str(tomllib.loads(path.read_text(encoding="utf-8")).get("question", ""))
        except (OSError, ValueError) as error:
            experiments[name] = f"(cannot be read: {error})"
    sections = {
        "strategies": {name: entry.summary for name, entry in TABLE.items()},
        "workloads": summaries(),
        "experiments": experiments,
    }
    if arguments.json:
        print(json.dumps(sections, indent=2))  # noqa: T201
        return 0
    width = max(len(name) for section in sections.values() for name in section)
    for title, section in sections.items():
        print(title)  # noqa: T201
        for name, summary in section.items():
            print(f"  {name:<{width}}  {summary}")  # noqa: T201
    return 0
