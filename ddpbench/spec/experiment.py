"""Build an experiment from its TOML text: the question, the matrix of cases and the budget.

All problems are reported at once, each with the setting's path, the value given and the nearest known name. A catalog
that is passed in has the names of strategies and workloads.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ddpbench.errors import ExperimentError, Problem, meant, nearest
from ddpbench.spec import documents, environment, limits
from ddpbench.spec import overrides as sets
from ddpbench.spec.catalog import Catalog, known_names
from ddpbench.spec.claims import SIDES, Claim, Earlier, malformed, numbered_twice
from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.selections import (
    axis_adapter,
    axis_field,
    axis_names,
    check_selection,
    dotted,
    is_own_option,
    same_value,
    variable_of,
)
from ddpbench.spec.settings import Base, Budget, Experiment, Variable
from ddpbench.spec.spoken import nearest_setting
from ddpbench.text_safety import shortened
from ddpbench.units import series_of

_TOP_LEVEL = tuple(Experiment.model_fields)
_ABOUT_THE_SWEEP = {"name", "question", "budget", "claims"}
"""Keys of an experiment that do not change its cases."""
_NAMED = (
    "must be letters, digits, and . _ - after the first, 100 at most: files and folders are named after it"
)
_WITH_AXES = ("base", "fabric", "options.")
"""Prefixes of the paths of sections whose settings may be axes."""
_MOST_NAMED = 3
"""Most names that the message of one problem lists."""
_Model = TypeVar("_Model", bound=BaseModel)


def load_experiment(
    path: Path,
    catalog: Catalog,
    overrides: Sequence[str] = (),
    on_note: Callable[[str], None] = lambda _: None,
) -> Experiment:
    """Read and validate an experiment file, after applying overrides such as `base.local_batch=16`.

    `on_note` gets a sentence on each axis that an override replaces, and each variable that looks misspelt.

    Raises:
        ExperimentError: the file cannot be read, is not TOML, or has invalid settings, all of which are listed.
    """
    try:
        text = documents.read_text(path)
    except OSError as error:
        raise ExperimentError(str(path), [Problem(path="", message=error.strerror or str(error))]) from None
    except documents.TooMuchError as error:
        raise ExperimentError(str(path), [Problem(path="", message=str(error))]) from None
    except UnicodeDecodeError:
        raise ExperimentError(
            str(path), [Problem(path="", message="is not a UTF-8 text file: save it as one")]
        ) from None
    return parse_experiment(
        text, catalog, name=path.stem, source=str(path), overrides=overrides, on_note=on_note
    )


def parse_experiment(
    text: str,
    catalog: Catalog,
    *,
    name: str,
    source: str = "experiment",
    overrides: Sequence[str] = (),
    on_note: Callable[[str], None] = lambda _: None,
) -> Experiment:
    """Build an experiment from its TOML text, after applying overrides.

    `name` replaces a missing `name`. `on_note` gets a sentence for each setting that an override replaces.

    Raises:
        ExperimentError: the text is not TOML, or has invalid settings, all of which are listed.
    """
    data, problems = _parsed(text, source), list[Problem]()
    before = sets.owner_names(data)
    written, of_file = copy.deepcopy(data), len(problems)
    settings = sets.apply(data, overrides, catalog, problems)
    given = [*settings, *_not_in(written, settings)]
    given += [[problem.path] for problem in problems[of_file:]]  # names of no setting
    if odd := documents.odd_parts(data):  # checked before anything else uses the document
        raise ExperimentError(source, [*problems, *odd])
    changed = {keys[0] for keys in settings if keys}
    if "scope" not in changed and changed - _ABOUT_THE_SWEEP:
        data.pop("scope", None)  # the scope was written for different cases
    for sentence in sets.reconcile(data, settings, before):
        on_note(sentence)
    data.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-") or "experiment")
    models = sets.option_models(sets.owner_names(data), catalog)
    problems += [
        Problem(path=key, message=sets.misplaced(key, models)) for key in data if key not in _TOP_LEVEL
    ]
    base = _section(Base, data.get("base", {}), "base", problems)
    _section(Budget, data.get("budget", {}), "budget", problems)
    if "fabric" in data:
        _section(FabricSettings, data["fabric"], "fabric", problems)
    if "env" in data:
        data["env"] = _env(data["env"], problems)
    axes = _axes(data.get("axes", {}), models, problems)
    _excludes(data.get("exclude", []), models, catalog, problems)
    _own_excludes(data, axes, models, problems)
    _claims(data.get("claims", []), models, catalog, problems)
    problems += _given_twice(data, axes)
    unusable = _names(base, axes, catalog, problems)
    _options(data.get("options", {}), models, catalog, unusable, problems)
    problems += _no_texts(data)
    if problems := problems or list(documents.huge_numbers(data)):
        raise _blamed(source, problems, given)
    _say_misspelt(data, axes, on_note)
    try:
        experiment = Experiment.model_validate({**data, "axes": axes})
    except ValidationError as error:
        raise _blamed(source, explain(error, "", list(Experiment.model_fields)), given) from None
    if problems := list(_uneven_rounds(experiment)):
        raise _blamed(source, problems, given)
    return _with_dtype(experiment, catalog)


def _not_in(written: Mapping[str, Any], settings: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    for keys in settings:
        table: Any = written
        for depth, part in enumerate(keys[:-1], start=1):
            table = table.get(part) if isinstance(table, Mapping) else None
            if table is None:
                yield list(keys[:depth])


def _blamed(source: str, problems: Sequence[Problem], settings: Sequence[Sequence[str]]) -> ExperimentError:
    given = {".".join(keys) for keys in settings}
    own = [problem.path == "--set" or _owner_path(problem.path) in given for problem in problems]
    if all(own):
        return ExperimentError("--set", problems)
    named = [
        problem if problem.path == "--set" else replace(problem, path=f"--set {problem.path}")
        for problem in problems
    ]
    return ExperimentError(
        source, [new if mine else old for old, new, mine in zip(problems, named, own, strict=True)]
    )


def _owner_path(path: str) -> str:
    return path.partition("[")[0]


def _no_texts(data: dict[str, Any]) -> Iterator[Problem]:
    for key in ("name", "question", "scope"):
        if not isinstance(data.get(key, ""), str):
            yield Problem(path=key, message=f"must be a text, not {shortened(data[key])}")


def _given_twice(data: dict[str, Any], axes: Iterable[str]) -> Iterator[Problem]:
    for name in axes:
        path = name if "." in name else f"base.{name}"
        if sets.place_of(data, path):
            yield Problem(path=path, message=f"is an axis too: give {path} or axes.{name}, not both")


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return documents.parse(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(source, [Problem(path="", message=f"is not valid TOML: {error}")]) from None
    except documents.TooMuchError as error:
        raise ExperimentError(source, [Problem(path="", message=str(error))]) from None


def _uneven_rounds(experiment: Experiment) -> Iterator[Problem]:
    budget = experiment.budget
    if budget.rounds_max < budget.rounds_min:
        message = f"is {budget.rounds_max}, below rounds_min = {budget.rounds_min}"
        yield Problem(path="budget.rounds_max", message=message)
    elif experiment.claims and budget.rounds_max > budget.rounds_min:
        message = (
            f"is {budget.rounds_max}, and rounds_min = {budget.rounds_min}: claims need a number of rounds that is "
            f"fixed in advance; give both the same, or leave the claims out: --set 'claims=[]'"
        )
        yield Problem(path="budget.rounds_max", message=message)


def _with_dtype(experiment: Experiment, catalog: Catalog) -> Experiment:
    """Replace the dtype `default` by float32, unless a workload is a user's own class."""
    names = experiment.axes.get("workload", [experiment.base.workload])
    if experiment.base.dtype != "default" or any(catalog.workload(name).own for name in names):
        return experiment
    return experiment.model_copy(update={"base": experiment.base.model_copy(update={"dtype": "float32"})})


