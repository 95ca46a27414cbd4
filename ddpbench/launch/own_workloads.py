"""Find the files of users' workloads, strategies and profiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpbench.errors import RequestError, meant_path
from ddpbench.installed import path_of
from ddpbench.launch.own_classes import missing, missing_module
from ddpbench.launch.shipped_names import SHIPPED, hidden_names
from ddpbench.planted import is_planted
from ddpbench.records.rundir import is_run
from ddpbench.spec import OWN_TYPES, Experiment, PlannedCase
from ddpbench.spec.claims import SIDES
from ddpbench.text_safety import command
from ddpbench.user_files import is_import_path as is_own
from ddpbench.workloads import is_import_path, load_workload
from ddpbench.workloads.shipped import PREFIX, is_path, profile_path


def located(name: str, own_folder: Path | None) -> str:
    """Return the name with the path at which ranks find its file, relative if below the working directory.

    The experiment's folder (`own_folder`) is searched before the working directory. A name without a path, or without
    an existing file, stays as it is.
    """
    head, attribute = _file_of(name)
    path = _found(head, _folders(own_folder)) if head else None
    return name if path is None else _named(name, path, attribute)


def resolved(kind: str, name: str) -> str:
    """Return the import path of a name that an installed package has registered; return any other name unchanged.

    Raises:
        ValueError: several packages have registered the name, or the registered object is not a class.
    """
    if name in SHIPPED[kind] or name.partition(":")[0] in SHIPPED[kind] or is_own(name):
        return name
    return path_of(kind, name) or name


def hidden_in(experiment: Experiment) -> list[str]:
    """Return sentences about an experiment's names that packages have registered, but that ddpbench itself uses."""
    axes, base = experiment.axes, experiment.base
    return hidden_names(
        {kind: [str(name) for name in axes.get(kind, [getattr(base, kind)])] for kind in OWN_SETTINGS}
    )


def located_among(kind: str, name: str, folders: Iterable[Path], advice: str) -> str:
    """Do as `located`, but search for a relative path in these folders, in this order.

    `kind` is one of `OWN_SETTINGS`.

    Raises:
        RequestError: no folder has the file; the message lists the folders and gives the advice.
    """
    head, attribute = _file_of(name)
    if not head:
        return name
    folders = [*dict.fromkeys(folder.resolve() for folder in folders)]
    path = _found(head, folders)
    if path is not None:
        return _named(name, path, attribute)
    if Path(head).is_file():  # an absolute path
        return name
    raise RequestError(f"{kind} {name!r}: {_nowhere('file', head, folders, advice)}")


def file_in(name: str) -> str:
    """Return the path of the profile or Python file in a name; empty if it names no file."""
    return _file_of(name)[0]


def with_file(name: str, path: Path) -> str:
    """Return a name with the path of its file replaced by `path`."""
    return _named(name, path, _file_of(name)[1])


def _file_of(name: str) -> tuple[str, str]:
    if name.startswith(PREFIX):
        profile = name.removeprefix(PREFIX)
        return (profile if is_path(profile) else ""), ""
    head, _, attribute = name.rpartition(":")
    return (head, attribute) if is_import_path(name) and head.endswith(".py") else ("", "")


def _named(name: str, path: Path, attribute: str) -> str:
    return f"{PREFIX}{path}" if name.startswith(PREFIX) else f"{path}:{attribute}"


def _found(name: str, folders: Iterable[Path]) -> Path | None:
    if Path(name).is_absolute():
        return None
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file():
            with contextlib.suppress(ValueError):
                path = path.relative_to(Path.cwd().resolve())
            return path
    return None


def _nowhere(kind: str, name: str, folders: Sequence[Path], advice: str) -> str:
    places = " or ".join(dict.fromkeys(str((folder / name).resolve()) for folder in folders))
    near = (meant_path(path, Path.is_file) for path in (Path(name), *(folder / name for folder in folders)))
    meant = next(filter(None, near), "")
    return f"there is no {kind} {places}{meant or ('' if Path(name).is_absolute() else f'; {advice}')}"


def _advice(name: str, own_folder: Path | None) -> str:
    if own_folder is None or not is_run(own_folder):
        return "give its path from the experiment's folder"
    started = "resume it in the folder in which the run was started"
    # Runs are made below the working directory, unless --out says otherwise.
    for folder in own_folder.resolve().parents:
        with contextlib.suppress(OSError):
            if (folder / name).is_file() and not is_planted(folder / name):
                return f"{started}: {command('cd', folder)}"
    return started


def cast_notes(cases: Iterable[PlannedCase]) -> list[str]:
    """Return a sentence for each user's class whose model and batches are cast because the experiment sets a dtype."""
    found = dict.fromkeys(
        (entry.case.workload, entry.case.dtype)
        for entry in cases
        if is_import_path(entry.case.workload) and entry.case.dtype != OWN_TYPES
    )
    return [
        f'dtype = "{dtype}" casts the parameters and batches of {name}: leave dtype out to keep their types'
        for name, dtype in found
    ]


