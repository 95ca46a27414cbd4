"""Apply the overrides of `--set` to an experiment, and remove what they replace.

A bare name, without its section, stands for the only setting that it can mean: `precision` for `base.precision`,
`until_s` for `budget.until_s`, `accumulate` for `options.ddp.accumulate` if only ddp has this option.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

from pydantic import BaseModel

from ddpbench.errors import Problem, nearest
from ddpbench.spec import documents
from ddpbench.spec.catalog import Catalog
from ddpbench.spec.claims import SIDES
from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.selections import Models, dotted, same_value, written_twice
from ddpbench.spec.settings import Base, Budget, Experiment
from ddpbench.spec.spoken import setting_meant
from ddpbench.text_safety import and_words, given_twice, shortened, toml_text

_TOP_LEVEL = tuple(Experiment.model_fields)
_SECTIONS: dict[str, type[BaseModel]] = {"base": Base, "budget": Budget, "fabric": FabricSettings}
_OWNERS = ("strategy", "workload")
"""Settings that choose a strategy or a workload, each of which has a table of options."""
_Setting = tuple[list[str], Any, str]
"""A parsed override: the parts of its key, its value, and its text."""


def places(name: str, models: Models, *, emulated: bool = True) -> list[str]:
    """Return the full keys that a setting's bare name may stand for, such as `base.precision` for `precision`.

    Args:
        name: the bare name.
        models: models of the options of the experiment's strategies and workloads, by name.
        emulated: whether there is a fabric. If not, a name that also occurs outside `fabric` cannot mean a fabric's
            setting.
    """
    keys = [f"{section}.{name}" for section, model in _SECTIONS.items() if name in model.model_fields]
    keys += [f"options.{owner}.{name}" for owner, model in models.items() if name in model.model_fields]
    if len(keys) > 1 and not emulated:
        keys = [key for key in keys if not key.startswith("fabric.")]
    return keys


def whole_keys(override: str) -> list[str]:
    """Return the full keys that an override may set, without `axes.`. A table sets each of its entries.

    A bare name of an option is returned unchanged.
    """
    return [key for meant_by_one in _meanings(override) for key in meant_by_one]


def sure_keys(override: str) -> list[str]:
    """Return the full keys that an override certainly sets. Ambiguous bare names are left out."""
    return [keys[0] for keys in _meanings(override) if len(keys) == 1]


def _meanings(override: str) -> list[list[str]]:
    given, value, _ = _read(override, []) or (setting_keys(override.partition("=")[0].strip()), None, "")
    names = [".".join(keys[1:] if keys[0] == "axes" else keys) for keys, _ in _leaves(tuple(given), value)]
    return [([] if "." in name else places(name, {})) or [name] for name in names]


def contradiction(overrides: Iterable[str]) -> tuple[str, str] | None:
    """Return the first override and a later one that replaces its value; None without such a pair.

    Bare names of options are compared as they are, because their owner depends on the experiment.
    """
    given = GivenSettings()
    return next((twice for text in overrides if (twice := given.add(text))), None)


class GivenSettings:
    """Collects overrides, to find an override that replaces a value set by an earlier override."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[str, ...], tuple[Any, str]] = {}
        self._tables: dict[tuple[str, ...], str] = {}

    def add(self, override: str) -> tuple[str, str] | None:
        """Add an override; if it replaces the value of an earlier one, return both."""
        if not (setting := _read(override, [])):
            return None
        keys = setting[0]
        return self.put(
            keys if _is_whole(keys) else _whole(keys, {}, [], emulated=True) or keys, *setting[1:]
        )

    def put(self, keys: Sequence[str], value: Any, text: str) -> tuple[str, str] | None:
        """Add an override as `add` does, but parsed: its key in parts, its value and its text."""
        path, new = _path(keys), _leaves(tuple(keys), value)
        if path in self._tables and not _is_below_axes(path):  # this override replaces the whole table
            still = {leaf for leaf, _ in new}
            for leaf, (_, before) in self._leaves.items():
                if leaf[: len(path)] == path and leaf not in still:
                    return before, text
        for leaf, set_to in new:
            for length in range(1, len(leaf) + 1):
                known = self._leaves.get(leaf[:length])
                if known and (length < len(leaf) or not same_value(known[0], set_to)):
                    return known[1], text
            if isinstance(set_to, dict):  # an empty table, which sets nothing
                continue
            if leaf in self._tables:
                return self._tables[leaf], text
            self._leaves[leaf] = set_to, text
            self._tables |= {leaf[:length]: text for length in range(1, len(leaf))}
        return None