def _env(data: object, problems: list[Problem]) -> dict[str, str]:
    if not isinstance(data, dict):
        problems.append(Problem(path="env", message=f"must be a table, not {shortened(data)}"))
        return {}
    variables: dict[str, str] = {}
    for name, value in data.items():
        if why := environment.refused(name):
            problems.append(Problem(path=f"env.{name}", message=why))
            continue
        try:
            variables[name] = Variable.model_validate({"value": value}).value
        except ValidationError as error:
            problems += [Problem(path=f"env.{name}", message=one.message) for one in explain(error, "", [])]
    return variables


def _say_misspelt(data: Mapping[str, Any], axes: Mapping[str, Any], on_note: Callable[[str], None]) -> None:
    names = [*data.get("env", {}), *(variable_of(axis) for axis in axes if variable_of(axis))]
    for name in names:
        if other := environment.meant(name):
            on_note(f"env.{name}: no known program reads this variable; did you mean {other}?")


def _section(model: type[_Model], data: object, path: str, problems: list[Problem]) -> _Model | None:
    if not isinstance(data, dict):
        problems.append(Problem(path=path, message=f"must be a table, not {shortened(data)}"))
        return None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems.extend(explain(error, path, list(model.model_fields)))
        return None


def explain(
    error: ValidationError, path: str, known: Sequence[str], *, of_one: bool = False
) -> list[Problem]:
    """Return pydantic's validation errors as problems, one per field, with paths below `path`.

    With `of_one`, all are about the value at `path`. `known` are the model's field names.
    """
    problems: dict[str, Problem] = {}
    axes: dict[str, str] = {}
    for item in error.errors():
        location = item["loc"]
        named = str(location[0]) if location and not of_one else ""
        where = ".".join(part for part in (path, named) if part)
        if item["type"] == "extra_forbidden":
            message = f"unknown key; {nearest(str(location[0]), known)}"
        elif item["type"] == "missing" and named and len(location) == 1:
            message = "must be given: it has no default"
        else:
            reason = re.sub("^Input should be ", "must be ", item["msg"].removeprefix("Value error, "))
            if item["type"] == "string_pattern_mismatch":
                reason = _NAMED
            near = _choice_meant(item) if where not in problems else ""
            message = f"{shortened(item['input'])} given; {near}{reason}"
            if named and isinstance(item["input"], list) and path.startswith(_WITH_AXES):
                axis = named if path == "base" else f"{path}.{named}"
                axes[where] = f"; several values are an axis: axes.{axis}"
            if where in problems:  # join the errors of a union's alternatives
                message = f"{problems[where].message}, or {reason.removeprefix('must be ')}"
        problems[where] = Problem(path=where, message=message)
    return [replace(one, message=one.message + axes.get(where, "")) for where, one in problems.items()]


