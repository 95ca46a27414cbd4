"""The names that `spec` accepts in experiments: shipped strategies and workloads, and users' classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ddpbench import user_files
from ddpbench.errors import StrategyError
from ddpbench.installed import listed, packages_with
from ddpbench.launch.own_classes import has_own_step, not_an_algorithm
from ddpbench.launch.own_workloads import check_file, check_profile, located, owner_of, resolved
from ddpbench.launch.shipped_names import SHIPPED
from ddpbench.spec import Case, StrategyInfo, WorkloadInfo
from ddpbench.strategies import TABLE, Strategy, load_strategy, own_step_reason
from ddpbench.strategies.traits import stated_traits
from ddpbench.text_safety import shortened
from ddpbench.workloads import is_import_path, load_workload, workload_names
from ddpbench.workloads.shipped import PREFIX


class _OwnOptions(BaseModel, extra="allow", frozen=True):
    """The options of a user's class, which only ranks can check, because only they import it."""


def _nothing(_: Case) -> None:
    return None


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment. Otherwise an imported file's changes would reach the ranks of all cases."""
    before = dict(os.environ)
    try:
        yield
    finally:
        if dict(os.environ) != before:
            os.environ.clear()
            os.environ.update(before)


class TableCatalog:
    """A catalog of the strategies and workloads in the tables of their packages, and of users' classes.

    Users' files and profiles are searched for first in `folder`, the experiment's folder. `batches` maps the names of
    users' workloads to the local batch sizes that their classes set.
    """

    def __init__(self, folder: Path | None = None, batches: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._batches = batches or {}
        self._strategies: dict[str, StrategyInfo] = {}
        """Users' strategies, by the name that was requested."""

    def strategy_names(self) -> list[str]:
        return list(TABLE)

    def workload_names(self) -> list[str]:
        return workload_names()

    def installed_names(self, kind: str) -> list[str]:
        return [*listed(kind, SHIPPED[kind])]

    def strategy(self, name: str) -> StrategyInfo:
        if name in TABLE:
            return _info(name, load_strategy(name))
        if name not in self._strategies:
            path = located(resolved("strategy", name), self._folder)
            if name.endswith(".py"):
                raise ValueError(
                    f"{shortened(name)} does not name a class: write {shortened(f'{name}:Class')}"
                )
            if not user_files.is_import_path(path):
                raise KeyError(name)
            check_file(path, self._folder, "strategy")
            try:
                with _environment_kept():
                    found = load_strategy(path)
            except StrategyError as error:
                which = (
                    ""
                    if user_files.is_import_path(name)
                    else f"{name!r} of {packages_with('strategy', name)}: "
                )
                raise ValueError(f"{which}{error}") from None
            self._strategies[name] = replace(_info(path, found), traits=partial(stated_traits, found))
        return self._strategies[name]

    def check_algorithm(self, name: str) -> None:
        path = located(name, self._folder)
        check_file(path, self._folder, "algorithm")
        if why := not_an_algorithm(path):
            raise ValueError(why)

    def options_table(self, name: str) -> str:
        try:
            return owner_of(name, self._folder)
        except ValueError:  # reported where the strategy or workload of that name is checked
            return name

    def workload(self, name: str) -> WorkloadInfo:
        name = resolved("workload", name)
        if is_import_path(name):  # only a rank imports it
            batch = self._batches.get(name)
            check = own_step_reason if has_own_step(name) else _nothing
            return WorkloadInfo(name=name, options=_OwnOptions, check=check, default_batch=batch, own=True)
        if name.startswith(PREFIX):
            name = located(name, self._folder)
            check_profile(name, self._folder)
        found = load_workload(name)
        name = f"{found.name}:{found.size}" if found.size else found.name
        return WorkloadInfo(
            name=name,
            options=found.options,
            check=found.check,
            compute=found.compute,
            default_batch=found.default_batch,
            pieces=found.pieces,
        )


def _info(name: str, found: Strategy[Any]) -> StrategyInfo:
    return StrategyInfo(
        name=name,
        options=found.options,
        algorithm=found.algorithm,
        schedule=found.schedule,
        uses_buckets=found.uses_buckets,
        uses_backend=found.uses_backend,
        one_process=found.one_process,
        note=found.note,
        check=found.check,
        algorithms=found.algorithms,
        schedules=found.schedules,
        own_algorithms=found.own_algorithms,
        trainers=found.trainers,
        pieces=found.pieces,
        piece_count=found.piece_count,
        launcher=found.launcher,
    )
