"""Replace the values `auto` and `all` in an experiment by values for the machine's devices or the emulated network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpbench.spec.case import BASE
from ddpbench.spec.catalog import Devices
from ddpbench.spec.crossing import crossed_axis
from ddpbench.spec.settings import Experiment

_THREADS, _ALL = "threads_per_rank", "all"


def resolve(experiment: Experiment, devices: Devices) -> Experiment:
    """Return the experiment with `auto` and `all` replaced by values for this machine.

    The world size `auto` becomes 1 and the world sizes of the fabric's layouts (`left_out` names others). Without
    layouts, it becomes 1, 2, 4 ... up to the fabric's nodes, or the ranks that the devices can run. The device and the
    backend become the machine's, or cpu and gloo for emulated links. On CPUs, `all` threads becomes the number of
    cores.
    """
    base, axes, exclude = experiment.base, dict(experiment.axes), experiment.exclude
    automatic = "cpu" if experiment.emulates else devices.kind  # emulated links do not connect GPUs
    device = automatic if base.device == "auto" else base.device
    if "device" not in axes:
        base = base.model_copy(update={"device": device})
        if base.backend == "auto" and "backend" not in axes:
            base = base.model_copy(update={"backend": "nccl" if device == "cuda" else "gloo"})
    if "auto" in axes.get("world_size", []):
        sizes = _fitting(experiment) or _powers(
            _most_ranks(experiment) or devices.ranks(device, base.threads)
        )
        expanded = [n for size in axes["world_size"] for n in (sizes if size == "auto" else [size])]
        axes["world_size"] = list(dict.fromkeys(expanded))
        exclude = [*exclude, *_unfit_pairs(experiment, sizes)]
    resolved = experiment.model_copy(update={"base": base, "axes": axes, "exclude": exclude})
    return _with_all_threads(resolved, devices.cores if device == "cpu" else None)


def without_all_threads(experiment: Experiment) -> Experiment:
    """Return the experiment without the cases with `all` threads."""
    return _with_all_threads(experiment, None)


def _with_all_threads(experiment: Experiment, cores: int | None) -> Experiment:
    """Replace `all` threads by `cores`, for the strategy `single` only.

    Remove `all` without replacement if that is impossible, or the experiment has only replays, which sleep.
    """
    given = experiment.axes.get(_THREADS, [])
    if _ALL not in given:
        return experiment
    strategies, workloads = (
        experiment.axes.get(name, [getattr(experiment.base, name)]) for name in ("strategy", "workload")
    )
    trains = BASE in strategies and not all(str(name).startswith("replay:") for name in workloads)
    others = [value for value in given if value != _ALL]
    count = cores if trains and cores not in others else None
    exclude = [
        {**rule, _THREADS: _counted(rule[_THREADS], count)} if _THREADS in rule else rule
        for rule in experiment.exclude
    ]
    exclude = [rule for rule in exclude if rule.get(_THREADS, True)]
    if count is not None and (rest := [name for name in strategies if name != BASE]):
        exclude.append({_THREADS: [count], "strategy": rest})
    axes = {**experiment.axes, _THREADS: _counted(given, count) or [1]}
    return experiment.model_copy(update={"axes": axes, "exclude": exclude})


def _counted(values: Sequence[Any], count: int | None) -> list[Any]:
    if count is None:
        return [value for value in values if value != _ALL]
    return [count if value == _ALL else value for value in values]


def left_out(experiment: Experiment) -> str:
    """Return a sentence about the powers of two that do not fit the fabric's layouts; empty if all do.

    If world sizes and nodes are both axes, it says that `auto` means one rank per node.
    """
    fitting = _fitting(experiment)
    if not fitting or "auto" not in experiment.axes.get("world_size", []):
        return ""
    given = experiment.axes["world_size"]
    sizes = [n for n in _powers(max(fitting)) if n not in fitting and n not in given]
    if not sizes:
        if not crossed_axis(experiment):
            return ""
        of_nodes = _listed([n for n in fitting if n > 1])
        return f'world_size = "auto" is one rank on each node: {of_nodes}; fabric.ranks_per_node sets more'
    made = " and ".join(
        f"{nodes} node{'s' if nodes != 1 else ''} of {a_node} are {nodes * a_node} ranks"
        for nodes, a_node in _layouts(experiment)
    )
    return f'world_size = "auto" leaves out {_listed(sizes)} on this fabric: {made}'


def _layouts(experiment: Experiment) -> list[tuple[int, int]]:
    """Return the layouts as (nodes, ranks per node); empty if the experiment lacks either.

    If world sizes and nodes are both axes, each node has one rank.
    """
    nodes, a_node = (_of_fabric(experiment, name) for name in ("nodes", "ranks_per_node"))
    if crossed_axis(experiment) == "fabric.nodes":
        a_node = [1]
    if None in nodes or None in a_node:
        return []
    return [(n, m) for n in nodes for m in a_node]


def _of_fabric(experiment: Experiment, name: str) -> Sequence[Any]:
    fabric = experiment.fabric
    values: Sequence[Any] = experiment.axes.get(
        f"fabric.{name}", [getattr(fabric, name) if fabric is not None else None]
    )
    return values


def _fitting(experiment: Experiment) -> list[int]:
    layouts = _layouts(experiment)
    return sorted({1, *(nodes * a_node for nodes, a_node in layouts)}) if layouts else []


def _unfit_pairs(experiment: Experiment, sizes: Sequence[int]) -> list[dict[str, list[Any]]]:
    given = experiment.axes["world_size"]
    rules: list[dict[str, list[Any]]] = []
    if crossed_axis(experiment) == "nodes":
        for nodes in experiment.axes["nodes"]:
            unfit = [n for n in sizes if n % nodes and n not in given]
            rules += [{"world_size": unfit, "nodes": [nodes]}] if unfit else []
    for nodes, a_node in _layouts(experiment):
        unfit = [n for n in sizes if n not in (1, nodes * a_node) and n not in given]
        if unfit:
            given_too = {} if crossed_axis(experiment) else {"fabric.ranks_per_node": [a_node]}
            rules.append({"world_size": unfit, "fabric.nodes": [nodes], **given_too})
    return rules


def _most_ranks(experiment: Experiment) -> int | None:
    nodes, a_node = (_of_fabric(experiment, name) for name in ("nodes", "ranks_per_node"))
    return max((n * (m or 1) for n in nodes for m in a_node if n is not None), default=None)


def _powers(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length())]


def _listed(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last} ranks" if most else f"{last} rank{'s' if sizes[0] != 1 else ''}"
