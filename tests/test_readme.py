"""The README and docs/, carried out: their strategy, workload, experiments and commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ddpbench import cli
from ddpbench.cli import make_parser
from ddpbench.launch.catalog import TableCatalog
from ddpbench.report.series import BY_CAP
from ddpbench.spec import Devices, expand, parse_experiment
from tests.folders import PACKAGE, copy_tree, modules_of
from tests.pages import GENERATED, PROSE, ROOT
from tests.processes import python_path

README = PROSE
"""With the pages of docs/."""
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """Return the only fenced block of this language with these words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    found = [text for text in blocks if containing in text]
    assert len(found) == 1, (language, containing, len(found))
    return str(found[0])


def run(code: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddpbench", *arguments],
        cwd=code,
        env={**os.environ, "PYTHONPATH": python_path(code)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the package with the strategy of docs/extending.md added, and a broken version of it."""
    root = tmp_path_factory.mktemp("extended")
    copy_tree(ROOT / "ddpbench", root / "ddpbench")
    shown = (ROOT / "experiments/own_strategy/one_shot.py").read_text(encoding="utf-8")
    strategy = shown.replace("    options =", '    name = "one_shot"\n    options =')
    assert strategy != shown
    line = block("python", '"one_shot": Entry(')
    (root / "ddpbench/strategies/one_shot.py").write_text(strategy, encoding="utf-8")
    # The twin sums and forgets to divide: the mistake the proof is for.
    forgetful = strategy.replace("            flat /= job.world_size\n", "").replace("one_shot", "forgetful")
    assert forgetful != strategy.replace("one_shot", "forgetful")
    (root / "ddpbench/strategies/forgetful.py").write_text(forgetful, encoding="utf-8")
    table = root / "ddpbench/strategies/__init__.py"
    text = table.read_text(encoding="utf-8")
    anchor = '    "async_server": Entry(\n'
    assert anchor in text
    twin = line.replace("one_shot", "forgetful")
    table.write_text(text.replace(anchor, line + twin + anchor), encoding="utf-8")
    return root


@pytest.mark.multiprocess
def test_a_strategy_added_by_the_readme_is_proved(extended: Path) -> None:
    result = run(extended, "verify", "--strategy", "one_shot", "--workload", "mlp:small")
    assert result.returncode == 0, result
    assert "4 proved, 0 not, 0 skipped" in result.stdout
    assert "one all-reduce of all gradients after the whole backward pass" in " ".join(
        run(extended, "list").stdout.split()
    )


@pytest.mark.multiprocess
def test_a_strategy_that_forgets_to_average_is_found_out(extended: Path) -> None:
    arguments = ("--strategy", "forgetful", "--workload", "mlp:small", "--world-size", "1", "2")
    result = run(extended, "verify", *arguments)
    assert result.returncode == 1, result
    # At one rank the sum is the mean; at two it is off by the mean itself: a relative error of 1.
    assert "1 proved, 1 not, 0 skipped" in result.stdout
    finding = r"gradients, same shards \(float64\): error 1, allowed 1e-10, on rank [01] the most in \w+"
    assert re.search(finding, result.stdout), result.stdout


@pytest.mark.multiprocess
def test_the_readmes_workload_trains(tmp_path: Path) -> None:
    path = tmp_path / "my_workload.py"
    path.write_text(block("python", "# my_workload.py"), encoding="utf-8")
    arguments = ("--algorithm", "all_reduce", "--workload", f"{path}:Regression", "--world-size", "2")
    result = run(ROOT, "verify", "--strategy", "ddp", *arguments)
    assert result.returncode == 0, result
    assert "2 proved, 0 not, 0 skipped" in result.stdout


def test_the_readmes_experiment_is_valid() -> None:
    catalog = TableCatalog()
    experiment = parse_experiment(block("toml", "experiments/bucket_and_batch.toml"), catalog, name="readme")
    cases = expand(experiment, catalog, Devices(kind="cpu", gpus=0, cores=2))
    assert sum(entry.case.strategy == "ddp" for entry in cases) == 3 * 3 - 1


def test_the_readmes_cluster_is_valid() -> None:
    catalog = TableCatalog()
    experiment = parse_experiment(block("toml", "[fabric]"), catalog, name="readme")
    cases = [entry.case for entry in expand(experiment, catalog, Devices(kind="cpu", gpus=0, cores=2))]
    shapes = {(case.nodes, case.ranks_per_node) for case in cases if case.strategy == "ddp"}
    assert shapes == {(2, 1), (2, 4)}
    assert sum(case.strategy == "ddp" for case in cases) == 2 * 2 * 2


COMMANDS = [
    line.partition(" #")[0].strip()
    for text in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in text.splitlines()
    if line.startswith("ddpbench ")
]
NEEDS_MORE = ("reports/", "gpt.json", "mine.json", "--workload train.py:Measured")
"""Words in commands that need a run, a profile or a user's script, whose effects are tested elsewhere."""
PLANNED = [
    line for line in COMMANDS if line.split()[1] == "sweep" and not any(part in line for part in NEEDS_MORE)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_parses(line: str) -> None:
    arguments = shlex.split(line)[1:]
    assert make_parser().parse_args(arguments).command == arguments[0]


@pytest.mark.parametrize("line", [line for line in PLANNED if "--dry-run" not in line])
def test_every_sweep_can_be_planned(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*shlex.split(line)[1:], "--dry-run", "--out", str(tmp_path / "run")]
    assert cli.run(arguments) == 0, capsys.readouterr().err
    assert "cases" in capsys.readouterr().out


def test_every_question_has_an_experiment() -> None:
    """Or another command, in the cell after the question."""
    rows = re.findall(r"(?m)^\| [^|]+\? \| (.+) \|$", README)
    assert len(rows) >= 6
    names = {name for row in rows for name in re.findall(r"`(?:ddpbench sweep )?(\w+)`", row)}
    known = {path.stem for path in (ROOT / "experiments").glob("*.toml")}
    assert names <= known
    assert len(names) >= 6


def test_the_readme_names_every_subcommand_and_package() -> None:
    parser = make_parser()
    actions = [action for action in parser._actions if action.dest == "command"]
    for name in actions[0].choices or ():
        assert f"ddpbench {name}" in README, name
    for path in sorted((ROOT / "ddpbench").iterdir()):
        if path.is_dir() and (path / "__init__.py").is_file():
            assert f"`{path.name}`" in ARCHITECTURE, path.name


def test_the_makefile_has_the_readmes_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"(?:^|`)make (\w+)", README, flags=re.MULTILINE)
    assert {"sweep", "test", "bench", "build"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def titles() -> set[str]:
    """Return the titles of the report's sections, from its code."""
    report = ROOT / "ddpbench/report"
    paths = [*modules_of("report/sections"), *PACKAGE.glob("features/*/report/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    found = re.findall(r'(?:title=|"title": )"([^"]+)"', "".join(texts))
    return {
        *found,
        *([BY_CAP] if "title=BY_CAP" in "".join(texts) else []),
        *re.findall(r'heading\("[^"]+", "([^"]+)"', (report / "page.html").read_text("utf-8")),
    }


def sections_named(page: str) -> set[str]:
    """Return the sections of a report that a page names, in bold."""
    return set(re.findall(r"\*\*([^*]+)\*\*", page))


def test_every_section_that_its_page_names_is_a_title_of_the_report() -> None:
    text = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    named = sections_named(text)
    assert len(named) > 6
    assert named <= titles()
    assert sections_named(text.replace("**Where the time goes**", "**Where time goes**")) - titles() == {
        "Where time goes"
    }


def test_the_readme_states_the_supported_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = (need.partition(">=")[2] for need in project["dependencies"] if need.startswith("torch>="))
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in words
    assert f"torch {torch} or newer" in words


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 1100


def test_the_readme_opens_with_its_two_commands_and_own_model_in_eight_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = text.partition("```sh\n")[2].partition("```")[0]
    assert [line.partition("  #")[0].strip() for line in first.splitlines()] == ["make sweep", "make test"]
    assert text.count("\n", 0, text.index("make sweep")) < 25
    own = text.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in own.splitlines() if line]) == 8
    assert own in (ROOT / "experiments/own_script/train_after.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_leads_somewhere(page: str) -> None:
    """Links lead to files that exist, and, if they name a part of a page, to one of its headings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, part in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", text):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.is_file(), target
        if part:
            headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
            assert part in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}, part


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{path.name})" in readme


def test_generated_pages_are_up_to_date() -> None:
    """Regenerate them with `make docs`."""
    from ddpbench.analysis.table import columns
    from ddpbench.cli import commands_page
    from ddpbench.launch import settings_page
    from ddpbench.report.method import glossary

    made = {
        "columns.md": columns.page(),
        "commands.md": commands_page.page(),
        "glossary.md": glossary(),
        "settings.md": settings_page.page(),
    }
    assert set(made) == set(GENERATED)
    for name, text in made.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text


def test_every_strategy_and_algorithm_has_its_words() -> None:
    from ddpbench.collectives import TABLE as COLLECTIVES
    from ddpbench.strategies import TABLE

    section = (ROOT / "docs/strategies.md").read_text(encoding="utf-8")
    table = section.partition("| strategy |")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(TABLE), "each has a row in the last table of docs/strategies.md"
    algorithms = section.partition("| algorithm |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", algorithms)) == {*COLLECTIVES, "all_reduce"}, "each has a row"


def test_make_n_runs_nothing() -> None:
    recipes = [line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if line.startswith("\t")]
    assert len(recipes) > 10
    # make runs such lines under -n, too
    assert not [line for line in recipes if re.search(r"\$[({]MAKE[)}]", line) or line.startswith("\t+")]
