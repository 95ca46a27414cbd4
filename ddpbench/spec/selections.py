"""Check an experiment's axes, its excludes, and the sides of its claims."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ddpbench.errors import Problem, nearest
from ddpbench.spec.catalog import Catalog, known_names
from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.settings import Base, Variable
from ddpbench.spec.spoken import nearest_setting
from ddpbench.text_safety import shortened

Models = Mapping[str, type[BaseModel]]
"""Models of the options of strategies and workloads, by name without a size."""


def _json_value(value: Any) -> Any:
    """Check that JSON can hold a value.

    Raises:
        ValueError: it cannot, as dates, NaN and infinity.
    """
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("must be a text, a finite number, true or false, or a list of these") from None
    return value


OwnValue = Annotated[Any, AfterValidator(_json_value)]
"""The value of an option of a user's own class."""


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same type, because a user's class may distinguish 1 from True."""
    return type(one) is type(other) and one == other


def variable_of(axis: str) -> str:
    """Return the environment variable that an axis sets; empty if it sets none."""
    return axis.removeprefix("env.") if axis.startswith("env.") else ""


def axis_field(name: str, models: Models) -> FieldInfo | None:
    """Return the model field of the setting that an axis varies; None if there is none.

    It may be a field of `Base` or of the fabric (`fabric.bandwidth`), an environment variable (`env.NCCL_ALGO`), or an
    option (`options.ddp.X`, `options.train.py.X`).
    """
    if name.startswith("fabric."):
        return FabricSettings.model_fields.get(name.removeprefix("fabric."))
    if variable_of(name):
        return Variable.model_fields["value"]
    if name.startswith("options."):
        _, _, rest = name.partition(".")
        owner, _, key = rest.rpartition(".")
        return _option_field(models.get(owner), key)
    return Base.model_fields.get(name)


def _option_field(model: type[BaseModel] | None, key: str) -> FieldInfo | None:
    """Return an option's field, or None: a user's class may have any option, which ranks check."""
    if model is None:
        return None
    field = model.model_fields.get(key)
    if field is None and model.model_config.get("extra") == "allow" and key.isidentifier():
        return FieldInfo(annotation=OwnValue)
    return field


def is_own_option(name: str, models: Models) -> bool:
    """Return whether an axis is an option that no model describes, which only users' own classes can have."""
    owner, _, key = name.removeprefix("options.").rpartition(".")
    model = models.get(owner) if name.startswith("options.") else None
    return model is not None and key not in model.model_fields and axis_field(name, models) is not None


def axis_names(models: Models) -> list[str]:
    """Return all names that an axis may have, except environment variables, which may have any name."""
    options = [f"options.{owner}.{key}" for owner, model in models.items() for key in model.model_fields]
    return [*Base.model_fields, *(f"fabric.{key}" for key in FabricSettings.model_fields), *options]


def axis_adapter(field: FieldInfo) -> TypeAdapter[Any]:
    """Return the validator for a single value of an axis."""
    annotation: Any = field.annotation
    for metadata in field.metadata:
        annotation = Annotated[annotation, metadata]
    return TypeAdapter(annotation)


def dotted(data: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a table: `bandwidth` in a nested table `fabric` becomes `fabric.bandwidth`."""
    return dict(_dotted(data))


def written_twice(data: Mapping[str, Any], path: str) -> list[Problem]:
    """Return a problem for each setting that a table has twice: as a dotted name in quotes, and in a nested table."""
    counts = Counter(name for name, _ in _dotted(data))
    return [
        Problem(
            path=f"{path}.{name}", message="is given twice, in quotes and in a nested table; give it once"
        )
        for name, count in counts.items()
        if count > 1
    ]


def _dotted(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, values in data.items():
        if isinstance(values, dict):
            yield from ((f"{name}.{key}", value) for key, value in _dotted(values))
        else:
            yield name, values


def check_selection(
    rule: dict[str, Any], path: str, models: Models, catalog: Catalog, *, would: str
) -> list[Problem]:
    """Bring the entries of a table that selects cases into a common form, and return the table's problems.

    Names become dotted, and values become lists of the settings' types.

    Args:
        rule: the table, which is changed; invalid entries are removed.
        path: the table's path in the experiment.
        models: models of the options of the experiment's strategies and workloads.
        catalog: the names of strategies and workloads.
        would: the effect of a value that the setting cannot have, in words, such as `exclude nothing`.
    """
    problems = written_twice(rule, path)
    flat = dotted(rule)
    rule.clear()
    for key, values in flat.items():
        field = axis_field(key, models)
        if field is None:
            message = f"unknown key; {nearest_setting(key, axis_names(models))}"
            problems.append(Problem(path=f"{path}.{key}", message=message))
            continue
        adapter = axis_adapter(field)
        kept: list[Any] = []
        for value in values if isinstance(values, list) else [values]:
            try:
                kept.append(adapter.validate_python(value))
            except ValidationError:
                message = f"{shortened(value)} is not a value of {key}, so it would {would}: leave it out"
                problems.append(Problem(path=f"{path}.{key}", message=message))
        rule[key] = kept
    return [*problems, *_unknown_names(rule, path, catalog)]


def _unknown_names(rule: Mapping[str, list[Any]], path: str, catalog: Catalog) -> list[Problem]:
    problems: list[Problem] = []
    for key, look_up in (("strategy", catalog.strategy), ("workload", catalog.workload)):
        values = rule.get(key, [])
        for place, name in enumerate(values):
            try:
                values[place] = look_up(name).name
            except KeyError:
                message = f"unknown {key} {shortened(name)}; {nearest(str(name), known_names(key, catalog))}"
                problems.append(Problem(path=f"{path}.{key}", message=message))
            except ValueError as error:
                problems.append(Problem(path=f"{path}.{key}", message=str(error)))
    return problems
