"""Find classes and functions that installed packages register as entry points, and functions of ddpbench's features.

An entry point gives a name to an import path, such as `topk = "package.module:TopK"` in the group
`ddpbench.strategies`. Entry points are searched, without any import, for names that ddpbench itself does not have.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.errors import DdpbenchError, RequestError
from ddpbench.text_safety import on_one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = {
    "strategy": "ddpbench.strategies",
    "workload": "ddpbench.workloads",
    "algorithm": "ddpbench.algorithms",
    "section": "ddpbench.sections",
    "command": "ddpbench.commands",
}
"""The group of entry points for each kind. The first three kinds are also settings, whose values may be names in the
group.
"""

OF_FEATURES = ("findings", "answer", "rank")
"""Further kinds, which only features register: a report's first findings, its answer, and a rank's training after its
measurement.
"""


def _registered(kind: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # importing it takes a twentieth of a second

    return entry_points(group=GROUPS[kind])


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A function that one of ddpbench's features registers: its kind, name, import path, and place in the order."""

    kind: str
    """A key of `GROUPS`, or one of `OF_FEATURES`."""
    name: str
    path: str
    """`module:function`."""
    after: str = ""
    """The name of the function in ddpbench's core after which this function comes. If the core lacks the name, this
    function comes last.
    """

    def load(self) -> Callable[..., Any]:
        """Import and return the function."""
        module, _, function = self.path.partition(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return loaded

    def __call__(self, *given: Any) -> Any:
        return self.load()(*given)


_FEATURES = Path(__file__).parent / "features"


@functools.cache
def _shipped() -> tuple[Registered, ...]:
    """Return the functions that the existing features register, in the order of features."""
    names = sorted(path.parent.name for path in _FEATURES.glob("*/__init__.py"))
    modules = [importlib.import_module(f"ddpbench.features.{name}") for name in names]
    return tuple(one for module in modules for one in module.REGISTERED)


def with_features(kind: str, core: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the functions of a kind by name: those in `core`, with the features' functions inserted in order."""
    shipped = [one for one in _shipped() if one.kind == kind]
    functions_by_name: dict[str, Callable[..., Any]] = {}
    for name, function in core.items():
        functions_by_name[name] = function
        functions_by_name |= {one.name: one for one in shipped if one.after == name}
    return functions_by_name | {one.name: one for one in shipped if one.after not in core}


def loaded(kind: str) -> dict[str, Callable[..., Any]]:
    """Import and return the functions of a kind that features register, by name."""
    return {one.name: one.load() for one in _shipped() if one.kind == kind}


def path_of(kind: str, name: str) -> str:
    """Return the import path that an installed package has registered under a name; empty if none has.

    Args:
        kind: the setting: `strategy`, `workload` or `algorithm`.
        name: the name, which is not one of ddpbench's.

    Raises:
        ValueError: several import paths are registered under the name, or the registered path does not name a class.
    """
    from ddpbench.user_files import is_import_path

    points = {point.value: point for point in _registered(kind) if point.name == name}
    if not points:
        return ""
    if len(points) > 1:
        packages = " and ".join(sorted(map(package_of, points.values())))
        paths = " or ".join(map(repr, sorted(points)))
        several = "both" if len(points) == 2 else "all"
        article = "an" if kind[0] in "aeiou" else "a"
        raise ValueError(f"{packages} {several} have {article} {kind} {name!r}: name it by its path, {paths}")
    ((path, point),) = points.items()
    if not is_import_path(path):
        raise ValueError(
            f"the {kind} {name!r} of {package_of(point)} is registered as {path!r}: a class was expected, such as "
            "'package.module:Class'"
        )
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function that a package has registered."""

    name: str
    package: str
    point: EntryPoint

    def __call__(self, *given: Any) -> Any:
        """Import and call the function.

        Raises:
            RequestError: the function cannot be imported, or fails; the message says why.
        """
        with self.guarded():
            return self.point.load()(*given)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn failures of the package's code in the `with` block into RequestError.

        Raises:
            RequestError: the code failed, or would have ended the process; the message says why.
        """
        from ddpbench.user_files import process_kept

        try:
            with process_kept():
                yield
        except (DdpbenchError, KeyboardInterrupt):
            raise
        except BaseException as error:
            from ddpbench.causes import text_of, users_line

            words = f"{type(error).__name__}: {text_of(error)}{users_line(error)}"
            ends = "it ends the process, " if isinstance(error, SystemExit) else ""
            raise RequestError(
                f"{self.name!r} of the package {self.package} failed: {ends}{on_one_line(words)}"
            ) from error


def functions(kind: str, name: str = "") -> list[Function]:
    """Return the functions that packages have registered for a kind, or only those named `name`, sorted by name."""
    every = [
        Function(name=point.name, package=package_of(point), point=point)
        for point in _registered(kind)
        if name in ("", point.name)
    ]
    return sorted(every, key=lambda one: (one.name, one.package))


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that registered an entry point."""
    return point.dist.name if point.dist is not None else "an installed package"


def packages_with(kind: str, name: str) -> str:
    """Return a phrase that names the packages that have registered a name, such as `the package ddp-topk`."""
    packages = sorted({package_of(point) for point in _registered(kind) if point.name == name})
    return f"the {'package' if len(packages) == 1 else 'packages'} {' and '.join(packages)}"


def listed(kind: str, shipped: Iterable[str]) -> dict[str, str]:
    """Map each name that packages have registered for a kind, except `shipped` names, to `of the package ...`.

    For an ambiguous name, the phrase names all packages.
    """
    taken = {*shipped}
    paths_by_name: dict[str, dict[str, str]] = {}
    for point in _registered(kind):
        paths_by_name.setdefault(point.name, {})[point.value] = package_of(point)
    return {name: _of_packages(paths) for name, paths in paths_by_name.items() if name not in taken}


def hidden(kind: str, shipped: Iterable[str]) -> dict[str, str]:
    """Return a sentence on each shipped name that a package has also registered for this kind.

    The name always refers to ddpbench's object, so that a package cannot change what an experiment measures.
    """
    taken, found = {*shipped}, dict[str, str]()
    article = "an" if kind[0] in "aeiou" else "a"
    for point in _registered(kind):
        if point.name in taken:
            advice = (
                "give it another name in the package"
                if kind == "command"
                else f"name the package's class by its path, {point.value!r}"
            )
            found[point.name] = (
                f"the package {package_of(point)} has {article} {kind} {point.name!r} too, but this name means "
                f"ddpbench's own: {advice}"
            )
    return found


def _of_packages(paths: Mapping[str, str]) -> str:
    if len(paths) == 1:
        return f"of the package {next(iter(paths.values()))}"
    packages = " and ".join(dict.fromkeys(sorted(paths.values())))
    return f"of {packages}, so it is ambiguous: name it by its path, {' or '.join(map(repr, sorted(paths)))}"
