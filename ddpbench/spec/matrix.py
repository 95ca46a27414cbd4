"""Expand an experiment into its cases, one for each combination of its axes, with ranks, nodes and links decided."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ddpbench.causes import exception_words
from ddpbench.errors import ExperimentError, Problem, nearest
from ddpbench.spec import environment
from ddpbench.spec.auto import resolve
from ddpbench.spec.case import ON_THIS_MACHINE, OWN_TYPES, UNUSED_RECOVERY, Case, PlannedCase
from ddpbench.spec.catalog import Catalog, Devices, StrategyInfo, WorkloadInfo
from ddpbench.spec.claims import selects, undecidable
from ddpbench.spec.crossing import crossed_axis, misfits
from ddpbench.spec.experiment import explain
from ddpbench.spec.fabric import FabricSettings, Links
from ddpbench.spec.limits import MAX_COMBINATIONS, MAX_NODES, MAX_RANKS
from ddpbench.spec.reasons import skip_reason
from ddpbench.spec.settings import Base, Experiment
from ddpbench.text_safety import and_words, shortened
from ddpbench.user_files import is_import_path, process_kept


def expand(experiment: Experiment, catalog: Catalog, devices: Devices) -> list[PlannedCase]:
    """Return the experiment's cases in the order of its axes, with missing base cases of speed-ups added.

    `auto` and `all` are replaced as by `resolve`. Combinations become one case if they differ only in a setting that
    their strategy ignores.

    Raises:
        ExperimentError: a combination cannot be a case, a claim cannot be decided, or no case is left; all problems
            are listed.
    """
    problems: list[Problem] = []
    planned: dict[str, PlannedCase] = {}
    combinations: dict[str, list[Mapping[str, Any]]] = {}
    experiment = resolve(experiment, devices)
    names, nodes_axis = list(experiment.axes), crossed_axis(experiment)
    pairs: list[tuple[int, int]] = []
    _check_count(experiment)
    for values in itertools.product(*experiment.axes.values()):
        setting = _setting(experiment, dict(zip(names, values, strict=True)))
        if setting["world_size"] == "auto":
            problems.append(Problem(path="base.world_size", message='"auto" belongs in [axes]'))
            break
        if setting["threads_per_rank"] == "all":
            problems.append(Problem(path="base.threads_per_rank", message='"all" belongs in [axes]'))
            break
        named = setting | {"workload": catalog.workload(setting["workload"]).name}
        if any(selects(rule, named) for rule in experiment.exclude):
            continue
        if nodes_axis:
            pairs.append((setting["world_size"], setting[nodes_axis]))
        entry = _plan_case(experiment, setting, catalog, devices, problems)
        if entry is not None:
            planned.setdefault(entry.case.case_id, entry)
            combinations.setdefault(entry.case.case_id, []).append(named)
    if experiment.claims:
        planned = {key: replace(entry, combinations=combinations[key]) for key, entry in planned.items()}
    problems.extend(misfits(experiment, pairs))
    problems.extend(_unknown_choices(experiment, catalog))
    if not planned and not problems:
        problems.append(Problem(path="exclude", message="leaves no case to run"))
    if not problems:
        problems.extend(undecidable(experiment.claims, experiment.axes, list(planned.values())))
    if problems:
        raise ExperimentError(experiment.name, list(dict.fromkeys(problems)))
    _add_base_cases(planned, devices)
    return list(planned.values())


def _add_base_cases(planned: dict[str, PlannedCase], devices: Devices) -> None:
    runnable = [entry for entry in planned.values() if entry.skip_reason is None]
    for entry in runnable:
        baseline = entry.case.baseline()
        over = _oversubscribed(baseline, devices)
        added = PlannedCase(case=baseline, added_as_baseline=True, oversubscribed=over)
        planned.setdefault(baseline.case_id, added)


def _check_count(experiment: Experiment) -> None:
    """Check the matrix's size before it is built.

    Raises:
        ExperimentError: the axes make too many combinations.
    """
    sizes = {name: len(values) for name, values in experiment.axes.items() if len(values) > 1}
    count = math.prod(sizes.values())
    if count > MAX_COMBINATIONS:
        factors = " x ".join(f"{size} {name}" for name, size in sizes.items())
        message = (
            f"{factors} make {count:,} combinations; must be {MAX_COMBINATIONS:,} at most: leave values "
            "out, or split it into several experiments and merge their runs"
        )
        raise ExperimentError(experiment.name, [Problem(path="axes", message=message)])


def _setting(experiment: Experiment, axes: Mapping[str, Any]) -> dict[str, Any]:
    fabric = experiment.fabric or FabricSettings()
    linked = {f"fabric.{name}": getattr(fabric, name) for name in FabricSettings.model_fields}
    variables = {f"env.{name}": value for name, value in experiment.env.items()}
    return {**experiment.base.model_dump(), **linked, **variables, **axes}


def _plan_case(
    experiment: Experiment,
    setting: Mapping[str, Any],
    catalog: Catalog,
    devices: Devices,
    problems: list[Problem],
) -> PlannedCase | None:
    """Return a combination's case, with a reason if it will not run; None if it cannot be a case."""
    strategy = catalog.strategy(setting["strategy"])
    workload = catalog.workload(setting["workload"])
    layout = _layout(experiment, setting, problems)
    if layout is None:
        return None
    world_size, nodes = layout
    trainers = max(1, strategy.trainers(world_size))  # a lone server trains nothing, which its check reports
    batch = _batch(experiment, setting, workload, world_size=world_size, trainers=trainers, problems=problems)
    options = None if batch is None else _options_json(experiment, setting, strategy, workload, problems)
    fabric = None if options is None else _links(setting, strategy, world_size, nodes, problems)
    if batch is None or options is None or fabric is None:
        return None
    device, backend = _device_and_backend(setting, devices)
    if fabric and (conflicts := [*_against_fabric(setting, backend)]):
        problems += conflicts
        return None
    crosses = fabric or setting["fabric.bandwidth"] is None
    laid = _Laid(
        world_size=world_size,
        nodes=nodes if crosses else 1,  # without a link to cross, the machine itself is the node
        local_batch=batch[0],
        global_batch=batch[1],
        device="cuda" if device == "cuda" else "cpu",
        backend=backend if strategy.uses_backend else "",
        fabric=fabric,
    )
    case = _case(experiment, setting, strategy, workload, laid=laid, options=options)
    try:
        case = replace(case, strategy_traits=strategy.traits(case))
    except ValueError as error:
        problems.append(Problem(path="strategy", message=str(error)))
        return None
    reason = skip_reason(case, experiment, strategy, workload, catalog=catalog, trainers=trainers)
    return PlannedCase(case=case, skip_reason=reason, oversubscribed=_oversubscribed(case, devices))


