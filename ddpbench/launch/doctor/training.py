"""Check which backends, devices, strategies and workloads can be used on this machine, and give the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpbench.errors import DdpbenchError, MachineError
from ddpbench.launch.devices import within_gpus
from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import Host
from ddpbench.launch.doctor.software import CHOOSE_A_BUILD
from ddpbench.launch.shipped_names import hidden_names
from ddpbench.spec import Catalog, Devices, expand, parse_experiment
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.strategies.frameworks.installed import missing
from ddpbench.text_safety import command, toml_text

_MPI_ASKED = 'backend = "mpi": '
WORLD_SIZES = (1, 2, 4)
"""World sizes to try, on one and two nodes; any strategy that can run here can use at least one."""
MODELS = ("mlp", "two_branch")
"""Models to try. Any strategy that can run here can train one of them; some strategies need a model with branches."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train on this machine: a kind of device, its backend, and the number of ranks that get a device each."""

    device: str
    backend: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.device} with {self.backend}, {self.ranks} rank{'s' if self.ranks != 1 else ''}"


def ways(host: Host) -> list[Way]:
    """Return the ways to train here, GPUs first; none without Linux, or without torch and gloo."""
    facts = host.torch().facts
    if facts is None or not facts["distributed"] or not facts["built_in"]["gloo"]:
        return []
    try:
        hardware = host.hardware()
    except MachineError:
        return []
    found = [Way("cpu", "gloo", hardware.devices(gpus=0).ranks("cpu", threads_per_rank=1))]
    if facts["gpus"] and facts["built_in"]["nccl"]:
        found.insert(0, Way("cuda", "nccl", len(facts["gpus"])))
    return found


def backends(host: Host) -> Iterator[CheckResult]:
    """Report the backends that torch has, and why others are missing."""
    facts = host.torch().facts
    if facts is None or not facts["distributed"]:
        return
    built_in, gpus = facts["built_in"], len(facts["gpus"])
    if built_in["gloo"]:
        yield ok("gloo", "built in: moves data between CPUs, and ddpbench's own messages")
    else:
        yield problem(
            "gloo",
            "not in this build of torch, but ddpbench's ranks need it on any device",
            f"install a build with it: pip install torch; {CHOOSE_A_BUILD}",
            blocks=True,
        )
    version = f" ({facts['nccl']})" if facts["nccl"] else ""
    if built_in["nccl"] and gpus:
        yield ok("nccl", f"built in{version}: moves data between GPUs")
    elif built_in["nccl"]:
        yield ok("nccl", "built in, but unused: torch finds no usable GPU")
    elif host.hardware().may_have_gpus:
        yield problem(
            "nccl",
            "not in this build of torch, so GPUs cannot exchange gradients",
            f"install a build with CUDA: {CHOOSE_A_BUILD}",
        )
    else:
        yield ok("nccl", "not in this build of torch; not needed, because this machine has no GPU")
    if facts["mpi"]:
        yield ok("mpi", f'{facts["mpi"]}, through mpi4py: moves data between CPUs with backend = "mpi"')
    else:
        yield ok("mpi", f"not available: {facts['why_no_mpi'].removeprefix(_MPI_ASKED)}")
    there = 'built in: backend = "ucc", on CPUs and GPUs' if built_in["ucc"] else "only in builds from source"
    yield ok("ucc", there)


def devices(host: Host) -> Iterator[CheckResult]:
    """Report the kinds of devices, and for each kind how many ranks can each have a device."""
    facts = host.torch().facts
    for way in ways(host):
        unit = "GPU" if way.device == "cuda" else "core"
        plural = "s" if way.ranks != 1 else ""
        yield ok(way.device, f"{way.ranks} rank{plural} with one {unit} each, over {way.backend}")
    for kind in facts.get("other_devices", []) if facts else []:
        yield note(
            kind,
            "torch can use such a device; ddpbench cannot",
            'measure on "cpu" or "cuda": other devices have no clock and no backend in ddpbench yet',
        )


def _devices_of(way: Way) -> Devices:
    gpus = way.ranks if way.device == "cuda" else 0
    return Devices(kind=way.device, gpus=gpus, cores=way.ranks)


