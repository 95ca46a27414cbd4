"""What tests start does less of what they do not look at, and shows the same.

Figures are laid out and not written, so that their SVG and PNG are empty: writing is much of a report's time. What
has a form for a phone is laid out in one of the two, by its words: both forms of every kind meet many runs. Of equal
figures one is laid out. Processes that tests start lay out none: importing matplotlib takes longer than the rest of a
report. torch's compiler, which takes a core over a second to import, is imported where something is compiled, and not
where an optimizer is built: all that torch wants of it until then is that functions be left uncompiled. What
operators do to tensors without values, a quarter of what importing torch takes, is imported where there are such
tensors. scikit-learn, which takes longer than torch, is imported only where more of it is used than its digits.
Garbage is looked for less often, and not at all while torch is imported. A fork server imports what its cases'
strategies need, and not what all strategies do, which takes another second. A report is made by one process: the
other core has tests.

`tests/conftest.py` imports this, and puts it on PYTHONPATH for what tests start; not where ratios are measured.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import Any
from zlib import crc32

PAINTS = "DDPBENCH_TEST_PAINTS"
"""Set in the environment of a test that looks at a figure: `1`, or `svg` where it does not look at PNG."""
SHARES = "DDPBENCH_TEST_SHARES"
"""Set in the environment of a test of a report's second process."""
COMPILER = "torch._dynamo"
META = "torch._meta_registrations"
SELDOM = (
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.quantization",
)
"""Modules that `import torch` imports and hardly any training uses."""
DIGITS = "sklearn.datasets"


class _Late(ModuleType):
    """A module of torch's before it is used; asked for what it does not have until then it becomes the real one."""

    def __getattr__(self, name: str) -> Any:
        load(self.__name__)
        return getattr(self, name)


def _left_as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if function is not None else lambda decorated: decorated