def _against_fabric(setting: Mapping[str, Any], backend: str) -> Iterator[Problem]:
    if backend == "nccl":
        message = (
            "nccl does not use emulated links, which are the kernel's links between network "
            "namespaces: use gloo"
        )
        yield Problem(path="fabric", message=message)
        return
    message = "an emulated network sets its own interfaces: leave it out"
    for name in environment.OF_FABRICS:
        if f"env.{name}" in setting:
            yield Problem(path=f"env.{name}", message=message)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Laid:
    """A combination's ranks, nodes, samples per step, device, backend and links."""

    world_size: int
    nodes: int
    local_batch: int
    global_batch: int
    device: Literal["cpu", "cuda"]
    backend: str
    fabric: str

    @property
    def ranks_per_node(self) -> int:
        """Return ranks per node, or all ranks if they do not divide evenly; the case will not run then."""
        return self.world_size // self.nodes if self.world_size % self.nodes == 0 else self.world_size


def _case(
    experiment: Experiment,
    setting: Mapping[str, Any],
    strategy: StrategyInfo,
    workload: WorkloadInfo,
    *,
    laid: _Laid,
    options: tuple[str, str],
) -> Case:
    asked = setting["launcher"]
    decided = {
        "experiment": experiment.name,
        "workload": workload.name,
        "strategy": strategy.name,
        "algorithm": _chosen(
            setting["algorithm"], strategy.algorithm, strategy.algorithms, own=strategy.own_algorithms
        ),
        "schedule": _chosen(setting["schedule"], strategy.schedule, strategy.schedules),
        "options_json": options[0],
        "workload_options_json": options[1],
        "backend": laid.backend,
        "device": laid.device,
        "launcher": strategy.launcher if strategy.launcher and asked in ON_THIS_MACHINE else asked,
        "world_size": laid.world_size,
        "nodes": laid.nodes,
        "ranks_per_node": laid.ranks_per_node,
        "loader_workers": setting["loader_workers"] if setting["data"] == "loader" else 0,
        "bucket_cap_mb": setting["bucket_cap_mb"] if strategy.uses_buckets else None,
        "local_batch": laid.local_batch,
        "global_batch": laid.global_batch,
        "dtype": _dtype(setting["dtype"], workload),
        "checkpoint_dir": setting["checkpoint_dir"]
        if setting["checkpoint"] or setting["recovery"] != "off"
        else "",
        "fabric": laid.fabric,
        "compute": workload.compute,
        "env_json": _env_json(setting, uses_backend=strategy.uses_backend),
        **(UNUSED_RECOVERY if setting["recovery"] == "off" else {}),
    }
    return Case(**{**{name: setting[name] for name in _AS_SET}, **decided})


