"""The batch sizes that users' classes set, read in a rank, because only ranks import users' classes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from ddpbench.errors import WorkloadError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.launch.own_classes import bound_in, class_of, tree_of
from ddpbench.records.plan import StoredPlan
from ddpbench.runtime.probes import stated_batch
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Experiment, limits
from ddpbench.text_safety import shortened
from ddpbench.workloads import is_import_path

_NAMES = ("batch", "default_batch")
"""Names of the attribute that states the batch size, in a plain class and in one derived from `Workload`."""
_BATCHLESS_BASES = ("Workload", "object")


def own_names(experiment: Experiment) -> list[str]:
    """Return the import paths of the user's workloads in an experiment."""
    return [
        name for name in experiment.axes.get("workload", [experiment.base.workload]) if is_import_path(name)
    ]


def stated_batches(names: Iterable[str]) -> dict[str, int]:
    """Return the batch sizes that users' workloads set, by name.

    A process is started only if a class may set one. A class that cannot be imported is left out, and reported by a
    later inspection.

    Raises:
        WorkloadError: a class sets a batch size that no case can have.
    """
    able = [name for name in names if may_state_batch(name)]
    if not able:
        return {}
    with GuardedFolder("ddpbench-") as path:
        env = {"OPENBLAS_NUM_THREADS": "1"}
        with ServerProcess(env, path / "server.log", log_stays=False) as server:
            batches = {name: stated_batch(server, name, path) for name in able}
    stated = {name: batch for name, batch in batches.items() if batch is not None}
    for name, batch in stated.items():
        try:
            limits.LOCAL_BATCH.checked(batch)
        except ValueError as error:
            raise WorkloadError(f"{name}: invalid batch {shortened(batch)}: {error}") from None
    return stated


def stored_batches(stored: StoredPlan | None) -> dict[str, int]:
    """Return the planned local batches of the user-defined workloads of a run, by import path."""
    cases = [entry.case for entry in stored.cases] if stored is not None else []
    return {case.workload: case.local_batch for case in cases if is_import_path(case.workload)}


def may_state_batch(name: str) -> bool:
    """Return whether a class may set a batch size, by its file's text; True if the text leaves it open."""
    attribute = name.rpartition(":")[2]
    tree = tree_of(name)
    if tree is None:
        return not name.rpartition(":")[0].endswith(".py")  # the inspection reports what is wrong with a file
    node = class_of(tree, attribute)
    if node is None:
        return True
    plain = not node.decorator_list and all(map(_batchless, node.bases))
    return not plain or any(name in _NAMES for name in bound_in(node)) or _set_later(tree, attribute)


def _batchless(base: ast.expr) -> bool:
    base = base.value if isinstance(base, ast.Subscript) else base
    return isinstance(base, ast.Name) and base.id in _BATCHLESS_BASES


def _set_later(tree: ast.Module, attribute: str) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in _NAMES
        and isinstance(node.value, ast.Name)
        and node.value.id == attribute
        for node in ast.walk(tree)
    )


def batch_notes(experiment: Experiment, batches: Mapping[str, int]) -> list[str]:
    """Return sentences that say which batch sizes of users' classes are used, and which the experiment overrides."""
    base, axes = experiment.base, experiment.axes
    local = axes.get("local_batch", [base.local_batch])
    whole = axes.get("global_batch", [base.global_batch])
    weak = "weak" in axes.get("scaling", [base.scaling])
    notes: list[str] = []
    for name, batch in batches.items():
        says = f"{name.rpartition(':')[2]} says batch = {batch}"
        if local not in ([None], [batch]):
            listed = local[0] if len(local) == 1 else local
            setting = (
                f"axes.local_batch = [{batch}]" if "local_batch" in axes else f"base.local_batch = {batch}"
            )
            notes.append(
                f"the experiment's local_batch = {listed} is used, though {says} (to use the class's, set {setting})"
            )
        elif local == [None] and weak:
            notes.append(f"local_batch = {batch}, as {says}")
        elif local == [None] and whole != [None]:
            listed = whole[0] if len(whole) == 1 else whole
            notes.append(f"the experiment's global_batch = {listed} over all ranks is used, though {says}")
    return notes
