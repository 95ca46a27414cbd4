"""Check before a sweep whether its cases can answer the experiment's question on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.spec import Case, Devices, Experiment, PlannedCase
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted, series_of

_COMPARED = ("backend", "launcher", "device")
"""Settings whose values a machine may not support. The backend of a case without an exchange may be empty."""


def unanswerable(experiment: Experiment, entries: Sequence[PlannedCase], devices: Devices) -> str:
    """Return why these cases cannot answer the question on this machine, with advice; empty if they can.

    Empty for an experiment with claims, which are decided by their own pairs.
    """
    if experiment.claims:
        return ""
    if not any(entry.case.world_size > 1 or _is_measured_alone(entry.case) for entry in entries):
        return "the experiment has no case with several ranks, so its cases are measured but not ranked"
    why = _why(experiment, entries, devices)
    return f"this machine cannot answer the experiment's question: {why}" if why else ""


def _why(experiment: Experiment, entries: Sequence[PlannedCase], devices: Devices) -> str:
    runnable = [entry for entry in entries if entry.skip_reason is None]
    cases = [entry.case for entry in runnable]
    several = [entry for entry in runnable if entry.case.world_size > 1]
    exchanging = [entry for entry in several if traits_of(entry.case).exchanges]
    if any(map(_is_measured_alone, cases)):
        return ""
    if not several:
        return "no case with several ranks can run here"
    if not exchanging:
        return "no case that can run here aggregates gradients"
    if all(entry.oversubscribed for entry in exchanging):
        threads = min(entry.case.world_size * entry.case.threads_per_rank for entry in exchanging)
        return (
            f"every case that aggregates has more threads than the {counted(devices.cores, 'core')} "
            f"here (the smallest has {threads:,}), and oversubscribed cases are not ranked. Use fewer "
            "ranks, a machine with more cores, or a replay, which needs no core per rank: ddpbench "
            "profile"
        )
    return _lost(experiment, [entry.case for entry in entries], cases)


def _is_measured_alone(case: Case) -> bool:
    """Return whether a case answers a question by itself, without a case to compare it with."""
    return case.recovery != "off" or bool(case.checkpoint)


def _lost(experiment: Experiment, planned: Sequence[Case], runnable: Sequence[Case]) -> str:
    """Name an axis (backend, launcher or device) that has only one usable value here; empty if there is none."""
    for name in (name for name in _COMPARED if name in experiment.axes):
        every, left = (
            list(dict.fromkeys(value for case in cases if (value := getattr(case, name))))
            for cases in (planned, runnable)
        )
        if len(left) == 1 < len(every):
            values = series_of([f'"{value}"' for value in every])
            return (
                f'only "{left[0]}" of {name} = {values} can run here, so there is nothing to compare it with'
            )
    return ""
