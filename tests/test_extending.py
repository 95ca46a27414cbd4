"""docs/extending.md, carried out: its additions work in a copy, and the tests of that area pass there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.folders import copy_tree

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")

OF_THE_PAGE = tuple(f"tests/report/test_{name}.py" for name in ("report", "emulated", "tables"))
END_OF_COLUMNS = ")\n_NAMED = {"


def block(title: str, containing: str) -> str:
    """Return the only Python block under a heading with these words, without the indentation of its list."""
    section = re.split(r"(?m)^##+ ", PAGE.partition(f"## {title}\n")[2])[0]
    found = [
        re.sub(rf"(?m)^{indent}", "", text)
        for indent, text in re.findall(r"(?ms)^( *)```python\n(.*?)^ *```", section)
        if containing in text
    ]
    assert len(found) == 1, (title, containing, len(found))
    return str(found[0])


def insert(path: Path, before: str, text: str) -> None:
    """Put a text before the only place with these words."""
    source = path.read_text(encoding="utf-8")
    assert source.count(before) == 1, (path, before, source.count(before))
    path.write_text(source.replace(before, text + before), encoding="utf-8")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the repository without what is made from it, except compiled modules: changed ones are compiled again."""
    for name in ("ddpbench", "tests", "docs", "experiments"):
        copy_tree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "README.md", "Makefile"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def carried_out(copy: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'tests/lighter'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def passes(copy: Path, paths: Iterable[str], *more: str) -> None:
    """Run tests of the copy; those of generated pages need `make docs` first, as anyone would run it."""
    recipes = re.findall(
        r"\$\(BIN\)/python -c '(.*docs/.*)'", (copy / "Makefile").read_text(encoding="utf-8")
    )
    assert len(recipes) >= 4
    carried_out(copy, "-c", "\n".join(recipes))
    carried_out(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable", *more, *paths)


def test_what_it_names_in_a_file_is_there() -> None:
    """`NAME` in `FILE`, `NAME` of `FILE`, and each file of ddpbench, its tests and experiments."""
    text = PAGE.replace("\n", " ")
    for path in re.findall(r"`((?:ddpbench|tests|experiments)/[\w/.]+)`", text):
        made = path == "ddpbench/report/sections/launch_counts.py"
        assert made or (ROOT / path).exists(), path
    named = re.findall(r"((?:`[A-Za-z_.]+` and )?`[A-Za-z_.]+`) (?:in|of) +`([\w/]+\.py)`", text)
    assert len(named) >= 12
    for name, path in [(name, path) for names, path in named for name in re.findall(r"`(.*?)`", names)]:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{part}\b", source) for part in name.split(".")), (name, path)
    overriding = [
        path
        for path in (ROOT / "ddpbench/strategies").rglob("*.py")
        if "def apply(self" in path.read_text("utf-8")
    ]
    assert len(overriding) == 1 + 8, "the base, and the eight that the recipe of an axis counts"


@pytest.mark.thorough
def test_types_of_examples_are_right(tmp_path: Path) -> None:
    texts = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)
    whole = [text for text in texts if re.search(r"(?m)^(from|import) ", text)]
    assert len(whole) == 4, "those with their imports"
    for number, text in enumerate(whole):
        (tmp_path / f"example_{number}.py").write_text(text, encoding="utf-8")
    for path in (ROOT / "experiments/own_strategy").glob("*.py"):
        shutil.copy(path, tmp_path)
    command = [sys.executable, "-m", "mypy", "--strict", *sorted(map(str, tmp_path.glob("*.py")))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_a_column(copy: Path) -> None:
    columns = copy / "ddpbench/analysis/table/columns.py"
    insert(columns, END_OF_COLUMNS, block("A column", "launches_disturbed"))
    (copy / "reports").symlink_to(ROOT / "reports")
    files = [
        f"tests/{name}.py"
        for name in ("analysis/test_frame", "analysis/test_virtual", "test_readme", "test_claims")
    ]
    passes(copy, files, "-k", "column or generated or csv or twins or (records_give and hybrid)")
    dtype = carried_out(
        copy, "-c", "from ddpbench.analysis import DTYPES; print(DTYPES['launches_disturbed'])"
    )
    assert dtype == "Int64\n"


@pytest.mark.thorough
def test_an_axis(copy: Path) -> None:
    spec = copy / "ddpbench/spec"
    insert(
        spec / "settings.py",
        '    launcher: Literal["local", "spawn", "torchrun", "srun", "mpiexec", "ray", "slurm"]',
        block("An axis", "Annotated[bool"),
    )
    insert(
        spec / "case.py",
        "    strategy_traits: Text = field(",
        block("An axis", "channels_last: bool = axis("),
    )
    passes(copy, ["tests/spec", "tests/report/test_axes.py"])
    plan = ("-m", "ddpbench", "sweep", "quick", "--dry-run", "--set", "axes.channels_last=[true, false]")
    printed = carried_out(copy, *plan)
    assert "channels last" in printed
    assert "contiguous" in printed


@pytest.mark.thorough
def test_a_report_section(copy: Path) -> None:
    report = copy / "ddpbench/report"
    shutil.copy(copy / "tests/report/added_section.py", report / "sections/launch_counts.py")
    insert(
        report / "page.py",
        '    "checkpoints": lambda run, rows: checkpoints.section(run.checkpoints, rows),\n',
        block("A report section", '    "launch_counts": lambda _, rows: launch_counts.section(rows),\n'),
    )
    insert(report / "page.py", "    layouts,\n", block("A report section", "    launch_counts,\n"))
    passes(copy, OF_THE_PAGE, "-m", "not thorough")
    program = "from tests.report.handmade import handmade_summary as made; from ddpbench.report import page"
    html = carried_out(copy, "-c", f"{program}; print(page.build(made()).html)")
    assert 'id="launch-counts"' in html
    assert "How often was each case launched?" in html


@pytest.mark.thorough
def test_a_report_section_with_a_figure(copy: Path) -> None:
    """Its file, an import and a line are enough: it is placed between others, and no test counts or names the
    figures."""
    report = copy / "ddpbench/report"
    shutil.copy(copy / "tests/report/added_figure.py", report / "sections/rates.py")
    insert(
        report / "page.py",
        '    "breakdown": lambda run, rows: breakdown.section(',
        '    "rates": lambda _, rows: rates.section(rows),\n',
    )
    insert(report / "page.py", "    scaling,\n", "    rates,\n")
    passes(copy, OF_THE_PAGE)
    program = "from tests.report.handmade import handmade_summary as made; from ddpbench.report import page"
    assert "The rate of each case" in carried_out(copy, "-c", f"{program}; print(page.build(made()).html)")


def test_an_algorithm(copy: Path) -> None:
    """Make a copy of the shortest one, under another name."""
    text = (copy / "ddpbench/collectives/naive_ring.py").read_text(encoding="utf-8")
    twin = text.replace("NaiveRing", "SecondRing").replace('"naive_ring"', '"second_ring"')
    (copy / "ddpbench/collectives/second_ring.py").write_text(twin, encoding="utf-8")
    line = '    "second_ring": Entry("ddpbench.collectives.second_ring:SecondRing", "a ring again"),\n'
    insert(copy / "ddpbench/collectives/__init__.py", '    "tree": Entry(', line)
    line = '    "second_ring": Operation("together", threaded=True),\n'
    insert(copy / "ddpbench/records/operations.py", '    "gather": Operation("to_root")', line)
    formulas = copy / "ddpbench/formulas.py"
    insert(
        formulas,
        '    "master": ("master", master_s),\n',
        '    "second_ring": ("naive ring", naive_ring_s),\n',
    )
    insert(formulas, '        "master": (n - 1) * size,\n', '        "second_ring": (n - 1) * size,\n')
    passes(copy, ["tests/collectives/test_properties.py"], "-k", "second_ring")


def test_a_hook(tmp_path: Path) -> None:
    """Prove it, and find its twin that sums and forgets to divide."""
    text = block("A communication hook", "class Half(")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    (tmp_path / "sums.py").write_text(text.replace(" / dist.get_world_size()", ""), encoding="utf-8")
    for name, code in (("mine", 0), ("sums", 1)):
        words = ("--strategy", f"{tmp_path / name}.py:Half", "--workload", "mlp:small", "--world-size", "2")
        done = subprocess.run(
            [sys.executable, "-m", "ddpbench", "verify", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr


def test_a_feature(copy: Path) -> None:
    folder = copy / "ddpbench/features/counting"
    folder.mkdir()
    (folder / "__init__.py").write_text(block("A feature", "REGISTERED = ("), encoding="utf-8")
    (folder / "command.py").write_text(
        "def add_parser(commands):\n"
        "    parser = commands.add_parser('count-cases')\n"
        "    parser.set_defaults(run=lambda given: print('counted') or 0)\n",
        encoding="utf-8",
    )
    assert carried_out(copy, "-m", "ddpbench", "count-cases") == "counted\n"
