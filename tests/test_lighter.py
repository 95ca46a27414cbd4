"""Processes that tests start do less, and do everything where it is asked for."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from ddpbench.report.draw.canvas import draw
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Picture, Table
from tests.lighter import sitecustomize as lighter

LINES = """
import sys, torch
from torch._dynamo import OptimizedModule
model = torch.nn.Linear(2, 1)
torch.nn.init.zeros_(model.weight)  # less half is half, without rounding
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model(torch.ones(1, 2)).sum().backward()
before = model.weight.clone()
optimizer.step()
compiler = sys.modules["torch._dynamo"]
print(type(compiler).__name__, (before - model.weight).tolist())
compiled = torch.compile(model, backend="eager")
print(bool((compiled(torch.ones(1, 2)) == model(torch.ones(1, 2))).all()), type(compiler).__name__)
print(isinstance(model, OptimizedModule), isinstance(compiled, OptimizedModule))
"""
META_LINES = """
import sys, torch
torch.Generator().manual_seed(0)
convolution = torch.nn.Conv2d(1, 4, 3)
convolution(torch.ones(1, 1, 8, 8)).sum().backward()
meta = sys.modules["torch._meta_registrations"]
print(type(meta).__name__)
if sys.argv[1] == "meta":
    with torch.device("meta"):
        print(list(torch.nn.Conv2d(1, 4, 3)(torch.ones(1, 1, 8, 8)).shape))
else:
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        print(list(torch.nn.functional.conv2d(torch.ones(1, 1, 8, 8), torch.ones(4, 1, 3, 3)).shape))
print(type(meta).__name__)
"""


@pytest.mark.thorough
def test_the_compiler_is_left_out_until_something_is_compiled() -> None:
    done = subprocess.run([sys.executable, "-c", LINES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["_Late [[0.5, 0.5]]", "True module", "False True"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_operators_rules_for_tensors_without_values_are_imported_only_for_them(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", META_LINES, kind], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["_Late", "[1, 4, 6, 6]", "module"]


SELDOM_LINES = """
import sys, torch

@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

@twice.register_fake
def _(x):
    return torch.empty_like(x)

kinds = [type(sys.modules[name]).__name__ for name in sys.argv[1:]]
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    print(list(twice(torch.ones(3)).shape))
print(*kinds)
normal = torch.distributions.Normal(0.0, 1.0)
print(normal.mean, torch.export.Dim("batch").__name__, torch.quantization.QConfig.__name__)
from torch.masked import masked_tensor
print(type(sys.modules["torch.masked"]).__name__)
"""


@pytest.mark.thorough
def test_what_trainings_seldom_use_is_imported_when_it_is_used() -> None:
    command = [sys.executable, "-c", SELDOM_LINES, *lighter.SELDOM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    late = " ".join(["_Late"] * len(lighter.SELDOM))
    assert done.stdout.splitlines() == ["[3]", late, "tensor(0.) batch QConfig", "module"]


SERVER_LINES = """
import sys
from ddpbench.spec import Case
from ddpbench.worker import server
server.preload()
print(type(sys.modules["torch._dynamo"]).__name__, "torch.distributed.fsdp" in sys.modules)
for name in ("pipeline", "fsdp"):
    server._import_for(Case(workload="mlp:small", strategy=name, world_size=1))
    replica = sys.modules[f"ddpbench.strategies.{name}.replica"]
    print(type(sys.modules["torch._dynamo"]).__name__, "ddpbench.strategies.zero1.replica" in sys.modules)
"""


@pytest.mark.thorough
def test_a_server_imports_what_its_cases_strategies_need() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER_LINES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["_Late False", "_Late False", "module False"]


DIGITS_LINES = """
import sys
from sklearn.datasets import load_digits
found = load_digits()
print([type(sys.modules[name]).__name__ for name in ("sklearn", "sklearn.datasets")])
from sklearn.datasets import fetch_california_housing, load_digits
real = load_digits()
print([type(sys.modules[name]).__name__ for name in ("sklearn", "sklearn.datasets")])
for name in ("data", "images", "target"):
    one, other = getattr(found, name), getattr(real, name)
    print(name, one.dtype == other.dtype, one.shape == other.shape, bool((one == other).all()))
"""


@pytest.mark.thorough
def test_digits_are_those_of_scikit_learn_which_is_imported_for_all_else() -> None:
    done = subprocess.run([sys.executable, "-c", DIGITS_LINES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['_Late', '_Late']",
        "['module', 'module']",
        *(f"{name} True True True" for name in ("data", "images", "target")),
    ]


laid_out: list[float] = []


def paint(sheet: Sheet) -> None:
    axes = sheet.figure.add_axes((0.2, 0.2, 0.7, 0.7))
    axes.plot([0, 1], [0, 1])
    axes.xaxis.set_major_formatter(lambda x, _: laid_out.append(x) or "")


def picture_of(heading: str) -> Picture:
    return Picture(
        file_name="a",
        heading=heading,
        caption="",
        alt="",
        table=Table(caption="", columns=(), rows=()),
        width_in=2.0,
        height_in=1.0,
        paint=paint,
        missing={},
    )


def test_of_equal_figures_one_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out.clear()
    first = draw(picture_of("one of two"))
    labels = len(laid_out)
    assert labels
    assert draw(picture_of("one of two")) == first
    assert len(laid_out) == labels
    draw(picture_of("another"))
    assert len(laid_out) == 2 * labels
    monkeypatch.setenv(lighter.PAINTS, "1")
    assert draw(picture_of("one of two")).png
    assert len(laid_out) > 2 * labels


FIGURE_LINES = """
import sys
from ddpbench.report.draw.canvas import draw
from ddpbench.report.parts import Picture, Table

def paint(sheet):
    sheet.figure.add_axes((0.2, 0.2, 0.7, 0.7)).plot([0, 1], [0, 1])

given = dict(heading="", caption="", alt="", table=Table(caption="", columns=(), rows=()), missing={})
narrow = dict(narrow=paint, narrow_in=(1.0, 1.0))
for more in ({}, narrow):
    one = Picture(file_name="a", width_in=2.0, height_in=1.0, paint=paint, **given, **more)
    drawn = draw(one)
    print(b"0 0 144 72" in drawn.svg, b"0 0 72 72" in drawn.narrow, drawn.png[1:4], sorted(drawn.files))
print("matplotlib.figure" in sys.modules)
"""


@pytest.mark.parametrize("paints", [False, True])
def test_a_process_that_a_test_starts_lays_out_no_figure(
    monkeypatch: pytest.MonkeyPatch, paints: bool
) -> None:
    if paints:
        monkeypatch.setenv(lighter.PAINTS, "1")
    done = subprocess.run([sys.executable, "-c", FIGURE_LINES], capture_output=True, text=True, check=True)
    png = b"PNG" if paints else b""
    each = [f"True {narrow} {png!r} ['figures/a.png']" for narrow in (False, True)]
    assert done.stdout.splitlines() == [*each, str(paints)]


def test_a_figure_is_laid_out_and_written_only_for_who_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out.clear()
    picture = picture_of("")
    empty = draw(picture)
    labels = len(laid_out)
    assert labels
    monkeypatch.setenv(lighter.PAINTS, "1")
    whole = draw(picture)
    assert len(laid_out) > labels
    assert (len(empty.png), whole.png[:4]) == (0, b"\x89PNG")
    roots = [ElementTree.fromstring(one.svg) for one in (empty, whole)]
    assert [len(list(root.iter())) > 10 for root in roots] == [False, True]
