"""Run the proofs that strategies are correct, for every requested workload and world size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from ddpbench.errors import ExperimentError, LaunchError, MachineError, Problem, nearest
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import usable_devices, within_gpus
from ddpbench.launch.own_workloads import resolved
from ddpbench.launch.plan import plan_launch
from ddpbench.launch.sweep.servers import Servers
from ddpbench.launch.watch import LaunchRunner
from ddpbench.machine.claim import claimed
from ddpbench.machine.disturbance import own_environment_allows_sharing
from ddpbench.machine.hardware import read_hardware
from ddpbench.machine.mpi import mpi_version
from ddpbench.machine.placement import early_env
from ddpbench.records import Proof, RunDir, Status, read_launch, why_unproved
from ddpbench.runtime.serving import ranks_for
from ddpbench.runtime.trial import inspect_own, within_own
from ddpbench.spec import Case, PlannedCase, expand, parse_experiment
from ddpbench.spec.catalog import known_names
from ddpbench.spec.grouping import option_words
from ddpbench.spec.overrides import Owner, option_models, setting_keys, with_whole_options
from ddpbench.strategies import Strategy, load_strategy
from ddpbench.user_files import short_name
from ddpbench.workloads.shipped import PREFIX

NOTHING_TO_PROVE = "it aggregates nothing, so there is nothing to prove"
"""The reason why strategies whose ranks train separately are not proved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofVerdict:
    """The result of a case's proof. `proofs` has all comparisons with the reference."""

    strategy: str
    algorithm: str
    schedule: str
    chosen: tuple[str, ...]
    """The algorithm and the schedule. Defaults of the strategy, and names without an alternative, are left out."""
    options: str
    """Options that differ from their defaults, such as `compression=fp16`."""
    promise: str
    """The proved promise, one of `strategies.PROMISES`; all but `gradients` allow inexact results by design."""
    workload: str
    world_size: int
    status: Status
    proofs: tuple[Proof, ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        """The strategy's name with the algorithm, schedule and options that differ from its defaults."""
        return " ".join(filter(None, [self.strategy, *self.chosen, self.options]))

    @property
    def unproved(self) -> str:
        """Why a case is not proved although it ran without error; empty otherwise."""
        if self.status != "ok":
            return ""
        return NOTHING_TO_PROVE if self.promise == "nothing" else why_unproved(self.proofs)

    @property
    def result(self) -> str:
        """The case's status, or `unproved`."""
        return "unproved" if self.unproved else self.status


def name_of(case: Case) -> str:
    """Return the name that a case's verdict will have."""
    return _verdict(case, "ok").name


def registered_names(strategies: Iterable[str], workloads: Iterable[str]) -> dict[str, str]:
    """Return the names that installed packages have registered, keyed by the import paths of their classes."""
    asked = (("strategy", strategies), ("workload", workloads))
    found = {resolved(kind, name): name for kind, names in asked for name in names}
    return {path: name for path, name in found.items() if path != name}


def owned_overrides(
    overrides: Sequence[str], strategies: Iterable[str], workloads: Iterable[str]
) -> list[str]:
    """Return the overrides. A bare name of an option is replaced by its full name, with the strategy or workload.

    Raises:
        ExperimentError: an option belongs to none of these strategies and workloads, or a bare name belongs to several.
    """
    asked = [
        *(Owner("strategy", name) for name in strategies),
        *(Owner("workload", name) for name in workloads),
    ]
    owners = {one.table for one in asked}
    problems: list[Problem] = []
    written = with_whole_options(overrides, option_models(asked, TableCatalog()), problems)
    problems += [
        Problem(
            path="--set",
            message=f"{one!r}: {owner} is not among the cases to prove; {nearest(owner, owners)}",
        )
        for one in written
        if (owner := _option_owner(one)) not in ("", *owners)
    ]
    if problems:
        raise ExperimentError("verify", problems)
    return written


def verification_cases(
    strategies: Sequence[str],
    workloads: Sequence[str],
    worlds: Sequence[int],
    backend: str,
    *,
    algorithms: Sequence[str] | None = None,
    schedules: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> list[PlannedCase]:
    """Return the cases to prove: each strategy with the named algorithms and schedules, or with all that it has.

    Without named ones, each strategy's variants, which differ in options, are added. An option in `overrides` applies
    only to its own strategy or workload.

    Raises:
        ExperimentError: a name is unknown.
        MachineError: nccl is requested but the machine has no GPU, or mpi is requested but it has no MPI library.
    """
    _check_names(strategies, workloads, algorithms or ())
    cases: list[PlannedCase] = []
    for group, batch in _by_local_batch(workloads):
        cases += _cases(
            strategies,
            group,
            worlds,
            backend,
            among=(algorithms, schedules),
            local_batch=batch,
            overrides=overrides,
        )
        if algorithms is None and schedules is None:
            cases += _variants(strategies, group, worlds, backend, local_batch=batch, overrides=overrides)
    return list({entry.case.case_id: entry for entry in cases}.values())  # an override may make two equal


def _check_names(strategies: Sequence[str], workloads: Sequence[str], algorithms: Sequence[str]) -> None:
    """Check that all names are known, and that users' strategies can be used.

    Raises:
        ExperimentError: a name is unknown or a strategy cannot be used; the message lists all of these.
    """
    catalog = TableCatalog()
    problems: list[Problem] = []
    for name in strategies:
        try:
            catalog.strategy(name)
        except KeyError:
            message = f"unknown strategy {name!r}; {nearest(name, known_names('strategy', catalog))}"
            problems.append(Problem(path="--strategy", message=message))
        except ValueError as error:  # a user's strategy that cannot be used
            problems.append(Problem(path="--strategy", message=str(error)))
    known = [*catalog.workload_names(), *(n.partition(":")[0] for n in catalog.workload_names())]
    for name in workloads:
        if name not in known and ":" not in name and not _registered("workload", name, problems):
            advice = nearest(name, [*known, *catalog.installed_names("workload")])
            problems.append(Problem(path="--workload", message=f"unknown workload {name!r}; {advice}"))
    for name in algorithms:
        _registered("algorithm", name, problems)
    if problems:
        raise ExperimentError("verify", problems)


def _registered(what: str, name: str, problems: list[Problem]) -> bool:
    """Return whether an installed package registers the name, or the lookup fails (see `problems`)."""
    try:
        return resolved(what, name) != name
    except ValueError as error:
        problems.append(Problem(path=f"--{what}", message=str(error)))
        return True


def _by_local_batch(workloads: Sequence[str]) -> list[tuple[list[str], int | None]]:
    """Return groups of workloads, each with its local batch (None for replays, whose profiles set it)."""
    replays = [name for name in workloads if name.startswith(PREFIX)]
    others = [name for name in workloads if name not in replays]
    return [(group, batch) for group, batch in ((others, 4), (replays, None)) if group]


def _variants(
    strategies: Sequence[str],
    workloads: Sequence[str],
    worlds: Sequence[int],
    backend: str,
    *,
    local_batch: int | None,
    overrides: Sequence[str],
) -> list[PlannedCase]:
    return [
        entry
        for name in strategies
        for options in load_strategy(TableCatalog().strategy(name).name).variants
        for entry in _cases(
            [name],
            workloads,
            worlds,
            backend,
            among=(["default"], ["default"]),
            local_batch=local_batch,
            options={name: dict(options)},
            overrides=overrides,
        )
    ]


_FLAGS = {
    f"axes.{name}": f"--{name.replace('_', '-')}"
    for name in ("strategy", "algorithm", "schedule", "workload", "world_size")
}


@contextmanager
def _problems_of_flags() -> Iterator[None]:
    """Make errors name the command's flags instead of the experiment's axes.

    Raises:
        ExperimentError: the body raised one; its problems now name the flags.
    """
    try:
        yield
    except ExperimentError as error:
        problems = [
            replace(
                one,
                path=_FLAGS.get(one.path, one.path),
                message=one.message.replace('set strategy = "ddp"', "use --strategy ddp"),
            )
            for one in error.problems
        ]
        raise ExperimentError("verify", problems) from None


@_problems_of_flags()
def _cases(
    strategies: Sequence[str],
    workloads: Sequence[str],
    worlds: Sequence[int],
    backend: str,
    *,
    among: tuple[Sequence[str] | None, Sequence[str] | None],
    local_batch: int | None,
    overrides: Sequence[str],
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PlannedCase]:
    """Return the cases of these workloads; None as local batch means each workload's own.

    `among` has the algorithms and schedules to use; None stands for all that a strategy has.
    """
    algorithms, schedules = among
    algorithms = None if algorithms is None else [resolved("algorithm", name) for name in algorithms]
    catalog = TableCatalog()
    infos = [catalog.strategy(name) for name in strategies]
    by = list(algorithms or dict.fromkeys(name for info in infos for name in info.algorithms) or ["default"])
    when = list(schedules or dict.fromkeys(name for info in infos for name in info.schedules) or ["default"])
    text = f"""
        [base]
        {f"local_batch = {local_batch}" if local_batch else ""}
        backend = "{backend}"
        device = "{"cuda" if backend == "nccl" else "cpu"}"
        [axes]
        workload = {list(workloads)}
        strategy = {list(strategies)}
        algorithm = {by}
        schedule = {when}
        world_size = {list(worlds)}
        [budget]
        seed = 0
    """ + tomli_w.dumps({"options": options or {}})
    owners = {*strategies, *(name.partition(":")[0] for name in workloads)}
    mine = [one for one in overrides if _option_owner(one) in ("", *owners)]
    experiment = parse_experiment(text, catalog, name="verify", source="verify", overrides=mine)
    if experiment.emulates or experiment.base.launcher != "local":
        message = "verify uses this machine and its own links; a sweep proves cases where it measures them"
        raise ExperimentError("verify", [Problem(path="--set", message=message)])
    hardware = read_hardware()
    devices = usable_devices(hardware)

    def another(case: Case) -> bool:
        """Return whether a case's algorithm or schedule is not the first listed."""
        chosen = bool(catalog.strategy(case.strategy).algorithms)
        return chosen and (case.algorithm in by[1:] or case.schedule in when[1:])

    if backend == "nccl" and not devices.gpus:
        raise MachineError("--backend nccl: torch finds no usable GPU here")
    if backend == "mpi":
        mpi_version()
    cases = [
        entry
        for entry in expand(experiment, catalog, devices)
        # at one rank algorithms do nothing, so that the first stands for all
        if not entry.added_as_baseline and not (entry.case.world_size == 1 and another(entry.case))
    ]
    return [within_gpus(entry, devices) for entry in cases]


def _option_owner(override: str) -> str:
    """Return the owner of an option, such as `ddp` for `options.ddp.X=1`; empty if none."""
    keys = setting_keys(override.partition("=")[0].strip())
    return keys[1] if keys[0] == "options" and len(keys) > 1 else ""


def _chosen(case: Case, strategy: Strategy[Any]) -> tuple[str, ...]:
    choices = (
        (case.algorithm, strategy.algorithm, strategy.algorithms),
        (case.schedule, strategy.schedule, strategy.schedules),
    )
    return tuple(
        short_name(asked).replace("_", " ") for asked, usual, choice in choices if choice and asked != usual
    )


def _verdict(case: Case, status: Status, proofs: tuple[Proof, ...] = (), reason: str = "") -> ProofVerdict:
    strategy = load_strategy(case.strategy)
    usual: dict[str, Any] = {}
    with suppress(Exception):  # a user's option has no default, or one that JSON cannot hold
        usual = strategy.options().model_dump(mode="json")
    given = [name for name, value in case.options.items() if value != usual.get(name)]
    return ProofVerdict(
        strategy=case.strategy,
        algorithm=case.algorithm,
        schedule=case.schedule,
        chosen=_chosen(case, strategy),
        options=" ".join(option_words("options_json", given, case)),
        promise=strategy.promise(strategy.options.model_validate(case.options)),
        workload=case.workload,
        world_size=case.world_size,
        status=status,
        proofs=proofs,
        reason=reason,
    )


_POINT_TO_LOGS: tuple[Status, ...] = ("failed", "hung", "oom")


@contextmanager
def _folder(verdicts: Sequence[ProofVerdict], on_logs: Callable[[Path], None] | None) -> Iterator[Path]:
    """Yield a folder for records and logs, and remove it afterwards.

    It is kept, and passed to `on_logs`, if a case failed or an error names a file in it.
    """
    guarded = GuardedFolder("ddpbench-verify-")
    named = False
    with guarded as folder:
        try:
            yield folder
        except LaunchError as error:  # for example one that names a fork server's log
            named = str(folder) in str(error)
            raise
        finally:
            if on_logs is not None and (named or any(each.status in _POINT_TO_LOGS for each in verdicts)):
                guarded.keep()
                on_logs(folder)


def verify(
    cases: Sequence[PlannedCase],
    on_verdict: Callable[[ProofVerdict], None] = lambda _: None,
    *,
    hang_timeout_s: float = 120.0,
    on_logs: Callable[[Path], None] | None = None,
) -> list[ProofVerdict]:
    """Run the proof of every case on real ranks, call `on_verdict` after each, and return all verdicts.

    After a failure, the folder with the ranks' logs is kept and passed to `on_logs`. Otherwise it is removed.

    Raises:
        MachineError: another command holds this machine's cores.
        WorkloadError: a user's workload does not work.
        LaunchError: ranks cannot be started.
    """
    hardware = read_hardware()
    catalog = TableCatalog()
    shared = own_environment_allows_sharing()
    claim = nullcontext() if shared else claimed(hardware.cores)
    verdicts: list[ProofVerdict] = []
    with ExitStack() as stack:
        stack.enter_context(claim)
        folder = stack.enter_context(_folder(verdicts, on_logs))
        run = RunDir(folder)
        run.create()
        runner = LaunchRunner(
            run, hang_timeout_s=hang_timeout_s, hang_setting="--hang-timeout", shared=shared
        )
        servers = stack.enter_context(Servers(folder / "server.log"))
        checked: Sequence[PlannedCase] | None = None
        for number, entry in enumerate(cases):
            case, reason = entry.case, entry.skip_reason
            if reason is None and checked is None:
                server = servers.of(early_env(case))
                own = inspect_own(server, [each.case for each in cases if each.skip_reason is None], folder)
                checked = within_own(cases, own)
            if checked is not None:
                reason = checked[number].skip_reason
            if reason is not None:
                verdict = _verdict(case, "skipped", reason=reason)
            else:
                directory = run.launch(case.case_id, "proof")
                plan = plan_launch(case, "proof", 0, directory=directory, hardware=hardware, catalog=catalog)
                with ranks_for(case, folder / "server.log", partial(servers.of, plan.server_env)) as by:
                    outcome = runner.run_launch(by, plan, measured_s=0.0, server_share_s=0.0)
                ranks = read_launch(directory).ranks
                proofs = tuple(ranks[0].of(Proof)) if ranks else ()
                verdict = _verdict(case, outcome.status, proofs, outcome.error)
            verdicts.append(verdict)
            on_verdict(verdict)
    return verdicts
