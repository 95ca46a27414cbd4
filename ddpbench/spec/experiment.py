"""An experiment: the question, the matrix of cases and the budget. TOML text in, frozen validated values out.

Every problem is reported at once, each with its path, the value given and the nearest known name. Names of
strategies and workloads are checked against a catalog that is passed in; nothing here starts or reads
anything but the TOML file.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ddpbench.errors import ExperimentError, Problem, nearest
from ddpbench.spec.case import BucketCap, Case
from ddpbench.spec.catalog import Catalog, Devices, StrategyInfo
from ddpbench.spec.fabric import MAX_NODES, FabricSettings, Links
from ddpbench.units import parse_seconds


def _seconds(value: object) -> object:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return parse_seconds(value)
    return value


MAX_RANKS = 4096
"""The most ranks of one job: as many as the watchdog's page has room for."""
Positive = Annotated[int, Field(gt=0, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Ranks = Annotated[int, Field(gt=0, le=MAX_RANKS, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]
Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
BucketSetting = Literal["default"] | Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class Base(BaseModel, extra="forbid", frozen=True):
    """The settings every case starts from; each of them may also be an axis."""

    workload: str = "gpt:nano"
    strategy: str = "ddp"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    world_size: Ranks | Literal["auto"] = 1
    threads_per_rank: Positive = 1
    loader_workers: Natural = 0
    bucket_cap_mb: BucketSetting = "default"
    local_batch: Positive | None = None
    global_batch: Positive | None = None
    scaling: Literal["weak", "strong"] = "weak"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["full", "bf16", "fp16"] = "full"
    data: Literal["loader", "memory"] = "loader"
    evaluation: Annotated[bool, Field(strict=True)] = False
    checkpoint: Annotated[bool, Field(strict=True)] = False
    checkpoint_dir: str = ""
    """Where snapshots are written for a moment; empty: into the run directory. The disk is part of the cost."""
    launcher: Literal["local", "torchrun"] = "local"
    nodes: Positive = 1
    seed: Seed = 0
    replicate: Natural = 0
    dilation: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True)] = 1.0
    """A replay's computation, and the fabric's links, this many times slower; reported times are divided by it."""
    shrink: Positive = 1
    """A replay's gradient bytes, bucket caps and links divided by this: large models then fit the memory."""


class Budget(BaseModel, extra="forbid", frozen=True):
    """How long to measure, and when to stop. Durations are seconds or texts such as "10 min"."""

    rounds_min: Positive = 5
    rounds_max: Positive = 20
    measured_s: Duration = 2.0
    """Timed steps' share of one launch, seconds."""
    target_half_width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Stop once every case's 95 % interval, of its log ratio to its base case, is this narrow."""
    total: Duration = 600.0
    """No further round is begun that would end after this; `rounds_min` rounds are run whatever it says."""
    hang_timeout: Duration = 60.0
    """A launch of which no rank has made a step for this long is ended as hung."""
    seed: Natural = 0
    """Seeds the order of launches within each round."""


class Experiment(BaseModel, extra="forbid", frozen=True):
    """A validated experiment. Built by `load_experiment` or `parse_experiment`; both know the catalog."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    question: str = ""
    base: Base = Base()
    axes: dict[str, list[Any]] = {}
    exclude: list[dict[str, list[Any]]] = []
    options: dict[str, dict[str, Any]] = {}
    fabric: FabricSettings | None = None
    budget: Budget = Budget()

    def to_toml(self) -> str:
        """The experiment as TOML that `load_experiment` reads back to the same experiment."""
        linked = {name.partition(".")[2] for name in self.axes if name.startswith("fabric.")}
        exclude: Any = {"name": True, "base": set(self.axes), "fabric": linked}
        data = self.model_dump(exclude_none=True, exclude=exclude)
        return tomli_w.dumps({"name": self.name, **data})


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCase:
    """A case of the matrix, and why it will not run if it will not."""

    case: Case
    skip_reason: str | None = None
    added_as_baseline: bool = False
    oversubscribed: bool = False


_TOP_LEVEL = tuple(Experiment.model_fields)
_Model = TypeVar("_Model", bound=BaseModel)


def load_experiment(path: Path, catalog: Catalog, overrides: Sequence[str] = ()) -> Experiment:
    """Reads and validates an experiment file, after applying `--set` style overrides (`base.local_batch=16`).

    Raises:
        ExperimentError: the file cannot be read, is not TOML, or asks for something unknown; all problems
            at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ExperimentError(str(path), [Problem(path="", message=error.strerror or str(error))]) from None
    except UnicodeDecodeError:
        raise ExperimentError(str(path), [Problem(path="", message="is not a UTF-8 text file")]) from None
    return parse_experiment(text, catalog, name=path.stem, source=str(path), overrides=overrides)


def parse_experiment(
    text: str, catalog: Catalog, *, name: str, source: str = "experiment", overrides: Sequence[str] = ()
) -> Experiment:
    """Validates an experiment's TOML text. `name` is used where the text has no `name` of its own.

    Raises:
        ExperimentError: with every problem found.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(source, [Problem(path="", message=f"is not valid TOML: {error}")]) from None
    problems: list[Problem] = []
    for override in overrides:
        _apply_override(data, override, problems)
    data.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-") or "experiment")
    problems += [
        Problem(path=key, message=f"unknown section; {nearest(key, _TOP_LEVEL)}")
        for key in data
        if key not in _TOP_LEVEL
    ]
    base = _section(Base, data.get("base", {}), "base", problems)
    _section(Budget, data.get("budget", {}), "budget", problems)
    if "fabric" in data:
        _section(FabricSettings, data["fabric"], "fabric", problems)
    models = _option_models(base, data, catalog)
    axes = _axes(data.get("axes", {}), models, problems)
    _excludes(data.get("exclude", []), models, problems)
    problems += [
        Problem(path=path, message=f"is an axis too: remove it, or set axes.{name} to one value")
        for name in axes
        if (path := _given(data, name))
    ]
    _names(base, axes, data.get("options", {}), catalog, problems)
    _exclude_names(data.get("exclude", []), catalog, problems)
    problems += [
        Problem(path=key, message=f"must be a text, not {data[key]!r}")
        for key in ("name", "question")
        if not isinstance(data.get(key, ""), str)
    ]
    if problems:
        raise ExperimentError(source, problems)
    try:
        experiment = Experiment.model_validate({**data, "axes": axes})
    except ValidationError as error:
        raise ExperimentError(source, _explain(error, "", list(Experiment.model_fields))) from None
    budget = experiment.budget
    if budget.rounds_max < budget.rounds_min:
        message = f"is {budget.rounds_max}, below rounds_min = {budget.rounds_min}"
        raise ExperimentError(source, [Problem(path="budget.rounds_max", message=message)])
    return experiment


def _apply_override(data: dict[str, Any], override: str, problems: list[Problem]) -> None:
    path, equals, raw = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        message = f"{override!r} is no setting: write key=value, such as base.local_batch=16"
        problems.append(Problem(path="--set", message=message))
        return
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()  # a bare word is a text, so that base.strategy=ddp needs no quotes
    target = data
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            problems.append(Problem(path="--set", message=f"{override!r}: {key} is not a section"))
            return
    target[keys[-1]] = value


def _section(model: type[_Model], data: object, path: str, problems: list[Problem]) -> _Model | None:
    if not isinstance(data, dict):
        problems.append(Problem(path=path, message=f"must be a table, not {data!r}"))
        return None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems.extend(_explain(error, path, list(model.model_fields)))
        return None


def _explain(error: ValidationError, path: str, known: Sequence[str]) -> list[Problem]:
    problems: dict[str, Problem] = {}
    for item in error.errors():
        location = item["loc"]
        where = ".".join(part for part in (path, str(location[0]) if location else "") if part)
        if item["type"] == "extra_forbidden":
            message = f"unknown key; {nearest(str(location[0]), known)}"
        else:
            reason = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
            if item["type"] in ("literal_error", "greater_than", "int_type", "float_parsing"):
                reason = f"should be {reason}"
            message = f"{item['input']!r} given; {reason}"
            if where in problems:  # the alternatives of a union, one line for all
                message = f"{problems[where].message}, or {reason.removeprefix('should be ')}"
        problems[where] = Problem(path=where, message=message)
    return list(problems.values())


def _given(data: Mapping[str, Any], axis: str) -> str:
    """Where an axis' value is given a second time, or nothing."""
    path = axis if "." in axis else f"base.{axis}"
    found: Any = data
    for key in path.split("."):
        if not isinstance(found, dict) or key not in found:
            return ""
        found = found[key]
    return path


def _option_models(
    base: Base | None, data: Mapping[str, Any], catalog: Catalog
) -> dict[str, type[BaseModel]]:
    """The options' models of the strategies and workloads that the experiment names, by name without a size."""
    models: dict[str, type[BaseModel]] = {}
    given = data.get("axes", {})
    for field, look_up in (("strategy", catalog.strategy), ("workload", catalog.workload)):
        listed = given.get(field) if isinstance(given, dict) else None
        values = listed if isinstance(listed, list) else [listed] if listed else [getattr(base, field, None)]
        for name in values:
            try:
                models[str(name).partition(":")[0]] = look_up(str(name)).options
            except (KeyError, ValueError):
                continue  # said elsewhere
    return models


def _axis_field(name: str, models: Mapping[str, type[BaseModel]]) -> FieldInfo | None:
    """The setting of an axis: of `Base`, of the fabric (`fabric.bandwidth`), or an option (`options.ddp.X`)."""
    if name.startswith("fabric."):
        return FabricSettings.model_fields.get(name.removeprefix("fabric."))
    if name.startswith("options."):
        _, _, rest = name.partition(".")
        owner, _, key = rest.rpartition(".")
        model = models.get(owner)
        return None if model is None else model.model_fields.get(key)
    return Base.model_fields.get(name)


def _axis_names(models: Mapping[str, type[BaseModel]]) -> list[str]:
    options = [f"options.{owner}.{key}" for owner, model in models.items() for key in model.model_fields]
    return [*Base.model_fields, *(f"fabric.{key}" for key in FabricSettings.model_fields), *options]


def _axis_adapter(field: FieldInfo) -> TypeAdapter[Any]:
    annotation: Any = field.annotation
    for metadata in field.metadata:
        annotation = Annotated[annotation, metadata]
    return TypeAdapter(annotation)


def _axes(
    data: object, models: Mapping[str, type[BaseModel]], problems: list[Problem]
) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    if not isinstance(data, dict):
        problems.append(Problem(path="axes", message=f"must be a table, not {data!r}"))
        return axes
    for name, values in _dotted(data).items():
        path = f"axes.{name}"
        field = _axis_field(name, models)
        if field is None:
            problems.append(Problem(path=path, message=f"unknown axis; {nearest(name, _axis_names(models))}"))
            continue
        listed = values if isinstance(values, list) else [values]
        if not listed:
            problems.append(
                Problem(path=path, message="is empty: give at least one value or remove the axis")
            )
            continue
        adapter = _axis_adapter(field)
        kept: list[Any] = []
        for value in listed:
            try:
                checked = adapter.validate_python(value)
            except ValidationError as error:
                reasons = " or ".join(
                    dict.fromkeys(item["msg"].removeprefix("Input should be ") for item in error.errors())
                )
                problems.append(Problem(path=path, message=f"{value!r} given; should be {reasons}"))
                continue
            if checked in kept:
                problems.append(Problem(path=path, message=f"{value!r} is given twice"))
                continue
            kept.append(checked)
        axes[name] = kept
    return axes


def _dotted(data: Mapping[str, Any]) -> dict[str, Any]:
    """The axes, those in tables of their own under dotted names: `[axes.fabric]` is `"fabric.bandwidth" = ...`."""
    found: dict[str, Any] = {}
    for name, values in data.items():
        if isinstance(values, dict):
            found |= {f"{name}.{key}": value for key, value in _dotted(values).items()}
        else:
            found[name] = values
    return found


def _excludes(data: object, models: Mapping[str, type[BaseModel]], problems: list[Problem]) -> None:
    if not isinstance(data, list):
        problems.append(Problem(path="exclude", message="must be a list of tables: write [[exclude]]"))
        return
    for index, rule in enumerate(data):
        if not isinstance(rule, dict) or not rule:
            problems.append(
                Problem(path=f"exclude[{index}]", message="must be a table with at least one key")
            )
            continue
        flat = _dotted(rule)
        rule.clear()
        for key, values in flat.items():
            field = _axis_field(key, models)
            if field is None:
                message = f"unknown key; {nearest(key, _axis_names(models))}"
                problems.append(Problem(path=f"exclude[{index}].{key}", message=message))
                continue
            listed = values if isinstance(values, list) else [values]
            adapter = _axis_adapter(field)
            kept: list[Any] = []
            for value in listed:
                try:
                    kept.append(adapter.validate_python(value))
                except ValidationError:
                    message = f"{value!r} is no value of {key}, so that it would exclude nothing"
                    problems.append(Problem(path=f"exclude[{index}].{key}", message=message))
            rule[key] = kept


def _names(
    base: Base | None,
    axes: Mapping[str, list[Any]],
    options: object,
    catalog: Catalog,
    problems: list[Problem],
) -> None:
    def values(field: str) -> list[tuple[str, str]]:
        if field in axes:
            return [(f"axes.{field}", str(value)) for value in axes[field]]
        return [(f"base.{field}", str(getattr(base, field)))] if base is not None else []

    models: dict[str, type[BaseModel]] = {}
    for path, name in values("strategy"):
        try:
            models[name] = catalog.strategy(name).options
        except KeyError:
            message = f"{name!r} is no strategy; {nearest(name, catalog.strategy_names())}"
            problems.append(Problem(path=path, message=message))
    for path, name in values("workload"):
        try:
            models[name.partition(":")[0]] = catalog.workload(name).options
        except KeyError:
            message = f"{name!r} is no workload; {nearest(name, catalog.workload_names())}"
            problems.append(Problem(path=path, message=message))
        except ValueError as error:  # a replay whose profile cannot be used
            problems.append(Problem(path=path, message=str(error)))
    if not isinstance(options, dict):
        problems.append(Problem(path="options", message=f"must be a table, not {options!r}"))
        return
    for owner, given in options.items():
        path = f"options.{owner}"
        if owner not in models:
            known = set(catalog.strategy_names()) | {
                name.partition(":")[0] for name in catalog.workload_names()
            }
            why = "is not used by this experiment" if owner in known else "is no strategy or workload"
            problems.append(Problem(path=path, message=f"{owner!r} {why}; {nearest(owner, models)}"))
            continue
        _section(models[owner], given, path, problems)


def _exclude_names(rules: object, catalog: Catalog, problems: list[Problem]) -> None:
    """Checks the strategies and workloads that excludes name, and gives workloads their whole names."""
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        for key, look_up, known in (
            ("strategy", catalog.strategy, catalog.strategy_names()),
            ("workload", catalog.workload, catalog.workload_names()),
        ):
            values = rule.get(key, []) if isinstance(rule, dict) else []
            for place, name in enumerate(values):
                try:
                    values[place] = look_up(name).name
                except KeyError:
                    message = f"{name!r} is no {key}; {nearest(name, known)}"
                    problems.append(Problem(path=f"exclude[{index}].{key}", message=message))
                except ValueError as error:
                    problems.append(Problem(path=f"exclude[{index}].{key}", message=str(error)))


def resolve(experiment: Experiment, devices: Devices) -> Experiment:
    """The experiment with `auto` replaced by what the machine has, so that it says what is run.

    World sizes become 1, 2, 4 ... up to the devices at hand; device and backend become those it has.
    """
    base, axes = experiment.base, dict(experiment.axes)
    automatic = "cpu" if experiment.fabric is not None else devices.kind  # emulated links end in no GPU
    device = automatic if base.device == "auto" else base.device
    if "device" not in axes:
        base = base.model_copy(update={"device": device})
        if base.backend == "auto" and "backend" not in axes:
            base = base.model_copy(update={"backend": "nccl" if device == "cuda" else "gloo"})
    if "auto" in axes.get("world_size", []):
        limit = _most_ranks(experiment) or devices.ranks(device, base.threads_per_rank)
        powers = [1 << k for k in range(limit.bit_length())]
        expanded = [n for size in axes["world_size"] for n in (powers if size == "auto" else [size])]
        axes["world_size"] = list(dict.fromkeys(expanded))
    return experiment.model_copy(update={"base": base, "axes": axes})


def _most_ranks(experiment: Experiment) -> int | None:
    """Up to how many ranks `auto` goes on a fabric: as many as its largest layout has. None without one."""
    fabric = experiment.fabric
    nodes = experiment.axes.get("fabric.nodes", [fabric.nodes if fabric is not None else None])
    a_node = experiment.axes.get(
        "fabric.ranks_per_node", [fabric.ranks_per_node if fabric is not None else None]
    )
    known = [n * (m or 1) for n in nodes for m in a_node if n is not None]
    return max(known, default=None)


def expand(experiment: Experiment, catalog: Catalog, devices: Devices) -> list[PlannedCase]:
    """The experiment's cases in the order of its axes, with the base cases of their speed-ups added.

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
    """One combination, whole: `Base`'s fields, those of the fabric as `fabric.X`, and options that are axes."""
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
    local_batch, global_batch = setting["local_batch"], setting["global_batch"]
    if setting["scaling"] == "weak":
        if global_batch is not None:
            message = "weak scaling fixes local_batch; global_batch belongs to scaling = 'strong'"
            problems.append(Problem(path="base.global_batch", message=message))
            return None
        local_batch = local_batch or workload.default_batch or 8
        global_batch = local_batch * world_size
    else:
        if global_batch is None or local_batch is not None:
            message = "strong scaling fixes global_batch: give it, and not local_batch"
            problems.append(Problem(path="base.global_batch", message=message))
            return None
        if global_batch % world_size:
            message = f"{global_batch} samples do not divide evenly over {world_size} ranks"
            problems.append(Problem(path="base.global_batch", message=message))
            return None
        local_batch = global_batch // world_size
    backend = setting["backend"]
    if backend == "auto":
        backend = "nccl" if device == "cuda" else "gloo"
    cap: BucketCap = setting["bucket_cap_mb"] if strategy.uses_buckets else None
    owner = setting["workload"].partition(":")[0]
    try:
        strategy_options = strategy.options.model_validate(_options(experiment, setting, strategy.name))
        workload_options = workload.options.model_validate(_options(experiment, setting, owner))
    except ValidationError as error:  # an axis of options that does not go with the others
        problems.extend(_explain(error, "options", []))
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
        algorithm=strategy.algorithm,
        schedule=strategy.schedule,
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
    reason = _layout_reason(case, nodes) or _virtual_reason(case)
    reason = reason or strategy.check(case) or workload.check(case)
    if reason is None and backend == "nccl" and device != "cuda" and strategy.uses_backend:
        reason = "nccl moves data between GPUs only; use gloo on CPU"
    if reason is None and backend == "gloo" and device == "cuda" and strategy.uses_backend:
        reason = (
            "gloo copies GPU memory through the host, and when it is done cannot be stamped; use nccl on GPUs"
        )
    return PlannedCase(case=case, skip_reason=reason, oversubscribed=_oversubscribed(case, devices))


def _options(experiment: Experiment, setting: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """A strategy's or workload's options, those that are axes included."""
    start = f"options.{owner}."
    axes = {key.removeprefix(start): value for key, value in setting.items() if key.startswith(start)}
    return {**experiment.options.get(owner, {}), **axes}


def _layout(
    experiment: Experiment, setting: Mapping[str, Any], problems: list[Problem]
) -> tuple[int, int] | None:
    """A combination's world size and nodes. On a fabric any two of nodes, ranks a node and world size give
    the third; there are never more nodes than ranks."""
    world_size: int = setting["world_size"]
    nodes: int | None = setting["fabric.nodes"]
    a_node: int | None = setting["fabric.ranks_per_node"]
    if setting["fabric.bandwidth"] is None:
        if experiment.fabric is not None or any(name.startswith("fabric.") for name in experiment.axes):
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
        problems.extend(_explain(error, "fabric", list(FabricSettings.model_fields)))
        return None


def _virtual_reason(case: Case) -> str | None:
    """Why this case cannot be slowed down or shrunk, or be on a fabric, or None."""
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


def _layout_reason(case: Case, nodes: int) -> str | None:
    """Why these ranks cannot stand on that many nodes, or None."""
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