def why_not(
    catalog: Catalog, way: Way, *, strategy: str, workload: str, sizes: Sequence[int] = WORLD_SIZES
) -> str | None:
    """Return why no case of this strategy and workload can run on the device of `way`; None if a case can."""
    text = (
        f"[base]\nstrategy = {toml_text(strategy)}\nworkload = {toml_text(workload)}\n"
        f"device = {toml_text(way.device)}\n[axes]\nworld_size = {list(sizes)}\n"
        'nodes = [1, 2]\nlauncher = ["local", "torchrun"]\n'
    )
    at_hand = _devices_of(way)
    try:
        experiment = parse_experiment(text, catalog, name="doctor")
        cases = expand(experiment, catalog, at_hand)
    except (DdpbenchError, ValueError) as error:  # options without a default
        return str(error).splitlines()[-1].strip()
    reasons = [
        within_gpus(entry, at_hand).skip_reason
        for entry in cases
        if entry.case.strategy == strategy and not entry.added_as_baseline
    ]
    return None if None in reasons else reasons[0]


def _why_no_model(catalog: Catalog, way: Way, strategy: str) -> str | None:
    reasons = [why_not(catalog, way, strategy=strategy, workload=model) for model in MODELS]
    return None if None in reasons else reasons[0]


def strategies(host: Host) -> Iterator[CheckResult]:
    """Report for each kind of device which strategies can train on it."""
    for way in ways(host):
        reasons = {name: _why_no_model(host.catalog, way, name) for name in host.catalog.strategy_names()}
        absent = [name for name in reasons if _lacks_framework(name)]
        yield from _listed("strategies", way, {name: reasons[name] for name in reasons if name not in absent})
        if absent and way.device == "cpu":
            yield note(
                "frameworks",
                f"not installed, or too old: {', '.join(absent)}",
                f"run {command('pip', 'install', 'ddpbench[frameworks]')} to measure them too",
            )


def _lacks_framework(strategy: str) -> bool:
    framework = load_strategy(strategy).framework if strategy in TABLE else ""
    return bool(framework and missing(framework))


def workloads(host: Host) -> Iterator[CheckResult]:
    """Report for each kind of device which workloads can train on it, tested with the strategy `single`."""
    for way in ways(host):
        reasons = {
            name: why_not(host.catalog, way, strategy="single", workload=name)
            for name in host.catalog.workload_names()
        }
        yield from _listed("workloads", way, reasons)


def packages(_host: Host) -> Iterator[CheckResult]:
    """Report classes of installed packages that cannot be used by name, because ddpbench itself uses the name."""
    for sentence in hidden_names():
        found, _, advice = sentence.rpartition(": ")
        yield note("packages", found, advice)


def _listed(subject: str, way: Way, reasons: dict[str, str | None]) -> Iterator[CheckResult]:
    names_of: dict[str | None, list[str]] = {}
    for name, reason in reasons.items():
        names_of.setdefault(reason, []).append(name)
    if able := names_of.pop(None, []):
        yield ok(f"{way.device} {subject}", ", ".join(able))
    for reason, names in names_of.items():
        yield note(
            names[0] if len(names) == 1 else f"{names[0]} ...",
            f"not on {way.device}: {', '.join(names)}: {reason}",
            f"fix the cause above, or leave {'it' if len(names) == 1 else 'them'} out of experiments on "
            f"{way.device} here",
        )


def features(host: Host) -> Iterator[CheckResult]:
    """Report whether this build of torch has `torch.distributed.rpc`."""
    facts = host.torch().facts
    if facts is None or not facts["distributed"]:
        return
    if facts["rpc"]:
        yield ok("torch rpc", "built in")
    else:
        yield note(
            "torch rpc",
            "not in this build of torch: strategies that need torch.distributed.rpc cannot run",
            f"to use such strategies, install another build of torch: pip install torch; {CHOOSE_A_BUILD}",
        )


def verdict(host: Host, findings: Sequence[CheckResult]) -> CheckResult:
    """Return the verdict: whether and how anything can be trained here, or what is missing."""
    blocking = [finding for finding in findings if finding.blocks]
    found = ways(host)
    if found and not blocking:
        problems = sum(finding.level == "problem" for finding in findings)
        but = (
            f", but not all of it: see the {problems} problem{'s' if problems != 1 else ''}"
            if problems
            else ""
        )
        return ok("training", f"Training can run here: {'; '.join(map(str, found))}{but}")
    causes = "; ".join(f"{finding.subject}: {finding.found}" for finding in blocking)
    return problem(
        "training",
        f"Training cannot run here: {causes or 'torch offers no way to train'}",
        "; ".join(dict.fromkeys(finding.advice for finding in blocking)) or "fix the problems found",
        blocks=True,
    )
