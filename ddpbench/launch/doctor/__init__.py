"""Find out what can and cannot run on this machine, with reasons and remedies.

A check in `CHECKS` takes a `Host` and yields findings. Checks only read, except for one that makes a link in a separate
network namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ddpbench.launch.doctor import (
    cores,
    environment,
    gpus,
    launchers,
    limits,
    load,
    memory,
    network,
    software,
    training,
)
from ddpbench.launch.doctor.finding import CheckLevel, CheckResult, note
from ddpbench.launch.doctor.host import CpuLoad, Host

Check = Callable[[Host], Iterable[CheckResult]]

CHECKS: dict[str, tuple[Check, ...]] = {
    "Software": (software.python, software.package, software.torch, software.cuda, training.features),
    "Training": (
        *(training.backends, training.devices),
        *(training.strategies, training.workloads, training.packages),
    ),
    "Cores": (cores.cores, cores.hyper_threads, cores.numa, cores.clocks, load.others, load.sweeps),
    "Memory": (memory.memory, memory.swap),
    "GPUs": (gpus.gpus, gpus.links),
    "Network": (
        *(network.interfaces, network.host_name),
        *(network.gloo, network.nccl, network.infiniband),
    ),
    "Limits": (
        *(limits.shared_memory, limits.open_files, limits.locked_memory),
        *(limits.processes, limits.disks),
    ),
    "Environment": (
        *(environment.threads, environment.debugging, environment.variables),
        *(environment.files, environment.sharing, environment.job),
    ),
    "Launchers": (launchers.torchrun, launchers.slurm, launchers.emulated_links),
}
"""Checks by topic, in the order in which findings are shown."""


def examine(host: Host | None = None) -> list[CheckResult]:
    """Return all findings in the order of `CHECKS`, followed by the verdict: `ok` if anything can be trained here."""
    host = host or Host()
    host.load = _load_of(host)
    with ThreadPoolExecutor(max_workers=4) as pool:
        host.begin(pool)
        # Topics that wait for torch run last, but findings keep the order of `CHECKS`.
        waiting = ("Software", "Training", "Launchers")
        order = sorted(CHECKS, key=lambda topic: topic in waiting)
        by_topic = {
            topic: [each for check in CHECKS[topic] for each in carry_out(check, host, topic)]
            for topic in order
        }
    findings = [finding for topic in CHECKS for finding in by_topic[topic]]

    def verdict(_: Host) -> Iterable[CheckResult]:
        yield training.verdict(host, findings)

    return [*findings, *carry_out(verdict, host, "Verdict")]


def _load_of(host: Host) -> CpuLoad | None:
    try:
        return load.watch(host)
    except Exception:
        return None


def carry_out(check: Check, host: Host, topic: str) -> list[CheckResult]:
    """Run a check and return its findings with their topic set. An exception in the check becomes a finding."""
    findings: list[CheckResult] = []
    try:
        findings.extend(check(host))
    except Exception as error:
        name = check.__name__.replace("_", " ")
        findings.append(
            note(
                name,
                f"not readable ({type(error).__name__}: {error})",
                "the other checks are not affected; please report this error",
            )
        )
    return [replace(finding, topic=topic) for finding in findings]


__all__ = ["CHECKS", "Check", "CheckLevel", "CheckResult", "Host", "carry_out", "examine"]