class _AsTheRealOne(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        compiler = sys.modules[COMPILER]
        return not isinstance(compiler, _Late) and isinstance(instance, compiler.OptimizedModule)


class _Compiled(metaclass=_AsTheRealOne):
    """What torch asks a module whether it is; until something is compiled, none is."""


def _read_digits() -> Any:
    import gzip
    from importlib.metadata import distribution

    import numpy as np

    # A rank that unpickles this function, as Ray's do, has not imported sklearn.
    digits = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    with gzip.open(str(digits), "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    return SimpleNamespace(
        data=table[:, :-1], target=table[:, -1].astype(int), images=table[:, :-1].reshape(-1, 8, 8)
    )


_UNTIL_THEN: dict[str, dict[str, Any]] = {
    COMPILER: {
        "OptimizedModule": _Compiled,
        "disable": _left_as_it_is,
        "graph_break": lambda *_, **__: None,
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    META: {},
    **{name: {} for name in SELDOM},
    DIGITS: {"load_digits": _read_digits},
    "sklearn": {},
}
"""What each late module has until then."""
_real: dict[str, Callable[[ModuleType], None]] = {}
_one_at_a_time = threading.RLock()


def load(name: str) -> None:
    """Makes a late module the real one, if it is not."""
    with _one_at_a_time:
        module = sys.modules.get(name)
        if not isinstance(module, _Late):
            return
        if name == COMPILER:
            load(META)  # in torch's own order
        module.__class__ = ModuleType
        for own in _UNTIL_THEN[name]:
            del module.__dict__[own]
        _real.pop(name)(module)


def _be_late(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    _real[module.__name__] = run
    module.__dict__.update(_UNTIL_THEN[module.__name__])
    module.__class__ = _Late


def _be_late_with_generators(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """It imports `torch._prims.rng_prims`, and what that does at its end is needed by whoever draws a number."""
    import torch._C

    if hasattr(torch._C, "_set_generator_metaclass"):  # older ones know no such thing
        from torch._opaque_base import OpaqueBaseMeta

        torch._C._set_generator_metaclass(OpaqueBaseMeta)
    _be_late(run, module)


def _load_for_meta(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    begin = module.DeviceContext.__init__

    @wraps(begin)
    def started(self: Any, device: Any) -> None:
        begin(self, device)
        if self.device.type == "meta":
            load(META)

    module.DeviceContext.__init__ = started


def _name_callers(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Name the line that declares an operator, as torch does, without a look at the files of all modules."""
    run(module)

    def get_source(stacklevel: int) -> str:
        frame = sys._getframe(stacklevel)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    module.get_source = get_source


def _find_callers(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Find the module that declares an operator, as torch does, without a look at the files of all modules."""
    run(module)
    module.inspect = SimpleNamespace(getmodule=lambda frame: sys.modules.get(frame.f_globals["__name__"]))


def _import_without_collecting(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    collects = gc.isenabled()
    gc.disable()
    try:
        run(module)
    finally:
        if collects:
            gc.enable()


def _leave_empty(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    write = module.FigureCanvasSVG.print_svg

    @wraps(write)
    def print_svg(self: Any, file: Any, **options: Any) -> None:
        if PAINTS in os.environ:
            write(self, file, **options)
            return
        self.figure.dpi = 72  # as it does itself
        width, height = (72 * inches for inches in self.figure.get_size_inches())
        renderer = module.RendererSVG(width, height, StringIO())
        with renderer._draw_disabled():
            self.figure.draw(renderer)
        file.write(_blank(width, height))

    module.FigureCanvasSVG.print_svg = print_svg


def _blank(width: float, height: float) -> bytes:
    size = f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><defs></defs></svg>'.encode()


def _contents(picture: Any) -> bytes:
    """Return all that a picture is drawn from; empty where it cannot be pickled, as a lambda."""
    try:
        return pickle.dumps(picture)
    except Exception:
        return b""


def _draw_one_form(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    draw_both, save = module.draw, module.saved
    drawn: dict[bytes, Any] = {}

    @wraps(save)
    def saved(figure: Any, kind: str, **options: Any) -> Any:
        return b"" if kind == "png" and os.environ.get(PAINTS) != "1" else save(figure, kind, **options)

    module.saved = saved

    @wraps(draw_both)
    def draw(picture: Any) -> Any:
        if PAINTS in os.environ:
            return draw_both(picture)
        contents = _contents(picture)
        if contents not in drawn or not contents:
            drawn[contents] = draw_one(picture)
        return drawn[contents]

    def empty(inches: tuple[float, float]) -> Any:
        return _blank(*(72 * each for each in inches))

    def blank(picture: Any, narrow: Any) -> Any:
        svg = empty((picture.width_in, picture.height_in))
        kinds = sorted(picture.wanted.figures | {"png"})
        files = {f"figures/{picture.file_name}.{kind}": svg if kind == "svg" else b"" for kind in kinds}
        return module.DrawnPicture(narrow=narrow, svg=svg, png=b"", files=files)

    def draw_one(picture: Any) -> Any:
        if __name__ == "sitecustomize":
            return blank(picture, b"" if picture.narrow is None else empty(picture.narrow_in))
        if picture.narrow is None:
            return draw_both(picture)
        if crc32(f"{picture.file_name} {picture.heading} {picture.alt}".encode()) % 2:
            return replace(draw_both(replace(picture, narrow=None)), narrow=empty(picture.narrow_in))
        with module.drawing():
            return blank(picture, module.narrow_form(picture))

    module.draw = draw


def _work_alone(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    further_cores = module.further_cores
    module.further_cores = lambda: further_cores() if SHARES in os.environ else 0


def _import_for_each_case(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    own_modules, import_for = module._own_modules, module._import_for

    def import_of_strategy(case: Any) -> Any:
        new = import_for(case)
        if module.ddpbench.strategies.is_import_path(case.strategy):
            return new
        strategy = type(module.ddpbench.strategies.load_strategy(case.strategy)).__module__.removesuffix(
            ".strategy"
        )
        for name in own_modules():
            if name == strategy or name.startswith(f"{strategy}."):
                with suppress(ImportError):
                    import_module(name)
        if case.strategy == "fsdp":  # its ranks' tensors ask for the compiler
            load(COMPILER)
        return new

    module._own_modules = lambda: ()
    module._import_for = import_of_strategy


_CHANGED = {
    DIGITS: _be_late,
    "sklearn": _be_late,
    COMPILER: _be_late,
    META: _be_late_with_generators,
    **dict.fromkeys(SELDOM, _be_late),
    "torch._library.utils": _name_callers,
    "torch.library": _find_callers,
    "torch.utils._device": _load_for_meta,
    "ddpbench.helper_process": _work_alone,
    "ddpbench.worker.server": _import_for_each_case,
    "ddpbench.report.draw.canvas": _draw_one_form,
    "matplotlib.backends.backend_svg": _leave_empty,
    "torch": _import_without_collecting,
}
"""How each of these modules is executed, given how it would be."""


class Changed:
    """Finds those modules as they are imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for late in (COMPILER, *SELDOM):
            if name.startswith(f"{late}."):
                load(late)
        if name.startswith("sklearn.") and name != DIGITS:
            load("sklearn")
        change = _CHANGED.get(name)
        spec = PathFinder.find_spec(name, path, target) if change else None
        if spec is None or spec.loader is None or change is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            change(run, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_THRESHOLD = gc.get_threshold()
gc.set_threshold(50_000, 20, 100)
sys.meta_path.insert(0, Changed)  # type: ignore[arg-type]


def undo() -> None:
    """Has this process do all again, where it has not begun to do less."""
    sys.meta_path.remove(Changed)  # type: ignore[arg-type]
    gc.set_threshold(*_THRESHOLD)