_AS_SET = tuple(one.name for one in fields(Case) if one.name in Base.model_fields)
"""Names of the fields that `Case` and `Base` share; values decided for a combination take precedence."""


def _batch(
    experiment: Experiment,
    setting: Mapping[str, Any],
    workload: WorkloadInfo,
    *,
    world_size: int,
    trainers: int,
    problems: list[Problem],
) -> tuple[int, int] | None:
    local_batch: int | None = setting["local_batch"]
    global_batch: int | None = setting["global_batch"]
    if "scaling" in experiment.axes:  # each kind of scaling uses the batch that it fixes
        local_batch = local_batch if setting["scaling"] == "weak" else None
        global_batch = global_batch if setting["scaling"] == "strong" else None
    message = ""
    if setting["scaling"] == "weak":
        if global_batch is None:
            local_batch = local_batch or workload.default_batch or 8
            return local_batch, local_batch * trainers
        message = "weak scaling fixes local_batch; global_batch belongs to scaling = 'strong'"
    elif global_batch is None or local_batch is not None:
        message = "strong scaling fixes global_batch: give it, and not local_batch"
    elif global_batch % trainers and trainers == world_size:
        message = f"{global_batch} samples do not divide evenly over {trainers} ranks"
    else:
        return max(1, global_batch // trainers), global_batch
    problems.append(Problem(path="base.global_batch", message=message))
    return None


def _options_json(
    experiment: Experiment,
    setting: Mapping[str, Any],
    strategy: StrategyInfo,
    workload: WorkloadInfo,
    problems: list[Problem],
) -> tuple[str, str] | None:
    owners = (
        (setting["strategy"], strategy.options),
        (setting["workload"].partition(":")[0], workload.options),
    )
    written = [
        _as_json(model, _options(experiment, setting, owner), f"options.{owner}", problems)
        for owner, model in owners
    ]
    of_strategy, of_workload = written
    return None if of_strategy is None or of_workload is None else (of_strategy, of_workload)


def _as_json(
    model: type[BaseModel], given: Mapping[str, Any], path: str, problems: list[Problem]
) -> str | None:
    try:
        with process_kept():
            options = model.model_validate(given)
    except ValidationError as error:
        problems.extend(explain(error, path, list(model.model_fields)))
        return None
    except (Exception, SystemExit) as error:  # a validator of a user's class
        problems.append(Problem(path=path, message=f"cannot be checked: {exception_words(error)}"))
        return None
    try:
        return json.dumps(options.model_dump(mode="json"), sort_keys=True)
    except (
        Exception,
        SystemExit,
    ) as error:  # an option's type is unknown to JSON, or a user's serializer failed
        failing = [name for name in model.model_fields if not _has_json(options, name)]
        where = f"{path}.{failing[0]}" if failing else path
        value = f"{shortened(getattr(options, failing[0]))} " if failing else ""
        message = f"{value}cannot be written as JSON, as a case's options are: {exception_words(error)}"
        problems.append(Problem(path=where, message=message))
        return None


def _has_json(options: BaseModel, name: str) -> bool:
    try:
        json.dumps(options.model_dump(mode="json", include={name}))
    except (Exception, SystemExit):
        return False
    return True


def _device_and_backend(setting: Mapping[str, Any], devices: Devices) -> tuple[str, str]:
    device = devices.kind if setting["device"] == "auto" else setting["device"]
    backend = setting["backend"]
    if backend == "auto":
        backend = "nccl" if device == "cuda" else "gloo"
    return device, backend


def _env_json(setting: Mapping[str, Any], *, uses_backend: bool) -> str:
    """Return the variables as JSON; communication libraries' only if a backend moves data."""
    variables = {
        name.removeprefix("env."): value for name, value in setting.items() if name.startswith("env.")
    }
    return environment.to_json(variables if uses_backend else environment.without_transport(variables))


def _chosen(asked: str, usual: str, choice: Sequence[str], *, own: bool = False) -> str:
    """Return the request if it is among the choices (or, with `own`, a user's class), else `usual`."""
    return asked if asked in choice or (own and is_import_path(asked)) else usual


def _dtype(asked: str, workload: WorkloadInfo) -> str:
    if asked != "default":
        return asked
    return OWN_TYPES if workload.own else "float32"


def _unknown_choices(experiment: Experiment, catalog: Catalog) -> Iterable[Problem]:
    names = experiment.axes.get("strategy", [experiment.base.strategy])
    infos = [catalog.strategy(name) for name in names]
    for setting in ("algorithm", "schedule"):
        asked = set(experiment.axes.get(setting, [getattr(experiment.base, setting)])) - {"default"}
        choices = {info.name: getattr(info, f"{setting}s") for info in infos if getattr(info, f"{setting}s")}
        known = sorted({value for choice in choices.values() for value in choice})
        where = f"axes.{setting}" if setting in experiment.axes else f"base.{setting}"
        if setting == "algorithm" and any(info.own_algorithms for info in infos):
            own = {value for value in asked if is_import_path(value)}
            yield from _missing_algorithms(own, catalog, where)
            asked -= own
        unknown = sorted(asked - set(known))
        if unknown and setting == "algorithm" and any(info.own_algorithms for info in infos):
            known += catalog.installed_names("algorithm")
        for value in unknown:
            if known:
                have = "has" if len(choices) == 1 else "have"
                message = f'{and_words(choices)} {have} no "{value}"; {nearest(value, known)}'
            else:
                leave = "leaves" if len(names) == 1 else "leave"
                message = f'{and_words(names)} {leave} no choice of it; set strategy = "ddp"'
            yield Problem(path=where, message=message)


def _missing_algorithms(names: Iterable[str], catalog: Catalog, where: str) -> Iterator[Problem]:
    for name in sorted(names):
        try:
            catalog.check_algorithm(name)
        except ValueError as error:
            yield Problem(path=where, message=str(error))


def _options(experiment: Experiment, setting: Mapping[str, Any], owner: str) -> dict[str, Any]:
    start = f"options.{owner}."
    axes = {key.removeprefix(start): value for key, value in setting.items() if key.startswith(start)}
    return {**experiment.options.get(owner, {}), **axes}


def _layout(
    experiment: Experiment, setting: Mapping[str, Any], problems: list[Problem]
) -> tuple[int, int] | None:
    """Return world size and nodes; None with a problem if invalid.

    Any two of nodes, ranks per node and world size determine the third.
    """
    world_size: int = setting["world_size"]
    nodes: int | None = setting["fabric.nodes"]
    a_node: int | None = setting["fabric.ranks_per_node"]
    emulated = setting["fabric.bandwidth"] is not None
    if problem := _layout_problem(experiment, setting):
        problems.append(problem)
        return None
    if not emulated:
        return world_size, setting["nodes"]
    is_given = "world_size" in experiment.axes or "world_size" in experiment.base.model_fields_set
    if nodes is not None and a_node is not None:
        return (1, 1) if is_given and world_size == 1 else (nodes * a_node, nodes)
    if nodes is None:
        a_node = min(a_node or 1, world_size)
        return world_size, max(1, world_size // a_node)
    return (world_size, min(nodes, world_size)) if is_given else (nodes, nodes)


def _layout_problem(experiment: Experiment, setting: Mapping[str, Any]) -> Problem | None:
    world_size: int = setting["world_size"]
    if setting["fabric.bandwidth"] is None:
        message = 'is missing: how fast each node\'s link is, such as bandwidth = "1 Gbit/s"'
        return Problem(path="fabric.bandwidth", message=message) if experiment.emulates else None
    if setting["nodes"] != 1:
        axis = "nodes" in experiment.axes
        where, instead = ("axes.nodes", 'axes."fabric.nodes"') if axis else ("base.nodes", "fabric.nodes")
        message = f"nodes of a fabric are set as {instead}; {where} belongs to other launchers"
        return Problem(path=where, message=message)
    nodes, a_node = setting["fabric.nodes"], setting["fabric.ranks_per_node"]
    if nodes is None or a_node is None:
        return None
    is_given = "world_size" in experiment.axes or "world_size" in experiment.base.model_fields_set
    ranks = nodes * a_node
    if is_given and world_size not in (1, ranks):
        message = f"{nodes} nodes of {a_node} ranks are {ranks} ranks, not {world_size}"
        return Problem(path="fabric", message=f"{message}: leave one of the three out")
    if ranks > MAX_RANKS:
        message = f"{nodes} nodes of {a_node} ranks are {ranks:,} ranks; must be {MAX_RANKS:,} at most"
        return Problem(path="fabric", message=message)
    return None


def _links(
    setting: Mapping[str, Any], strategy: StrategyInfo, world_size: int, nodes: int, problems: list[Problem]
) -> str | None:
    if setting["fabric.bandwidth"] is None:
        return ""
    fields = {name: setting[f"fabric.{name}"] for name in FabricSettings.model_fields}
    rates = fields["bandwidth"]
    uses_it = strategy.uses_backend and world_size > 1
    if fields["storage"] == "none" and not uses_it:
        return ""
    wrong = (
        (
            isinstance(rates, list) and len(rates) != nodes,
            "bandwidth",
            (
                f"has {len(rates) if isinstance(rates, list) else 1} rates for {nodes} nodes: give one rate for "
                "all nodes, or one per node"
            ),
        ),
        (nodes > MAX_NODES, "nodes", f"{nodes} given; a fabric on one machine has at most {MAX_NODES}"),
        (
            nodes % fields["racks"] and nodes > 1,
            "racks",
            f"{nodes} nodes do not divide evenly over {fields['racks']} racks",
        ),
    )
    for applies, name, message in wrong:
        if applies:
            problems.append(Problem(path=f"fabric.{name}", message=message))
            return None
    if nodes == 1 and not isinstance(rates, list):
        fields |= {"racks": 1, "uplink": None}
    try:
        return Links.from_settings(FabricSettings.model_validate(fields)).text()
    except ValidationError as error:
        problems.extend(explain(error, "fabric", list(FabricSettings.model_fields)))
        return None


def _oversubscribed(case: Case, devices: Devices) -> bool:
    return (
        case.device == "cpu"
        and case.compute == "real"
        and case.world_size * case.threads_per_rank > devices.cores
    )