def _choice_meant(item: ErrorDetails) -> str:
    if item["type"] != "literal_error" or not isinstance(item["input"], str):
        return ""
    return meant(item["input"], re.findall("'([^']*)'", str(item.get("ctx", {}).get("expected", ""))))


def _axes(
    data: object, models: Mapping[str, type[BaseModel]], problems: list[Problem]
) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    if not isinstance(data, dict):
        problems.append(Problem(path="axes", message=f"must be a table, not {shortened(data)}"))
        return axes
    for name, values in dotted(data).items():
        path = f"axes.{name}"
        if (variable := variable_of(name)) and (why := environment.refused(variable)):
            problems.append(Problem(path=path, message=why))
            continue
        field = axis_field(name, models)
        if field is None:
            problems.append(
                Problem(path=path, message=f"unknown axis; {nearest_setting(name, axis_names(models))}")
            )
            continue
        listed = values if isinstance(values, list) else [values]
        if not listed:
            problems.append(
                Problem(path=path, message="is empty: give at least one value or remove the axis")
            )
            continue
        if len(listed) > limits.MAX_VALUES:
            message = f"has {len(listed):,} values; must be {limits.MAX_VALUES:,} at most: leave values out"
            problems.append(Problem(path=path, message=message))
            continue
        adapter = axis_adapter(field)
        kept: list[Any] = []
        for value in listed:
            try:
                checked = adapter.validate_python(value)
            except ValidationError as error:
                problems += explain(error, path, [], of_one=True)
                continue
            if any(same_value(checked, one) for one in kept):
                problems.append(
                    Problem(path=path, message=f"{shortened(value)} is given twice: leave one out")
                )
                continue
            kept.append(checked)
        axes[name] = kept
    return axes


def _excludes(
    data: object, models: Mapping[str, type[BaseModel]], catalog: Catalog, problems: list[Problem]
) -> None:
    if not isinstance(data, list):
        problems.append(Problem(path="exclude", message="must be a list of tables: write [[exclude]]"))
        return
    for index, rule in enumerate(data):
        path = f"exclude[{index}]"
        if not isinstance(rule, dict) or not rule:
            problems.append(Problem(path=path, message="must be a table with at least one key"))
            continue
        problems += check_selection(rule, path, models, catalog, would="exclude nothing")


def _own_excludes(
    data: Mapping[str, Any],
    axes: Mapping[str, list[Any]],
    models: Mapping[str, type[BaseModel]],
    problems: list[Problem],
) -> None:
    """Add problems for excludes by options of a user's class that no case has.

    No model describes these options, so the experiment's own settings decide.
    """
    rules = data.get("exclude", [])
    options = data.get("options", {})
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        for name in rule if isinstance(rule, dict) else ():
            if not is_own_option(name, models):
                continue
            owner, _, key = name.removeprefix("options.").rpartition(".")
            table = options.get(owner) if isinstance(options, dict) else None
            given = axes.get(name) or ([table[key]] if isinstance(table, dict) and key in table else [])
            path = f"exclude[{index}].{name}"
            if not given:
                problems.append(
                    Problem(path=path, message="is not set by any case: make it an axis, or leave it out")
                )
            problems += [
                Problem(
                    path=path,
                    message=f"no case has the value {shortened(value)}, so it would exclude nothing",
                )
                for value in rule[name]
                if given and not any(same_value(value, one) for one in given)
            ]


