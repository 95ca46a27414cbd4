"""`ddpbench noise`: A against A on this machine, and the smallest change it can resolve in a given time."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import show


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "noise",
        help="run an A/A test: the smallest difference this machine can detect",
        description="Run one case twice per round, as if it were two, and report how far apart equal "
        "cases appear on this machine, and how small a difference it can detect in how much "
        "time.",
    )
    parser.add_argument("--workload", default="gpt:nano", help="default: gpt:nano")
    parser.add_argument("--strategy", default="ddp", help="default: ddp")
    parser.add_argument(
        "--world-size", type=flags.number("--world-size", "RANKS"), default=2, help="default: 2"
    )
    parser.add_argument("--rounds", type=flags.number("--rounds", "AA_ROUNDS"), default=8, help="default: 8")
    parser.add_argument(
        "--measured",
        type=flags.number("--measured", "MEASURED_S"),
        default=1.0,
        metavar="SECONDS",
        help="timed steps of a launch (default: 1)",
    )
    flags.out(parser)
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import tempfile

    from rich.console import Console

    from ddpbench.analysis import noise_of
    from ddpbench.cli.progress import listening
    from ddpbench.launch.sweep.preparation import SweepRequest, prepare
    from ddpbench.launch.sweep.sweep import Sweep

    text = f"""
        question = "How far apart do two equal things look on this machine?"
        [base]
        workload = {json.dumps(arguments.workload)}
        strategy = {json.dumps(arguments.strategy)}
        world_size = {arguments.world_size}
        [axes]
        replicate = [0, 1]
        [budget]
        rounds_min = {arguments.rounds}
        rounds_max = {arguments.rounds}
        measured_s = {arguments.measured}
    """
    with tempfile.TemporaryDirectory(prefix="ddpbench-noise-") as folder:
        experiment = Path(folder) / "noise.toml"
        experiment.write_text(text, encoding="utf-8")
        prepared = prepare(SweepRequest(experiment=experiment, out=arguments.out))
    console = Console(stderr=True, highlight=False, emoji=False)
    try:
        with listening(console) as listener:
            Sweep(prepared, listener).run()
    except KeyboardInterrupt:
        console.print("interrupted", markup=False)
        raise
    found = noise_of(prepared.run)
    if arguments.json:
        show(json.dumps({"run_dir": str(prepared.run.path), **asdict(found)}, indent=1))
    else:
        show(found.describe())
        show(f"records: {prepared.run.path}")
    return 0
