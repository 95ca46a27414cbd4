"""The cases of an experiment: its axes multiplied out, each combination laid on ranks, nodes and links, or skipped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ddpbench.errors import ExperimentError, Problem, nearest
from ddpbench.spec.auto import resolve
from ddpbench.spec.case import BucketCap, Case
from ddpbench.spec.catalog import Catalog, Devices, StrategyInfo, WorkloadInfo
from ddpbench.spec.experiment import explain
from ddpbench.spec.fabric import MAX_NODES, FabricSettings, Links
from ddpbench.spec.settings import Experiment


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCase:
    """A case of the matrix, and why it will not run if it will not."""

    case: Case
    skip_reason: str | None = None
    added_as_baseline: bool = False
    oversubscribed: bool = False


def expand(experiment: Experiment, catalog: Catalog, devices: Devices) -> list[PlannedCase]:
    """Return the experiment's cases in the order of its axes, with the base cases of their speed-ups added.

    `auto` becomes 1, 2, 4 ... up to the devices at hand; device and backend become what the machine has.
    Combinations that differ only in a setting their strategy does not have are one case.

    Raises:
        ExperimentError: a case's batch does not divide, or the excludes leave nothing.
    """
    problems: list[Problem] = []
    planned: dict[str, PlannedCase] = {}
    experiment = resolve(experiment, devices)
    names = list(experiment.axes)
    for values in itertools.product(*experiment.axes.values()):
        setting = _setting(experiment, dict(zip(names, values, strict=True)))
        if setting["world_size"] == "auto":
            problems.append(Problem(path="base.world_size", message='"auto" belongs in [axes]'))
            break
        named = setting | {"workload": catalog.workload(setting["workload"]).name}
        if any(_matches(rule, named) for rule in experiment.exclude):
            continue
        entry = _plan_case(experiment, setting, catalog, devices, problems)
        if entry is not None:
            planned.setdefault(entry.case.case_id, entry)
    problems.extend(_unknown_choices(experiment, catalog))
    if not planned and not problems:
        problems.append(Problem(path="exclude", message="leaves no case to run"))
    if problems:
        raise ExperimentError(experiment.name, list(dict.fromkeys(problems)))
    runnable = [entry for entry in planned.values() if entry.skip_reason is None]
    for entry in runnable:
        baseline = entry.case.baseline()
        over = _oversubscribed(baseline, devices)
        added = PlannedCase(case=baseline, added_as_baseline=True, oversubscribed=over)
        planned.setdefault(baseline.case_id, added)
    return list(planned.values())


def _setting(experiment: Experiment, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return one combination, whole: `Base`'s fields, those of the fabric as `fabric.X`, and options that are axes."""
    fabric = experiment.fabric or FabricSettings()
    linked = {f"fabric.{name}": getattr(fabric, name) for name in FabricSettings.model_fields}
    return {**experiment.base.model_dump(), **linked, **axes}


def _matches(rule: Mapping[str, Sequence[Any]], setting: Mapping[str, Any]) -> bool:
    return all(key in setting and setting[key] in values for key, values in rule.items())