def _claims(
    data: object, models: Mapping[str, type[BaseModel]], catalog: Catalog, problems: list[Problem]
) -> None:
    if not isinstance(data, list):
        problems.append(Problem(path="claims", message="must be a list of tables: write [[claims]]"))
        return
    if len(data) > limits.MAX_CLAIMS:
        message = (
            f"has {len(data):,} claims; must be {limits.MAX_CLAIMS} at most: split it into several "
            "experiments"
        )
        problems.append(Problem(path="claims", message=message))
        return
    for index, claim in enumerate(data):
        path = f"claims[{index}]"
        if not isinstance(claim, dict):
            problems.append(Problem(path=path, message=f"must be a table, not {shortened(claim)}"))
            continue
        problems += malformed(claim, path)
        sound = {"says": "-", **claim}  # missing keys are reported above
        for side in SIDES:
            if side not in claim:
                continue
            if not isinstance(claim[side], dict) or not claim[side]:
                message = 'must be a table with at least one key, such as { strategy = "ddp" }'
                problems.append(Problem(path=f"{path}.{side}", message=message))
                del sound[side]
                continue
            problems += check_selection(
                claim[side], f"{path}.{side}", models, catalog, would="select nothing"
            )
        _history(sound.pop("history", []), f"{path}.history", problems)
        _section(Claim, sound, path, problems)
    problems += numbered_twice(data)


def _history(data: object, path: str, problems: list[Problem]) -> None:
    if not isinstance(data, list):
        problems.append(Problem(path=path, message="must be a list of tables: write [[claims.history]]"))
        return
    if len(data) > limits.MAX_HISTORY:
        message = f"has {len(data):,} entries; must be {limits.MAX_HISTORY} at most"
        problems.append(Problem(path=path, message=message))
        return
    for index, entry in enumerate(data):
        _section(Earlier, entry, f"{path}[{index}]", problems)


def _names(
    base: Base | None,
    axes: Mapping[str, list[Any]],
    catalog: Catalog,
    problems: list[Problem],
) -> list[str]:
    unusable: list[str] = []
    lacking: dict[tuple[str, str], list[str]] = {}

    def values(field: str) -> list[tuple[str, str]]:
        if field in axes:
            return [(f"axes.{field}", str(value)) for value in axes[field]]
        return [(f"base.{field}", str(getattr(base, field)))] if base is not None else []

    for path, name in values("strategy"):
        try:
            catalog.strategy(name)
        except KeyError:
            message = f"unknown strategy {shortened(name)}; {nearest(name, known_names('strategy', catalog))}"
            problems.append(Problem(path=path, message=message))
            unusable.append(name)
        except ValueError as error:  # a user's strategy that cannot be used
            lacking.setdefault((path, str(error)), []).append(name)
    for path, name in values("workload"):
        try:
            catalog.workload(name)
        except KeyError:
            message = f"unknown workload {shortened(name)}; {nearest(name, known_names('workload', catalog))}"
            if name.endswith(".py"):
                message = f"{shortened(name)} does not name a class: write {shortened(f'{name}:Class')}"
            problems.append(Problem(path=path, message=message))
            unusable.append(name)
        except ValueError as error:  # a replay whose profile cannot be used
            lacking.setdefault((path, str(error)), []).append(name)
    for (path, why), names in lacking.items():
        listed = series_of([*map(shortened, names)], most=_MOST_NAMED)
        is_named = len(names) == 1 and any(Path(part).name in why for part in names[0].split(":"))
        problems.append(Problem(path=path, message=why if is_named else f"{listed}: {why}"))
    return [*unusable, *(name for names in lacking.values() for name in names)]


def _options(
    options: object,
    models: Mapping[str, type[BaseModel]],
    catalog: Catalog,
    unusable: Sequence[str],
    problems: list[Problem],
) -> None:
    unknown = {
        one for name in unusable for one in (name, name.partition(":")[0], catalog.options_table(name))
    }
    if not isinstance(options, dict):
        problems.append(Problem(path="options", message=f"must be a table, not {shortened(options)}"))
        return
    for owner, given in options.items():
        path = f"options.{owner}"
        if owner not in models:
            if owner in unknown or catalog.options_table(owner) in unknown:
                continue
            problems.append(Problem(path=path, message=_not_an_owner(owner, models, catalog)))
            continue
        _section(models[owner], given, path, problems)


def _not_an_owner(owner: str, models: Iterable[str], catalog: Catalog) -> str:
    table = catalog.options_table(owner)
    for name in models:
        whole = catalog.options_table(name)
        if whole in (table, table.rpartition(":")[0]):
            return f"this experiment has it as {shortened(name)}: write [options.{sets.quoted(name)}]"
    known = {*catalog.strategy_names(), *(name.partition(":")[0] for name in catalog.workload_names())}
    is_one = owner in known or table != owner or ":" in owner or owner.endswith(".py")
    why = "is not used by this experiment" if is_one else "is not a strategy or workload"
    return f"{shortened(owner)} {why}; {nearest(owner, models)}"
