"""`ddpbench noise`: run an A/A test on this machine, and report the smallest change it can resolve in a given time."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpbench.cli import flags
from ddpbench.cli.lines import show

_FLAG_OF = {
    "base.workload": "--workload",
    "base.strategy": "--strategy",
    "base.world_size": "--world-size",
    "budget.measured_s": "--measured",
}
"""The flag that gives each setting of the temporary experiment."""


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "noise",
        help="run an A/A test: the smallest difference this machine can detect",
        description="Run one case twice per round; report how far apart equal cases appear on this machine, and "
        "which difference can be detected in which time, interleaved (compare --interleave), within one sweep, and by "
        "two runs.",
    )
    parser.add_argument("--workload", default="gpt:nano", help="workload (default: gpt:nano)")
    parser.add_argument("--strategy", default="ddp", help="strategy (default: ddp)")
    parser.add_argument(
        "--world-size",
        type=flags.number("--world-size", "RANKS"),
        default=2,
        help="number of ranks (default: 2)",
    )
    parser.add_argument(
        "--rounds",
        type=flags.number("--rounds", "AA_ROUNDS"),
        default=8,
        help="number of rounds (default: 8)",
    )
    parser.add_argument(
        "--measured",
        type=flags.number("--measured", "MEASURED_S"),
        default=1.0,
        metavar="SECONDS",
        help="seconds of timed steps per launch (default: 1)",
    )
    parser.add_argument(
        "--total",
        "--within",
        action=flags.Renamed,
        type=flags.number("--total", "PLANNED_S"),
        default=[],
        metavar="TIME",
        help="time for which to report the detectable difference, such as '5 min'; repeatable (--within: deprecated)",
    )
    parser.add_argument(
        "--resolve",
        action="append",
        default=[],
        type=flags.resolved,
        metavar="PERCENT",
        help="difference for which to report the time, such as 3%%; repeatable",
    )
    flags.out(parser)
    flags.as_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:

    from ddpbench.analysis import noise_of
    from ddpbench.cli.console import Progressive
    from ddpbench.cli.progress import listening
    from ddpbench.errors import ExperimentError, RequestError
    from ddpbench.guarded_folder import GuardedFolder
    from ddpbench.launch.own_workloads import located
    from ddpbench.launch.sweep.preparation import SweepRequest, prepare
    from ddpbench.launch.sweep.sweep import Sweep
    from ddpbench.text_safety import toml_text

    asked = _asked(arguments)
    text = f"""
        question = "How far apart do two equal things look on this machine?"
        [base]
        workload = {toml_text(located(arguments.workload, Path.cwd()))}
        strategy = {toml_text(located(arguments.strategy, Path.cwd()))}
        world_size = {arguments.world_size}
        [axes]
        replicate = [0, 1]
        [budget]
        rounds_min = {arguments.rounds}
        rounds_max = {arguments.rounds}
        measured_s = {arguments.measured}
    """
    with GuardedFolder("ddpbench-noise-") as folder:
        experiment = folder / "noise.toml"
        experiment.write_text(text, encoding="utf-8")
        try:
            prepared = prepare(SweepRequest(experiment=experiment, out=arguments.out))
        except ExperimentError as error:  # the experiment is a temporary file made from the flags
            problems = [replace(one, path=_FLAG_OF.get(one.path, one.path)) for one in error.problems]
            raise ExperimentError("noise", problems) from None
        except RequestError as error:
            raise error.reworded(str(error).replace(f"{experiment}: ", "")) from None
    console = Progressive()
    try:
        with listening(console) as listener:
            Sweep(prepared, listener).run()
    except KeyboardInterrupt:
        console.print("interrupted", markup=False)
        raise
    noise = noise_of(prepared.run, **asked)
    if arguments.json:
        show(json.dumps({"run_dir": str(prepared.run.path), **noise.to_json()}, indent=1))
    else:
        show(noise.describe())
        show(f"records: {prepared.run.path}")
    return 0


def _asked(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the requested times and changes as arguments of `noise_of`."""
    within = arguments.total
    return {"within_s": within, "changes": arguments.resolve} if within or arguments.resolve else {}
