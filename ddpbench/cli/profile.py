"""`ddpbench profile`: measure a workload's times, so that they can be replayed."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.cli import flags
from ddpbench.cli.lines import show

if TYPE_CHECKING:
    from ddpbench.workloads.profile import Profile, Seconds


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "profile",
        help="measure a workload's times for replay",
        description="Measure on one device the times of forward, backward and update, and when each gradient is "
        'ready. Write them to a JSON file, which workload = "replay:FILE" replays without computing.',
    )
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="workload, such as gpt:nano or train.py:MyWorkload"
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device (default: a GPU if there is one)",
    )
    parser.add_argument(
        "--local-batch",
        type=flags.number("--local-batch", "LOCAL_BATCH"),
        metavar="N",
        help="samples per step (default: your class's batch, or else 8)",
    )
    parser.add_argument(
        "--steps",
        type=flags.number("--steps", "PROFILED_STEPS"),
        metavar="N",
        help="number of steps (default: 30, or more to fill 5 s)",
    )
    flags.overrides(parser, "--set options.gpt.block_size=32")
    flags.output_file(parser, "--out", "profile's file (default: WORKLOAD-DEVICE.json, overwritten)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ddpbench.launch.profiling import ProfileRequest, measure_profile, prepare_profile
    from ddpbench.naming import words_of
    from ddpbench.records.outputs import is_stream
    from ddpbench.text_safety import toml_text

    prepared = prepare_profile(
        ProfileRequest(
            workload=arguments.workload,
            device=arguments.device,
            local_batch=arguments.local_batch,
            steps=arguments.steps,
            overrides=arguments.overrides,
            out=arguments.out,
        )
    )
    case = prepared.case
    printed = is_stream(prepared.out)
    stream = sys.stderr if printed else sys.stdout
    words = f"profiling {', '.join(words_of(case, ('workload', 'device', 'local_batch')))}"
    profile = measure_profile(prepared, partial(show, words, file=stream))
    for line in _summary(profile):
        show(line, file=stream)
    if not printed:
        show(f"wrote {prepared.out}; replay it with workload = {toml_text(f'replay:{prepared.out}')}")
    return 0


def _summary(profile: Profile) -> list[str]:
    from ddpbench.units import format_bytes, format_seconds

    widths = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
    size = sum(parameter.elements for parameter in profile.parameters) * widths[profile.dtype]
    first, last = (profile.parameters[profile.order[place]].ready_s.mean for place in (0, -1))
    moments = f"{format_seconds(first)} to {format_seconds(last)} after the start of backward"
    return [
        f"  forward    {_with_interval(profile.forward_s)}",
        f"  backward   {_with_interval(profile.backward_s)}",
        f"  optimizer  {_with_interval(profile.optimizer_s)}",
        f"  means over {profile.steps} steps with 95 % intervals, which do not include drift",
        f"  {len(profile.parameters)} gradients, {format_bytes(size)}, ready {moments}",
    ]


def _with_interval(seconds: Seconds) -> str:
    from ddpbench.units import format_seconds

    if seconds.low is None or seconds.high is None:
        return format_seconds(seconds.mean)
    low, high = format_seconds(seconds.low), format_seconds(seconds.high)
    return f"{format_seconds(seconds.mean)}  [{low}, {high}]"
