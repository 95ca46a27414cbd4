"""What tests start does less of what they do not look at, and shows the same.

Figures are drawn as SVG; their PNG, which takes twice as long, is an empty file. torch's compiler, which takes a core
over a second to import, is imported where something is compiled, and not by whoever builds an optimizer: all that
torch wants of it until then is that functions be left uncompiled. And nothing is collected while torch is imported.

`tests/conftest.py` imports this, and puts it on PYTHONPATH for what tests start; not where ratios are measured.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

PAINTS = "DDPBENCH_TEST_PAINTS"
"""Set in the environment of a test that looks at a PNG."""
COMPILER = "torch._dynamo"


class _Late(ModuleType):
    """torch's compiler before anything is compiled; asked for anything else it becomes the real one."""

    def __getattr__(self, name: str) -> Any:
        load_compiler()
        return getattr(self, name)


def _left_as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if function is not None else lambda decorated: decorated


_UNTIL_THEN: dict[str, Any] = {
    "disable": _left_as_it_is,
    "graph_break": lambda *_, **__: None,
    "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
    "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
}
_real: list[Callable[[ModuleType], None]] = []
_one_at_a_time = threading.RLock()


def load_compiler() -> None:
    """Makes the compiler the real one, if it is not."""
    with _one_at_a_time:
        module = sys.modules.get(COMPILER)
        if not isinstance(module, _Late):
            return
        module.__class__ = ModuleType
        for name in _UNTIL_THEN:
            del module.__dict__[name]
        _real.pop()(module)


def _be_late(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    _real.append(run)
    module.__dict__.update(_UNTIL_THEN)
    module.__class__ = _Late


def _import_without_collecting(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    collects = gc.isenabled()
    gc.disable()
    try:
        run(module)
    finally:
        if collects:
            gc.enable()


def _leave_unpainted(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    paint = module.FigureCanvasAgg.print_png

    @wraps(paint)
    def print_png(*arguments: Any, **options: Any) -> None:
        if PAINTS in os.environ:
            paint(*arguments, **options)

    module.FigureCanvasAgg.print_png = print_png


_CHANGED = {
    COMPILER: _be_late,
    "matplotlib.backends.backend_agg": _leave_unpainted,
    "torch": _import_without_collecting,
}
"""How each of these modules is executed, given how it would be."""


class Changed:
    """Finds those modules as they are imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.startswith(f"{COMPILER}."):
            load_compiler()
        change = _CHANGED.get(name)
        spec = PathFinder.find_spec(name, path, target) if change else None
        if spec is None or spec.loader is None or change is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            change(run, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Changed)  # type: ignore[arg-type]
