"""The installed wheel: the experiments with their files, and commands that need no checkout."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpbench.strategies.frameworks.installed import FRAMEWORKS
from tests.open_folder import open_folder

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[1]
SOURCES = (
    "ddpbench",
    "docs",
    "experiments",
    "pyproject.toml",
    "README.md",
    "constraints.txt",
)
OTHER_USER = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--bounding-set=-all,+dac_read_search",
]
OTHER_USER += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""Prefix that runs a command as a user who may read all files: root's Python, too."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the sdist and the wheel, by the commands of `make build` in a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nbuild:")[2].partition("\n\n")[0]
    lines = re.findall(r"^\t(\$\(BIN\)/python .*)$", recipe, re.MULTILINE)
    assert len(lines) == 1, recipe
    for line in lines:
        command = line.replace("$(BIN)/python", sys.executable)
        done = subprocess.run(command, shell=True, cwd=copy, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = (copy / "dist").glob("*.tar.gz"), (copy / "dist").glob("*.whl")
    return sdist, wheel


def tracked(folder: str) -> dict[str, bytes]:
    """Return the files below a folder of the checkout that belong to it, by path."""
    files = (
        path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}


def test_the_wheel_holds_every_file_of_the_package_and_of_the_experiments(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    code, experiments = tracked("ddpbench"), tracked("experiments")
    assert held == code | {f"ddpbench/{path}": content for path, content in experiments.items()}
    assert len(experiments) > 60


def test_no_shipped_code_needs_docstrings_which_python_may_leave_out() -> None:
    """`python -OO` and PYTHONOPTIMIZE=2 remove docstrings, so argparse must not depend on them."""
    found = [
        f"{name}:{node.lineno}"
        for name, content in (tracked("ddpbench") | tracked("experiments")).items()
        if name.endswith(".py")
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Attribute) and node.attr == "__doc__"
    ]
    assert found == []


def test_the_sdist_holds_what_the_wheel_is_built_from_and_the_docs(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert held >= {
        *tracked("ddpbench"),
        *tracked("experiments"),
        *tracked("docs"),
        "pyproject.toml",
        "README.md",
    }
    assert not any(name.startswith(("tests", "reports")) for name in held)


class Installed:
    """The wheel in an environment without the checkout, used by another user whose HOME is read-only."""

    def __init__(self, wheel: Path, folder: Path, user: list[str]) -> None:
        self.user = user
        self.environment, self.work = folder / "environment", folder / "work"
        self.home, self.temporary = folder / "home", folder / "temporary"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", self.environment], check=True, capture_output=True
        )
        self.site = Path(
            sysconfig.get_path(
                "purelib", vars={"base": str(self.environment), "platbase": str(self.environment)}
            )
        )
        pip = [sys.executable, "-m", "pip", "--python", self.environment / "bin/python", "install"]
        pip += ["--no-deps", "--no-index", "--disable-pip-version-check", wheel]
        subprocess.run(pip, check=True, capture_output=True)
        (self.site / "shared.pth").write_text("\n".join(self._packages()) + "\n", encoding="utf-8")
        for path in (self.work, self.home, self.temporary):
            path.mkdir()
        for path in (self.work, self.temporary):
            path.chmod(0o777)
        self.home.chmod(0o555)
        folder.chmod(0o755)
        self.before = self.files()

    @staticmethod
    def _packages() -> list[str]:
        """Return the folders of torch and the others, whose .pth files, such as a checkout's, are not read."""
        found = {
            str(Path(spec.origin).parents[1])
            for name in ("torch", "pandas", "rich", "matplotlib")
            if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None
        }
        return sorted(found)

    def files(self) -> set[str]:
        """Return all that was installed."""
        found = (path.relative_to(self.site) for path in self.site.rglob("*"))
        return {str(path) for path in found if "__pycache__" not in path.parts}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `ddpbench ...` in the user's folder."""
        environment = {
            "PATH": os.defpath,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            "DDPBENCH_SHARED_MACHINE": "1",
        }
        command = [*self.user, str(self.environment / "bin/ddpbench"), *arguments]
        return subprocess.run(
            command, cwd=self.work, env=environment, capture_output=True, text=True, timeout=300, check=False
        )


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path]) -> Iterator[Installed]:
    user = OTHER_USER if os.geteuid() == 0 else []
    if user and subprocess.run([*user, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("root needs setpriv and CAP_DAC_READ_SEARCH to run commands as another user")
    with open_folder() as folder:
        yield Installed(built[1], folder, user)


def test_an_installed_package_lists_its_experiments(installed: Installed) -> None:
    done = installed.run("list", "--json")
    assert done.returncode == 0, done.stderr
    named = json.loads(done.stdout)["experiments"]
    assert set(named) == {path.stem for path in (ROOT / "experiments").glob("*.toml")}
    quick = tomllib.loads((ROOT / "experiments/quick.toml").read_text(encoding="utf-8"))
    assert named["quick"] == quick["question"]


def test_an_installed_package_sweeps_and_reports_and_writes_only_into_the_run(installed: Installed) -> None:
    small = [
        f"budget.{name}={value}"
        for name, value in (("rounds_min", 1), ("rounds_max", 1), ("measured_s", 0.05))
    ]
    small += ["axes.world_size=[1]", 'axes.strategy=["single"]']
    flags = [word for each in small for word in ("--set", each)]
    swept = installed.run("sweep", "own_workload", *flags, "--out", "run")
    assert swept.returncode == 0, swept.stderr
    assert "555,009 parameters" in swept.stderr
    assert (installed.work / "run/report.html").stat().st_size > 100_000
    # a run of many cases, so that other processes help to draw
    kept = ROOT / "reports/quick-two-cores-gloo"
    shutil.copytree(
        kept, installed.work / "kept", ignore=shutil.ignore_patterns("figures", "report.*", "cases*")
    )
    for path in (installed.work / "kept", *(installed.work / "kept").rglob("*")):
        os.chown(path, *((65534, 65534) if os.geteuid() == 0 else (-1, -1)))
    reported = installed.run("report", "kept")
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout.startswith("kept/report.html")
    for done in (swept, reported):
        assert "atplotlib" not in done.stderr
    assert {path.name for path in installed.work.iterdir()} == {"run", "kept"}
    assert list(installed.home.iterdir()) == []
    assert list(installed.temporary.iterdir()) == []
    assert installed.files() == installed.before


def test_extras_that_advice_names_are_spelt_as_the_wheel_spells_them() -> None:
    """Python 3.11's own pip finds no `a_b` in a wheel: its metadata has `a-b`, for any spelling in pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert [name for name in extras if re.sub(r"[-_.]+", "-", name).lower() != name] == []
    texts = [*(ROOT / "ddpbench").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    advised = {
        name.strip()
        for text in texts
        for names in re.findall(r"(?:ddpbench|install -e ['\"]?\.)\[([\w, -]+)\]", text.read_text("utf-8"))
        for name in names.split(",")
    }
    advised |= {framework.extra for framework in FRAMEWORKS.values()}
    assert "pytest" in advised
    assert advised - set(extras) == {"EXTRA"}  # in a docstring
