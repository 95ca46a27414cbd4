"""Strategies, workloads and algorithms of installed packages, by the names that their entry points give.

An entry point is another name of an import path: `topk = "package.module:TopK"` in the group `ddpbench.strategies`. It
is looked up when a name is asked for that ddpbench itself does not have, and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from ddpbench.user_files import is_import_path

GROUPS = {
    "strategy": "ddpbench.strategies",
    "workload": "ddpbench.workloads",
    "algorithm": "ddpbench.algorithms",
}
"""Group of entry points by the setting that names what is in it."""


def path_of(kind: str, name: str) -> str:
    """Return the import path that a package has registered under a name; empty if none has.

    Args:
        kind: the setting: `strategy`, `workload` or `algorithm`.
        name: the name, which is none of ddpbench's.

    Raises:
        ValueError: two packages have registered it, or it is not the name of a class; the sentence says which.
    """
    found = {point.value: point for point in entry_points(group=GROUPS[kind], name=name)}
    if not found:
        return ""
    if len(found) > 1:
        packages = " and ".join(sorted(map(package_of, found.values())))
        paths = " or ".join(map(repr, sorted(found)))
        raise ValueError(f"{packages} both have a {kind} {name!r}: name it by its path, {paths}")
    ((path, point),) = found.items()
    if not is_import_path(path):
        raise ValueError(
            f"the {kind} {name!r} of {package_of(point)} is registered as {path!r}: a class was expected, such as "
            "'package.module:Class'"
        )
    return path


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that registered an entry point."""
    return point.dist.name if point.dist is not None else "an installed package"


def listed(kind: str, shipped: Iterable[str]) -> dict[str, str]:
    """Return the registered names that hide no shipped one, each with the package that has it."""
    taken = {*shipped}
    points = entry_points(group=GROUPS[kind])
    return {point.name: f"of the package {package_of(point)}" for point in points if point.name not in taken}
