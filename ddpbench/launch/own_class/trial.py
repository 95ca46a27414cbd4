"""Try one step of a generated class in a separate process, as a sweep does before its launches."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import tomli_w

from ddpbench.errors import WorkloadError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.devices import usable_devices
from ddpbench.launch.own_class.insertion import NAME
from ddpbench.machine.hardware import read_hardware
from ddpbench.machine.placement import early_env
from ddpbench.runtime.probes import inspected, stated_batch
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.trial import INSPECTION_TIMEOUT_S, described
from ddpbench.spec import expand, parse_experiment

_STUB = """import pathlib, types
from ddpbench.user_files import search_beside
search_beside(pathlib.Path({folder}), __name__)
made = types.ModuleType(__name__)
made.__file__, made.__package__ = {path}, {package}
exec(compile(pathlib.Path({source}).read_bytes(), {path}, "exec", dont_inherit=True), made.__dict__)
globals().update((name, value) for name, value in vars(made).items() if not name.startswith("__"))
"""
"""The source of a module that loads the script with its class, as if the module were at the script's path."""
_BATCH = re.compile(r"^    batch = (?:(\d+)|.+)$", re.MULTILINE)
_BATCHLESS, _MOST = 8, 64
"""The batch size for a class that sets none, and the largest that is tried."""


def trial_of(
    path: Path,
    source: bytes,
    *,
    package: tuple[Path, str] | None = None,
    timeout_s: float = INSPECTION_TIMEOUT_S,
) -> tuple[bool, str]:
    """Try a step of the generated class; return whether it works, and a sentence about the result.

    The script is imported in another process as if it were at `path`.

    Raises:
        LaunchError: the process cannot be started.
    """
    path = path.resolve()
    stated = _BATCH.search(source.decode("utf-8", "replace"))
    with GuardedFolder("ddpbench-init-") as folder:
        (folder / "source").write_bytes(source)
        stub = folder / path.name
        stub.write_text(
            _STUB.format(
                folder=repr(str(path.parent if package is None else package[0])),
                path=repr(str(path)),
                source=repr(str(folder / "source")),
                package=repr("" if package is None else package[1].rpartition(".")[0]),
            ),
            encoding="utf-8",
        )
        workload = f"{stub}:{NAME}"

        def in_users_words(problem: str) -> str:
            return problem.replace(workload, f"class {NAME}").replace(str(stub), str(path))

        base = {
            "workload": workload,
            "strategy": "single",
            "data": "memory",
            "local_batch": _BATCHLESS,
        }
        experiment = parse_experiment(
            tomli_w.dumps({"base": base}), TableCatalog(folder), name="init", source="init"
        )
        case = expand(experiment, TableCatalog(folder), usable_devices(read_hardware()))[0].case
        with ServerProcess(early_env(case), folder / "server.log", log_stays=False) as server:
            try:
                batch = (
                    _BATCHLESS
                    if stated is None
                    else int(stated[1] or 0) or stated_batch(server, workload, folder)
                )
            except WorkloadError as error:
                return False, in_users_words(str(error))
            batch = min(batch or _BATCHLESS, _MOST)
            found = inspected(server, replace(case, local_batch=batch, global_batch=batch), folder, timeout_s)
    if "problem" in found:
        return False, in_users_words(str(found["problem"]))
    return True, described(f"{path.name}:{NAME}", found)