def _plan_case(
    experiment: Experiment,
    setting: Mapping[str, Any],
    catalog: Catalog,
    devices: Devices,
    problems: list[Problem],
) -> PlannedCase | None:
    strategy = catalog.strategy(setting["strategy"])
    workload = catalog.workload(setting["workload"])
    device = devices.kind if setting["device"] == "auto" else setting["device"]
    layout = _layout(experiment, setting, problems)
    if layout is None:
        return None
    world_size, nodes = layout
    trainers = max(1, strategy.trainers(world_size))  # at world size 1 a server has none: its check says so
    local_batch, global_batch = setting["local_batch"], setting["global_batch"]
    if "scaling" in experiment.axes:  # each kind takes the batch that it fixes
        local_batch = local_batch if setting["scaling"] == "weak" else None
        global_batch = global_batch if setting["scaling"] == "strong" else None
    if setting["scaling"] == "weak":
        if global_batch is not None:
            message = "weak scaling fixes local_batch; global_batch belongs to scaling = 'strong'"
            problems.append(Problem(path="base.global_batch", message=message))
            return None
        local_batch = local_batch or workload.default_batch or 8
        global_batch = local_batch * trainers
    else:
        if global_batch is None or local_batch is not None:
            message = "strong scaling fixes global_batch: give it, and not local_batch"
            problems.append(Problem(path="base.global_batch", message=message))
            return None
        if global_batch % trainers and trainers == world_size:
            message = f"{global_batch} samples do not divide evenly over {trainers} ranks"
            problems.append(Problem(path="base.global_batch", message=message))
            return None
        local_batch = max(1, global_batch // trainers)
    backend = setting["backend"]
    if backend == "auto":
        backend = "nccl" if device == "cuda" else "gloo"
    cap: BucketCap = setting["bucket_cap_mb"] if strategy.uses_buckets else None
    owner = setting["workload"].partition(":")[0]
    try:
        strategy_options = strategy.options.model_validate(_options(experiment, setting, strategy.name))
        workload_options = workload.options.model_validate(_options(experiment, setting, owner))
    except ValidationError as error:  # an axis of options that does not go with the others
        problems.extend(explain(error, "options", []))
        return None
    fabric = _links(setting, strategy, world_size, nodes, problems)
    if fabric is None:
        return None
    if not fabric and setting["fabric.bandwidth"] is not None:
        nodes = 1  # nothing would cross a link: the machine itself
    if fabric and backend == "nccl":
        message = (
            "nccl does not talk over emulated links: they are the kernel's, between namespaces; use gloo"
        )
        problems.append(Problem(path="fabric", message=message))
        return None
    case = Case(
        experiment=experiment.name,
        workload=workload.name,
        strategy=strategy.name,
        algorithm=_chosen(setting["algorithm"], strategy.algorithm, strategy.algorithms),
        schedule=_chosen(setting["schedule"], strategy.schedule, strategy.schedules),
        options_json=json.dumps(strategy_options.model_dump(mode="json"), sort_keys=True),
        workload_options_json=json.dumps(workload_options.model_dump(mode="json"), sort_keys=True),
        backend=backend if strategy.uses_backend else "",
        device="cuda" if device == "cuda" else "cpu",
        world_size=world_size,
        launcher=setting["launcher"],
        nodes=nodes,
        ranks_per_node=world_size // nodes if world_size % nodes == 0 else world_size,
        threads_per_rank=setting["threads_per_rank"],
        loader_workers=setting["loader_workers"] if setting["data"] == "loader" else 0,
        bucket_cap_mb=cap,
        local_batch=local_batch,
        global_batch=global_batch,
        scaling=setting["scaling"],
        dtype=setting["dtype"],
        seed=setting["seed"],
        replicate=setting["replicate"],
        precision=setting["precision"],
        data=setting["data"],
        evaluation=setting["evaluation"],
        checkpoint=setting["checkpoint"],
        checkpoint_dir=setting["checkpoint_dir"] if setting["checkpoint"] else "",
        fabric=fabric,
        compute=workload.compute,
        dilation=setting["dilation"],
        shrink=setting["shrink"],
    )
    reason = _layout_reason(case, nodes) or _virtual_reason(case) or _loss_reason(case, experiment)
    reason = (
        reason
        or strategy.check(case)
        or _trainers_reason(case, trainers)
        or _pieces_reason(case, strategy, workload, catalog)
        or workload.check(case)
    )
    if reason is None and backend == "nccl" and device != "cuda" and strategy.uses_backend:
        reason = "nccl moves data between GPUs only; use gloo on CPU"
    if reason is None and backend == "gloo" and device == "cuda" and strategy.uses_backend:
        reason = (
            "gloo copies GPU memory through the host, and its completion cannot be timed; use nccl on GPUs"
        )
    return PlannedCase(case=case, skip_reason=reason, oversubscribed=_oversubscribed(case, devices))


def _chosen(asked: str, own: str, choice: Sequence[str]) -> str:
    """Return what a case does: what was asked for where its strategy leaves the choice, else the strategy's own."""
    return asked if asked in choice else own


def _unknown_choices(experiment: Experiment, catalog: Catalog) -> Iterable[Problem]:
    """Algorithms and schedules that no strategy of the experiment can be asked for."""
    names = experiment.axes.get("strategy", [experiment.base.strategy])
    infos = [catalog.strategy(name) for name in names]
    for setting in ("algorithm", "schedule"):
        asked = set(experiment.axes.get(setting, [getattr(experiment.base, setting)])) - {"default"}
        choices = {info.name: getattr(info, f"{setting}s") for info in infos if getattr(info, f"{setting}s")}
        known = sorted({value for choice in choices.values() for value in choice})
        where = f"axes.{setting}" if setting in experiment.axes else f"base.{setting}"
        for value in sorted(asked - set(known)):
            if known:
                message = f'{" and ".join(choices)} has no "{value}"; {nearest(value, known)}'
            else:
                message = f'{" and ".join(names)} leaves no choice of it; set strategy = "ddp"'
            yield Problem(path=where, message=message)


def _options(experiment: Experiment, setting: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return a strategy's or workload's options, those that are axes included."""
    start = f"options.{owner}."
    axes = {key.removeprefix(start): value for key, value in setting.items() if key.startswith(start)}
    return {**experiment.options.get(owner, {}), **axes}


def _layout(
    experiment: Experiment, setting: Mapping[str, Any], problems: list[Problem]
) -> tuple[int, int] | None:
    """Return a combination's world size and nodes. On a fabric any two of nodes, ranks per node and world size give
    the third; there are never more nodes than ranks."""
    world_size: int = setting["world_size"]
    nodes: int | None = setting["fabric.nodes"]
    a_node: int | None = setting["fabric.ranks_per_node"]
    if setting["fabric.bandwidth"] is None:
        if experiment.emulates:
            message = 'is missing: how fast each node\'s link is, such as bandwidth = "1 Gbit/s"'
            problems.append(Problem(path="fabric.bandwidth", message=message))
            return None
        return world_size, setting["nodes"]
    if setting["nodes"] != 1:
        message = "nodes of a fabric are set as fabric.nodes; base.nodes belongs to other launchers"
        problems.append(Problem(path="base.nodes", message=message))
        return None
    told = "world_size" in experiment.axes or "world_size" in experiment.base.model_fields_set
    if nodes is not None and a_node is not None:
        if told and world_size not in (1, nodes * a_node):
            message = f"{nodes} nodes of {a_node} ranks are {nodes * a_node} ranks, not {world_size}"
            problems.append(Problem(path="fabric", message=f"{message}: leave one of the three out"))
            return None
        return (1, 1) if told and world_size == 1 else (nodes * a_node, nodes)
    if nodes is None:
        a_node = min(a_node or 1, world_size)
        return world_size, max(1, world_size // a_node)
    if not told:
        return nodes, nodes
    return world_size, min(nodes, world_size)


def _links(
    setting: Mapping[str, Any], strategy: StrategyInfo, world_size: int, nodes: int, problems: list[Problem]
) -> str | None:
    """The case's fabric in words; empty where nothing of it would be used. None, and a problem, if it is none."""
    if setting["fabric.bandwidth"] is None:
        return ""
    fields = {name: setting[f"fabric.{name}"] for name in FabricSettings.model_fields}
    rates = fields["bandwidth"]
    uses_it = strategy.uses_backend and world_size > 1
    if fields["storage"] == "none" and not uses_it:
        return ""
    if isinstance(rates, list) and len(rates) != nodes:
        message = f"has {len(rates)} rates for {nodes} nodes: give one for all, or one for each"
        problems.append(Problem(path="fabric.bandwidth", message=message))
        return None
    if nodes > MAX_NODES:
        message = f"{nodes} given; a fabric on one machine has at most {MAX_NODES}"
        problems.append(Problem(path="fabric.nodes", message=message))
        return None
    if nodes % fields["racks"] and nodes > 1:
        message = f"{nodes} nodes do not divide evenly over {fields['racks']} racks"
        problems.append(Problem(path="fabric.racks", message=message))
        return None
    if nodes == 1 and not isinstance(rates, list):
        fields |= {"racks": 1, "uplink": None}
    try:
        return Links.from_settings(FabricSettings.model_validate(fields)).text()
    except ValidationError as error:
        problems.extend(explain(error, "fabric", list(FabricSettings.model_fields)))
        return None


def _trainers_reason(case: Case, trainers: int) -> str | None:
    """Return why the ranks that train, where others only serve, cannot share the batch evenly, or None."""
    if case.local_batch * trainers == case.global_batch:
        return None
    return (
        f"of {case.world_size} ranks {trainers} train under {case.strategy}, and {case.global_batch} samples do not "
        f"divide evenly over them: set global_batch to a multiple of {trainers}"
    )


def _pieces_reason(
    case: Case, strategy: StrategyInfo, workload: WorkloadInfo, catalog: Catalog
) -> str | None:
    """Return why this workload's model cannot be cut into a piece for each rank, or None."""
    if not strategy.pieces:
        return None
    found = workload.pieces(strategy.pieces)
    if not found:
        able = [name for name in catalog.workload_names() if catalog.workload(name).pieces(strategy.pieces)]
        names = dict.fromkeys(name.partition(":")[0] for name in able)
        return f"{case.workload} cannot be cut into {strategy.pieces}: take {' or '.join(names)}"
    if strategy.pieces == "branches" and found != case.world_size:
        return f"{case.workload} has {found} branches, a rank each: set world_size = {found}"
    if found < case.world_size:
        few = f"too few for {case.world_size} stages: use a world size of {found} or less"
        return f"{case.workload} has {found} layers to cut at, {few}"
    return None


def _virtual_reason(case: Case) -> str | None:
    """Return why this case cannot be slowed down or shrunk, or be on a fabric, or None."""
    if case.compute == "real" and (case.dilation != 1 or case.shrink != 1):
        what = "dilation" if case.dilation != 1 else "shrink"
        return f'{what} needs replayed computation: workload = "replay:PROFILE" (ddpbench profile makes one)'
    if case.fabric and case.launcher != "local":
        return 'a fabric is made on this machine, by the local launcher: launcher = "local"'
    if case.fabric and case.device == "cuda":
        return (
            "GPUs have links of their own: a fabric is for ranks on the CPU, and a replay can stand for a GPU"
        )
    return None


def _loss_reason(case: Case, experiment: Experiment) -> str | None:
    """Return why this case cannot be trained down to a loss that was asked for, or None."""
    if experiment.budget.until_loss is None or case.compute == "real":
        return None
    return "a replay has no loss to bring down: leave budget.until_loss out, or train the workload itself"


def _layout_reason(case: Case, nodes: int) -> str | None:
    """Return why these ranks cannot stand on that many nodes, or None."""
    if nodes > 1 and case.launcher == "local" and not case.fabric:
        return (
            f'the local launcher has one node; for {nodes} set launcher = "torchrun", or emulate a [fabric]'
        )
    if case.world_size % nodes:
        return f"{case.world_size} rank{'s' if case.world_size != 1 else ''} do not divide evenly over {nodes} nodes"
    return None


def _oversubscribed(case: Case, devices: Devices) -> bool:
    """More threads than cores: the ranks share them. A replay's ranks sleep instead of computing."""
    return (
        case.device == "cpu"
        and case.compute == "real"
        and case.world_size * case.threads_per_rank > devices.cores
    )