def check_profile(name: str, own_folder: Path | None) -> None:
    """Check that the profile of a replay exists, if `name` contains the profile's path.

    Raises:
        ValueError: the file does not exist; the message says which paths were tried.
    """
    profile = name.removeprefix(PREFIX)
    if is_path(profile) and not profile_path(profile).exists():
        raise ValueError(_nowhere("profile", profile, _folders(own_folder), _advice(profile, own_folder)))


def check_file(name: str, own_folder: Path | None, kind: str = "") -> None:
    """Check that the file in a name such as `mine.py:TopK`, returned by `located`, exists and has the class.

    Of a name such as `package.module:TopK`, check the package.

    Raises:
        ValueError: the file or package does not exist (the message says where a file was looked for), or the
            file lacks the class.
    """
    head, _, _ = name.rpartition(":")
    if is_import_path(name) and head.endswith(".py") and not Path(head).is_file():
        raise ValueError(_nowhere("file", head, _folders(own_folder), _advice(head, own_folder)))
    if is_import_path(name) and (why := missing_module(name) or missing(name, kind)):
        raise ValueError(why)


def _folders(own_folder: Path | None) -> list[Path]:
    return [*([own_folder.resolve()] if own_folder is not None else []), Path.cwd()]


OWN_SETTINGS = tuple(SHIPPED)
"""The settings that may name users' files: workloads also name profiles."""


def with_located(experiment: Experiment, own_folder: Path) -> Experiment:
    """Return the experiment with names of users' files replaced by the results of `located`, so that runs can resume.

    Raises:
        RequestError: a file does not exist (the message says which paths were tried) or lacks the class, or a file
            is named in two ways.
    """

    def name_of(kind: str, name: str) -> str:
        try:
            found = located(resolved(kind, name), own_folder)
            check_file(found, own_folder, kind)
        except ValueError as error:
            raise RequestError(f"{kind} {name!r}: {error}") from None
        return found

    def selection(rule: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        _check_apart([_setting(key, own_folder) for key in rule], [*rule])
        return {
            _setting(key, own_folder): [name_of(key, value) for value in values] if key in SHIPPED else values
            for key, values in rule.items()
        }

    base = experiment.base.model_copy(
        update={key: name_of(key, getattr(experiment.base, key)) for key in SHIPPED}
    )
    axes = selection(experiment.axes)
    for key in (key for key in axes if key in SHIPPED):
        _check_values(key, axes[key], experiment.axes[key])
    _check_apart([owner_of(owner, own_folder) for owner in experiment.options], [*experiment.options])
    options = {owner_of(owner, own_folder): given for owner, given in experiment.options.items()}
    exclude = [selection(rule) for rule in experiment.exclude]
    claims = [
        claim.model_copy(
            update={side: selection(rule) for side in SIDES if (rule := getattr(claim, side)) is not None}
        )
        for claim in experiment.claims
    ]
    changes = {"base": base, "axes": axes, "options": options, "exclude": exclude, "claims": claims}
    return experiment.model_copy(update=changes)


def _check_values(kind: str, found: Sequence[str], given: Sequence[str]) -> None:
    same = [_whole(kind, name) for name in found]
    for place, name in enumerate(same):
        if (first := same.index(name)) != place:
            raise RequestError(
                f"axes.{kind}: {given[first]!r} and {given[place]!r} are the same {kind}: leave one out"
            )


def _whole(kind: str, name: str) -> str:
    """Return a name with its file's absolute path, or with a shipped workload's size."""
    head, attribute = _file_of(name)
    if head:
        return _named(name, Path(head).resolve(), attribute)
    if kind != "workload" or is_import_path(name) or name.startswith(PREFIX):
        return name
    workload = load_workload(name)
    return f"{workload.name}:{workload.size}" if workload.size else workload.name


def _check_apart(found: Sequence[str], given: Sequence[str]) -> None:
    """Check that no two names mean the same file or class, because one name's settings would be lost.

    Raises:
        RequestError: there are such names.
    """
    for place, name in enumerate(found):
        if (first := found.index(name)) != place:
            one = "file" if ".py" in name else "class" if ":" in name else "module"
            raise RequestError(
                f"{given[first]!r} and {given[place]!r} name the same {one}: use only one of these names"
            )


def _setting(name: str, own_folder: Path) -> str:
    """Replace OWNER in `options.OWNER.KEY` by the result of `owner_of`."""
    if not name.startswith("options."):
        return name
    owner, dot, key = name.removeprefix("options.").rpartition(".")
    return f"options.{owner_of(owner, own_folder)}{dot}{key}"


def owner_of(owner: str, own_folder: Path | None) -> str:
    """Return the full name of an options table, which is the name of a strategy, or of a workload's file or module.

    Raises:
        ValueError: several packages have registered the name, or the registered object is not a class.
    """
    if is_import_path(owner):
        return located(owner, own_folder)
    if owner.endswith(".py"):
        return located(f"{owner}:Any", own_folder).rpartition(":")[0]
    if owner in SHIPPED["strategy"] or owner in SHIPPED["workload"]:
        return owner
    strategy, workload = resolved("strategy", owner), resolved("workload", owner)
    return strategy if strategy != owner else workload.rpartition(":")[0] or owner
