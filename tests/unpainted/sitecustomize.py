"""Tests' figures are drawn as SVG; their PNG, which takes twice as long and shows the same, is an empty file.

`tests/conftest.py` imports this, and puts it on PYTHONPATH for what tests start.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

PAINTS = "DDPBENCH_TEST_PAINTS"
"""Set in the environment of a test that looks at a PNG."""


class Unpainted:
    """Finds matplotlib's painter once it is imported, and has it paint only where that is asked for."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "matplotlib.backends.backend_agg":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_change(module: Any) -> None:
            run(module)
            paint = module.FigureCanvasAgg.print_png

            @wraps(paint)
            def print_png(*arguments: Any, **options: Any) -> None:
                if PAINTS in os.environ:
                    paint(*arguments, **options)

            module.FigureCanvasAgg.print_png = print_png

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Unpainted)  # type: ignore[arg-type]