def _is_below_axes(path: Sequence[str]) -> bool:
    """Return whether a key names an axis or a table of axes, which is merged into the others."""
    return path[0] == "axes" and len(path) > 1


def _path(keys: Sequence[str]) -> tuple[str, ...]:
    return ("axes", *".".join(keys[1:]).split(".")) if keys[0] == "axes" and len(keys) > 1 else tuple(keys)


def _leaves(path: tuple[str, ...], value: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Return path and value of each setting; a table sets each of its entries."""
    if not isinstance(value, dict) or not value:
        return [(_path(path), value)]
    return [leaf for key, inner in value.items() for leaf in _leaves((*path, key), inner)]


def with_whole_options(overrides: Iterable[str], models: Models, problems: list[Problem]) -> list[str]:
    """Return the overrides with full keys instead of bare names of options; add problems for ambiguous names."""
    written: list[str] = []
    for text in overrides:
        name, equals, value = text.partition("=")
        if full_key := _owned(setting_keys(name.strip()), models, problems):
            written.append(f"{'.'.join(map(quoted, full_key))}{equals}{value}")
            continue
        axis, dot, bare = name.strip().rpartition(".")
        if axis in ("", "axes") and bare not in _TOP_LEVEL and not places(bare, {}):
            meant_key = _meant(bare, places(bare, models), problems)
            bare = ".".join(map(quoted, _split(meant_key))) if meant_key else bare
        written.append(f"{axis}{dot}{bare}{equals}{value}" if equals else text)
    return written


def _lacks_owner(keys: Sequence[str]) -> bool:
    """Return whether a key such as `options.ratio` may lack its owner."""
    return keys[-2:-1] == ["options"] and list(keys[:-2]) in ([], ["axes"])


def _owned(keys: list[str], models: Models, problems: list[Problem]) -> list[str]:
    if not _lacks_owner(keys) or keys[-1] in models:
        return []
    candidates = [key for key in places(keys[-1], models) if key.startswith("options.")]
    key = _meant(keys[-1], candidates, problems)
    if not key:
        return []
    return ["axes", *_split(key)] if keys[0] == "axes" else _split(key)


def quoted(part: str) -> str:
    """Return a part of a key, in quotes if TOML requires them, as in `"mine.py:TopK"`."""
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else toml_text(part)


def _meant(name: str, candidates: Sequence[str], problems: list[Problem]) -> str:
    if len(candidates) > 1:
        message = f"{name} may be {' or '.join(candidates)}: write the one that is meant"
        problems.append(Problem(path="--set", message=message))
    return candidates[0] if len(candidates) == 1 else ""


class Owner(NamedTuple):
    """A strategy or workload, which has a table of options."""

    kind: str
    """`strategy` or `workload`."""
    name: str

    @property
    def table(self) -> str:
        """Return the name of the options table, which for a workload lacks the size or the class."""
        return self.name if self.kind == "strategy" else self.name.partition(":")[0]


def owner_names(data: Mapping[str, Any], settings: Sequence[list[str]] = ()) -> list[Owner]:
    """Return the strategies and workloads of an experiment.

    `settings` are the keys of overrides. If they include `base.strategy` or `base.workload`, the axis of the same name
    is ignored.
    """
    axes, base = data.get("axes"), data.get("base")
    names: list[Owner] = []
    for field in _OWNERS:
        replaced = ["base", field] in settings and ["axes", field] not in settings
        listed = axes.get(field) if isinstance(axes, dict) and not replaced else None
        if not listed:
            listed = base.get(field) if isinstance(base, dict) else None
        values = listed if isinstance(listed, list) else [listed or Base.model_fields[field].default]
        names += [Owner(field, value) for value in values if isinstance(value, str)]
    return names


def option_models(owners: Iterable[Owner], catalog: Catalog) -> dict[str, type[BaseModel]]:
    """Return the options models of strategies and workloads, by the name of the options table.

    Unknown strategies and workloads are left out.
    """
    models: dict[str, type[BaseModel]] = {}
    for owner in owners:
        with suppress(KeyError, ValueError):  # reported elsewhere
            look_up = catalog.strategy if owner.kind == "strategy" else catalog.workload
            models[owner.table] = look_up(owner.name).options
    return models


def is_emulated(data: Mapping[str, Any]) -> bool:
    """Return whether an experiment's contents have a fabric, as a section or as an axis."""
    axes = data.get("axes")
    return "fabric" in data or (
        isinstance(axes, dict) and any(str(name).partition(".")[0] == "fabric" for name in axes)
    )


def apply(
    data: dict[str, Any], overrides: Sequence[str], catalog: Catalog, problems: list[Problem]
) -> list[list[str]]:
    """Set the overrides' values in `data` and add problems. Return the key of each setting that was set, in parts."""
    if not isinstance(overrides, list | tuple) or not all(isinstance(one, str) for one in overrides):
        message = f'{shortened(overrides)}: give a list of texts, such as ["base.local_batch=16"]'
        problems.append(Problem(path="overrides", message=message))  # from Python: --set gives nothing else
        return []
    if isinstance(data.get("axes"), dict) and not documents.too_deep(data["axes"]):
        problems += written_twice(data["axes"], "axes")
        data["axes"] = dotted(data["axes"])
    read = [setting for text in overrides if (setting := _read(text, problems))]
    # what the name of an option means depends on strategies and workloads, which an override may set
    whole = [(keys, value, text) for keys, value, text in read if _is_whole(keys) and not _lacks_owner(keys)]
    for one in whole:
        _put(data, *one, [])
    models = option_models(owner_names(data, _parts(whole)), catalog)
    settings: list[_Setting] = []
    for given, value, text in read:
        keys = _owned(given, models, problems) or given
        keys = keys if _is_whole(keys) else _whole(keys, models, problems, emulated=is_emulated(data))
        if keys and _put(data, keys, value, text, problems):
            settings.append((keys, value, text))
    given_before = GivenSettings()
    if twice := next((twice for one in settings if (twice := given_before.put(*one))), None):
        problems.append(Problem(path="--set", message=given_twice(*twice)))
    return _parts(settings)


def _parts(settings: Iterable[_Setting]) -> list[list[str]]:
    return [list(leaf) for keys, value, _ in settings for leaf, _ in _leaves(tuple(keys), value)]


def _whole(keys: list[str], models: Models, problems: list[Problem], *, emulated: bool) -> list[str]:
    axis, name = keys[0] == "axes", keys[-1]
    candidates = places(name, models, emulated=emulated)
    if axis:
        candidates = [key for key in candidates if not key.startswith("budget.")]
        if not candidates:
            return keys  # an unknown axis, which is reported with the known ones
    elif not candidates:
        problems.append(Problem(path=name, message=f"unknown setting; {_near(name, models)}"))
    key = _meant(name, candidates, problems)
    if axis and key:
        return ["axes", key.removeprefix("base.")]
    return _split(key) if key else []


def _is_whole(keys: Sequence[str]) -> bool:
    if keys[0] == "axes" and len(keys) == 2:
        return "." in keys[1] or keys[1] in Base.model_fields
    return len(keys) > 1 or keys[0] in _TOP_LEVEL


def _split(key: str) -> list[str]:
    """Split a key into parts such as `options`, `train.py`, `width`; only the middle may contain dots."""
    section, _, rest = key.partition(".")
    owner, _, name = rest.rpartition(".")
    return [section, owner, name] if owner else [section, name]


def _near(name: str, models: Models) -> str:
    known = {field for model in (*_SECTIONS.values(), *models.values()) for field in model.model_fields}
    return setting_meant(name, known, 0.7) or nearest(name, _TOP_LEVEL)


def misplaced(name: str, models: Models) -> str:
    """Say what is wrong with an unknown top-level key of an experiment's file, and where it may belong."""
    sections = [key.rpartition(".")[0] for key in places(name, models)]
    if sections:
        return f"unknown section; put this key in {' or '.join(f'[{section}]' for section in sections)}"
    return f"unknown section; {nearest(name, _TOP_LEVEL)}"


def _read(override: str, problems: list[Problem]) -> _Setting | None:
    path, equals, raw = override.partition("=")
    keys = setting_keys(path.strip())
    if not equals or not all(keys):
        message = f"invalid setting {shortened(override)}: write key=value, such as base.local_batch=16"
        problems.append(Problem(path="--set", message=message))
        return None
    if len(keys) > documents.MAX_DEPTH or len(override) > documents.MAX_BYTES:
        message = f"{shortened(override)}: no setting has that many parts or characters"
        problems.append(Problem(path="--set", message=message))
        return None
    if keys in ([one] for one in _OWNERS):
        keys = ["base", *keys]
    try:
        value = documents.parse(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()  # a bare word is a text, so that base.strategy=ddp needs no quotes
    except documents.TooMuchError as error:
        problems.append(Problem(path="--set", message=f"{shortened(override)} {error}"))
        return None
    return keys, value, override


def _put(data: dict[str, Any], keys: Sequence[str], value: Any, text: str, problems: list[Problem]) -> bool:
    if _is_below_axes(keys):  # the form that `dotted` makes
        written = [(["axes", ".".join(leaf[1:])], inner) for leaf, inner in _leaves(tuple(keys), value)]
    else:
        written = [(list(keys), value)]
    return all(_put_at(data, at, inner, text, problems) for at, inner in written)


def _put_at(
    data: dict[str, Any], keys: Sequence[str], value: Any, text: str, problems: list[Problem]
) -> bool:
    target = data
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            problems.append(Problem(path="--set", message=f"{shortened(text)}: {key} is not a section"))
            return False
    target[keys[-1]] = deepcopy(value)  # a copy, in which a later override may set something
    return True


_OF_OWN_FILE = re.compile(r"""options\.(?P<owner>[^"']*?(:\w+|\.py))\.(?P<option>[^"':]+)""")


def setting_keys(path: str) -> list[str]:
    """Split a setting's path into its parts. A part that contains dots must be quoted as in TOML.

    Only the name of a user's file needs no quotes, as in `options.train.py.width` or `options.mine.py:TopK.ratio`.
    """
    if own := _OF_OWN_FILE.fullmatch(path):
        return ["options", own["owner"], *own["option"].split(".")]
    if '"' not in path and "'" not in path:
        return path.split(".")
    try:
        inner: Any = documents.parse(f"{path} = 0")
    except ValueError:
        return path.split(".")
    keys = []
    while isinstance(inner, dict) and len(inner) == 1:
        ((key, inner),) = inner.items()
        keys.append(key)
    return keys if inner == 0 else path.split(".")


def reconcile(data: dict[str, Any], settings: Sequence[list[str]], before: Iterable[Owner]) -> list[str]:
    """Remove from an experiment what contradicts its overrides; return one sentence per removal.

    Args:
        data: the experiment with the overrides applied, which is changed.
        settings: the keys that were overridden. If two of them contradict each other, both stay, and are refused later.
        before: the strategies and workloads that the experiment had before the overrides.
    """
    return [
        *_replace_axes(data, settings),
        *_replace_values(data, settings),
        *_leave_out(data, settings, before),
    ]


def _replace_axes(data: dict[str, Any], settings: Sequence[list[str]]) -> list[str]:
    if not isinstance(data.get("axes"), dict):
        return []
    axes = data["axes"] = dotted(data["axes"])
    asked = _axes_asked(settings)
    replaced: list[str] = []
    for keys in settings:
        name = ".".join(keys[1:] if keys[:1] == ["base"] else keys)
        if keys[:1] == ["axes"] or name in asked or name not in axes:
            continue
        value = _value_at(data, keys)
        values = axes.pop(name)
        listed = ", ".join(map(str, values if isinstance(values, list) else [values]))
        replaced.append(f"{'.'.join(keys)} = {value} replaces the axis {name} = [{listed}]")
        if name == "scaling" and isinstance(
            data["base"], dict
        ):  # the axis needed both batches; keep the one that this scaling fixes
            data["base"].pop("global_batch" if value == "weak" else "local_batch", None)
    return replaced


def _replace_values(data: dict[str, Any], settings: Sequence[list[str]]) -> list[str]:
    """Remove settings that an override makes axes, and a batch size that its scaling ignores.

    Return one sentence per removal.
    """
    given = {".".join(keys) for keys in settings}
    replaced = []
    for name in _axes_asked(settings):
        key = name if "." in name else f"base.{name}"
        if key not in given and (place := place_of(data, key)):
            table, last = place
            replaced.append(f"axes.{name} = {data['axes'].get(name)} replaces {key} = {table.pop(last)}")
    base = data.get("base")
    if isinstance(base, dict) and "base.scaling" in given:
        idle = {"weak": "global_batch", "strong": "local_batch"}.get(str(base.get("scaling")), "")
        if idle in base and f"base.{idle}" not in given:
            replaced.append(
                f"base.scaling = {base['scaling']} does not use base.{idle} = {base.pop(idle)}, which is "
                "left out"
            )
    return replaced


def _leave_out(data: dict[str, Any], settings: Sequence[list[str]], before: Iterable[Owner]) -> list[str]:
    still = {owner.table for owner in owner_names(data)}
    asked = _axes_asked(settings)
    left_out = []
    for owner in sorted({one.table for one in before} - still):
        key, prefix = f"options.{owner}", f"options.{owner}."
        left: list[str] = []
        axes, options = data.get("axes"), data.get("options")
        for name in list(axes) if isinstance(axes, dict) else ():
            if name.startswith(prefix) and name not in asked:
                del data["axes"][name]
                left.append(f"the axis {name}")
        if (
            isinstance(options, dict)
            and owner in options
            and ["options", owner] not in [k[:2] for k in settings]
        ):
            del options[owner]
            left.append(key)
        for section in ("exclude", "claims"):
            rules = data.get(section)
            if not isinstance(rules, list) or [section] in settings:
                continue
            idle = [index for index, rule in enumerate(rules) if _names_option(rule, prefix)]
            left += [f"{section}[{index}]" for index in idle]
            data[section] = [rule for index, rule in enumerate(rules) if index not in idle]
        if left:
            left_out.append(
                f"{owner} was replaced: {and_words(left)} {'is' if len(left) == 1 else 'are'} left out"
            )
    return left_out


def _names_option(rule: object, prefix: str) -> bool:
    if not isinstance(rule, dict):
        return False
    tables = [rule, *(rule[side] for side in SIDES if isinstance(rule.get(side), dict))]
    return any(name.startswith(prefix) for table in tables for name in dotted(table))


def _axes_asked(settings: Sequence[list[str]]) -> list[str]:
    return [".".join(keys[1:]) for keys in settings if keys[:1] == ["axes"]]


def _value_at(data: Mapping[str, Any], keys: Sequence[str]) -> Any:
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def place_of(table: dict[str, Any], name: str) -> tuple[dict[str, Any], str] | None:
    """Return the table that contains a setting, and the setting's key in the table; None if it is not set.

    The setting's `name` may contain dots.
    """
    if name in table:
        return table, name
    for key, inner in table.items():
        rest = name.removeprefix(f"{key}.")
        if rest != name and isinstance(inner, dict) and (place := place_of(inner, rest)):
            return place
    return None
