"""Write a proposal's sentences: the recommended job size and why, the lengths of epochs and runs, and the method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddpbench.analysis.statistics.estimands import MEDIAN_LAUNCH
from ddpbench.features.allocation.analysis.allocation import Allocation, JobSize
from ddpbench.report.words import launches_each, ranks
from ddpbench.units import counted, format_seconds
from ddpbench.version import VERSION


def choice(allocation: Allocation) -> str:
    """Return a few sentences that say which job size is recommended, and why."""
    chosen, cut = allocation.chosen, f"{allocation.cut:g}"
    sized = [job for job in allocation.jobs if not job.base]
    words: list[str] = []
    if chosen.base:
        best = max(sized, key=lambda job: job.surest_efficiency)
        words.append(
            f"Chosen job size: 1 rank. No larger one has an efficiency of {cut} or more with its whole 95 % interval; "
            f"{ranks(best.world_size)} {_comes(best)} nearest with {_efficiency(best)}."
        )
    else:
        sure = (
            "with its whole 95 % interval"
            if chosen.efficiency.low is not None
            else "(its value; there are too few rounds for an interval)"
        )
        words.append(
            f"Chosen job size: {_job_name(chosen, allocation.unit)}, the largest measured whose efficiency, "
            f"{_efficiency(chosen)}, is at or above {cut} {sure}."
        )
        larger = [job for job in sized if job.world_size > chosen.world_size]
        if larger:
            following = min(larger, key=lambda job: job.world_size)
            verdict = (
                f"with an interval that reaches beneath {cut}"
                if following.efficiency.value >= allocation.cut
                else f"beneath {cut}"
            )
            words.append(f"At {ranks(following.world_size)} it is {_efficiency(following)}, {verdict}.")
        else:
            words.append("No larger job size was measured, so that a larger one may do as well.")
    return " ".join([*words, *_finishing(allocation)])


def _comes(job: JobSize) -> str:
    return "comes" if job.world_size == 1 else "come"


def _efficiency(job: JobSize) -> str:
    return str(job.efficiency)


def _finishing(allocation: Allocation) -> list[str]:
    first, chosen = allocation.first, allocation.chosen
    if first is None or first.wait_s is None or first.run_s is None or first.finish_s is None:
        return []
    name = ranks(first.world_size)
    if first.base:
        name += " (the base case)"
    verb = "finishes" if first.world_size == 1 else "finish"
    known = " and ".join(
        word
        for word, any_ in (("recorded", allocation.waits_recorded), ("given", allocation.waits_given))
        if any_
    )
    text = (
        f"With the queue waits {known}, {name} {verb} first: {format_seconds(first.wait_s)} of waiting and "
        f"{format_seconds(first.run_s.value)} of running are {format_seconds(first.finish_s)}"
    )
    if first is chosen:
        return [f"{text}; the chosen size is that one."]
    if chosen.finish_s is None:
        return [f"{text}; for the chosen size no wait is known."]
    return [f"{text}; the chosen size takes {format_seconds(chosen.finish_s)}."]


def _waits(allocation: Allocation) -> str:
    if not allocation.waits_recorded:
        return "Queue waits are given, not measured."
    own = f"Queue waits are those of {counted(allocation.waits_recorded, 'job')} of this run: queues change."
    if not allocation.waits_given:
        return own
    *others, last = allocation.waits_given
    if not others:
        return f"{own} That of {ranks(last)} is given, not measured."
    sizes = f"{', '.join(map(str, others))} and {ranks(last)}"
    return f"{own} Those of {sizes} are given, not measured."


def _job_name(job: JobSize, unit: str) -> str:
    return f"{ranks(job.world_size)} ({counted(job.devices, unit)} on {counted(job.nodes, 'node')})"


def length(allocation: Allocation) -> str:
    """Return sentences about the lengths of an epoch and a run, the queue waits, and how cores or GPUs are counted."""
    words: list[str] = []
    if allocation.samples_per_epoch is not None:
        words.append(
            f"An epoch is {allocation.samples_per_epoch:,} samples "
            f"({'the dataset as recorded' if allocation.samples_recorded else 'given, not recorded'}), "
            "rounded up to whole steps."
        )
    if allocation.epochs is not None:
        words.append(f"A run is {counted(allocation.epochs, 'epoch')}.")
    elif allocation.steps is not None:
        more = (
            "; under weak scaling a larger job sees more samples in it"
            if allocation.scaling == "weak"
            else ""
        )
        words.append(f"A run is {counted(allocation.steps, 'step')}{more}.")
    if allocation.first is not None:
        words.append(_waits(allocation))
    if allocation.unit == "core":
        each = counted(allocation.threads_per_rank, "thread")
        workers = (
            f" and {counted(allocation.loader_workers, 'loader worker')}" if allocation.loader_workers else ""
        )
        words.append(f"A core is counted for each thread: {each}{workers} a rank.")
    words.append(f"A centre that charges whole nodes counts all of their {allocation.unit}s.")
    return " ".join(words)


def saving(allocation: Allocation) -> str:
    """Return a few sentences about the best snapshot period; empty if no time between failures is given."""
    saved = allocation.saving
    if saved is None:
        return ""
    recovery = (
        f"{format_seconds(saved.restored_s)} until training continues after a failure, means over launches"
        if saved.restored_s is not None
        else "mean over launches; a recovery was not measured and is left out"
    )
    return (
        f"With a failure every {format_seconds(saved.mtbf_s)} (given), the best period between snapshots is "
        f"{format_seconds(saved.period_s)} of training (Young {format_seconds(saved.young_s)}, Daly "
        f"{format_seconds(saved.daly_s)}); {100 * saved.ettr:.2f} % of the time then trains, and the rest comes on top "
        f"of the times above. Measured: {format_seconds(saved.snapshot_s)} a snapshot, {recovery} ({saved.measured})."
    )


def method(allocation: Allocation) -> str:
    """Return a paragraph that says how the numbers were measured, and on which hardware and software."""
    identity = allocation.machine.get("identity") or {}
    context = allocation.machine.get("context") or {}
    programs = [
        f"{name} {_as_text(identity[key])}"
        for key, name in (
            ("torch", "PyTorch"),
            ("python", "Python"),
            ("cuda", "CUDA"),
            ("nccl", "NCCL"),
            ("driver", "NVIDIA driver"),
            ("kernel", "Linux"),
        )
        if identity.get(key)
    ]
    commit = f", commit {context['git_commit']}" if context.get("git_commit") else ""
    base = allocation.jobs[0]
    written_by = context.get("ddpbench_version") or VERSION
    launched = launches_each(job.launches for job in allocation.jobs)
    threads = counted(allocation.threads_per_rank, "thread")
    place = "with a GPU of its own" if allocation.unit == "GPU" else "pinned to cores of its own"
    step = base.step_s.scaled(1e3)
    text = (
        f"Measured with ddpbench {written_by}{commit} on {_hardware(identity)}; {', '.join(programs)}. Workload "
        f"{allocation.setting}, {allocation.dtype}, {threads} per rank; strategy {allocation.name}. Each job size was "
        f"launched as fresh processes, each rank {place} ({launched}), in rounds that run every "
        "case once in random order. A launch warms up until its steps show no trend, and then times steps in blocks "
        "between barriers. Speed-up and efficiency are ratios of samples per second to the base case within rounds, "
        f"with 95 % t-intervals; samples per second, step and epoch are those of the {MEDIAN_LAUNCH}. "
        f"Base case: a single process, {base_rate(allocation)}, {step} ms a step."
    )
    merged = context.get("merged_from") or []
    if merged:
        text += (
            f" The runs of {len(merged)} allocations were merged; ratios are taken within each run's rounds."
        )
    if allocation.proved:
        text += " Each case's gradients were proved equal to those of one process before it was timed."
    if allocation.disturbed:
        text += (
            f" {allocation.disturbed} of {counted(allocation.launches, 'launch', 'launches')} were disturbed (stolen "
            "time, foreign load or clock changes); they are kept."
        )
    return text


def _hardware(identity: Mapping[str, Any]) -> str:
    nodes = len(identity.get("slots") or ())
    cores = sorted({len(one) for one in _by_host(identity.get("cores"))} or {0})
    usable = counted(cores[0], "core") if len(cores) == 1 else f"{cores[0]} to {cores[-1]} cores"
    text = f"{_as_text(identity.get('cpu')) or 'an unnamed processor'} ({usable} usable)"
    kinds = [Counter(map(str, one)) for one in _by_host(identity.get("gpus"))]
    listed = [", ".join(f"{count} x {name}" for name, count in kind.items()) for kind in kinds]
    gpus = " or ".join(dict.fromkeys(filter(None, listed)))
    text += f" with {gpus}" if gpus else ""
    return f"{nodes} nodes, each {text}" if nodes > 1 else text


def _by_host(value: Any) -> list[Any]:
    """Return a fact's value per host if it is listed by host, otherwise its only value."""
    return list(value.values()) if isinstance(value, Mapping) else [value or ()]


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " or ".join(dict.fromkeys(str(one) for one in value.values() if one))
    return str(value or "")


def base_rate(allocation: Allocation) -> str:
    """Return a phrase that gives the samples per second of a single process, with their interval."""
    return f"{allocation.base_rate} samples/s"


def paragraphs(parts: Sequence[str]) -> list[str]:
    """Return paragraphs as the lines of a file, separated by empty lines."""
    return [line for part in parts for line in (part, "")][:-1]
