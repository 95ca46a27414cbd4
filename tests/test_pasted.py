"""Commands and flags printed to be pasted: a shell returns each word, and one function writes them all."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddpbench
from ddpbench.cli.lines import show, wrapped
from ddpbench.text_safety import clean, command, on_one_line, quoted

NAMES = [
    "plain",
    "two words",
    "it's",
    'a "b"',
    "$(touch x)/a.py:B",
    "`touch x`",
    "a;touch x",
    "a && b | c > d < e & #f",
    "$HOME",
    "~/x",
    "*?[a]{b,c}",
    "!! !$",
    "back\\slash\\",
    "",
    "größer/ü.py:Ä",
    "--flag=$(x)",
    "\N{ROCKET}",
]
UNSHOWN = [
    "two\nlines",
    "a\r\n'b' \\ $(x)",
    "\x1b[2J`x`",
    "a\tb9",
    "\u202eevil",
    "no\xa0break",
    "\ufffe/w.py:E",
    "\U0010ffff",
    "\x7f7",
]
"""Names that a page or a terminal would not show as they are."""


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_a_name_back(name: str) -> None:
    line = command("ddpbench", "report", name, "--where", f"a={name}")
    assert shlex.split(line) == ["ddpbench", "report", name, "--where", f"a={name}"]
    assert shlex.split(quoted(name)) == [name]
    assert read_by_bash(line) == ["ddpbench", "report", name, "--where", f"a={name}"]


@pytest.mark.parametrize("name", UNSHOWN)
def test_a_shell_reads_back_what_is_shown_of_a_name_with_line_breaks(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = command("ddpbench", "report", name, Path(name))
    assert line == clean(line) == on_one_line(line)
    show(line)
    assert read_by_bash(capsys.readouterr().out) == ["ddpbench", "report", name, name]


@pytest.mark.parametrize(
    "name", ["two  words of a name", "it's  a 'name' of 5 words", "a\nname in  two 'lines' \\"]
)
def test_no_line_of_a_terminal_ends_within_a_name(name: str) -> None:
    lines = wrapped(f"resume with: {command('ddpbench', 'sweep', name)}, or give another --out", 24)
    assert len(lines) > 2
    assert quoted(name) in "\n".join(lines)


def test_no_path_is_taken_for_a_flag() -> None:
    assert command("cp", "-r", Path("-x")) == "cp -r ./-x"


def read_by_bash(line: str) -> list[str]:
    """Return the words of a command line as bash passes them to a program."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode("utf-8").split("\0")[:-1]


# Every place in the source.

COMMANDS = (
    "ddpbench pip pip3 python python3 torchrun mpirun srun sbatch scancel salloc ray git sudo sysctl modprobe chmod "
    "chown mkdir rm mv cp ln ls cd cat kill export unset env source module ulimit nvidia-smi docker apt"
)
PASTED = re.compile(
    rf"(?:(?:^|[\s(:`'\"])--?[A-Za-z][\w-]*(?:[ =]|\s'|=')[^\s;,:()]*"  # a flag and the start of its value
    rf"|(?:^|[:`(] ?|\brun ){'(?:' + '|'.join(COMMANDS.split()) + ')'} [^;:,()]*)$"
)
"""End of a text after which a word to be pasted begins."""
OWNERS = {"command", "quoted", "for_shell", "shortened"}
"""Functions whose texts may follow: `shortened` returns a refused value as Python shows it."""
NUMBERS_AND_OWN_WORDS = {
    "analysis/export/formats.py": {"VERSION", "name"},
    "analysis/regression/wording.py": {"flag"},  # made by `command`
    "cli/__init__.py": {"VERSION"},
    "cli/baseline.py": {"arguments.action", "words"},
    "fabric/making.py": {"module"},
    "features/allocation/analysis/allocation.py": {"unknown[0]"},
    "launch/doctor/environment.py": {"name"},  # from a table
    "launch/doctor/gpus.py": {"gpu.index"},
    "launch/doctor/limits.py": {"max(needed, 4096)"},
    "launch/doctor/nodes/checking.py": {"VERSION"},
    "launch/interleave/sides.py": {"_refusal(key, fewest)", "_refusal(one)", "key"},
    "launch/interleave/compare.py": {"asked.fewest"},
    "launch/layout.py": {
        *("count", "each", "number", "nodes", "nodes * ranks_per_node", "ranks_per_node", "nodes.port"),
        "first",  # a host name that is checked to need no quotes
        "given",  # made by `shortened`
        "worker",  # made by `quoted`, and quoted again in full
    },
    "launch/slurm/control.py": {"most_nodes"},
    "runtime/judge.py": {"RESTARTS"},
    "pytest_plugin.py": {"_too_old()"},
    "report/outside.py": {"version"},  # a name, and no command
}
"""Expressions put after a command or a flag without quotes, by file."""
ONLY_SENTENCES = {
    "launch/interleave/sides.py": {"folder", "_ASK_S", "place", "commit[:12]", "top"},  # from git's output
    "launch/own_classes.py": {"first"},  # "module {first} is ..."
    "launch/slurm/control.py": {"script"},  # "sbatch refuses {script}"
    "spec/experiment.py": {"problem.path"},  # "--set base.strategy: unknown strategy ..."
}
"""Expressions that follow a command's name in prose."""
NO_SHELL = {
    "launch/doctor/host.py": {"','.join(GPU_FIELDS)"},
    "launch/interleave/sides.py": {"unfinished"},
    "launch/slurm/control.py": {"os.getuid()"},
    "launch/slurm/disks.py": {"nodes", "count", "value", "IMMEDIATE_S", "job_id", "name"},
    "launch/slurm/script.py": {"for_sbatch(f'--{key}', value)"},
    "runtime/launched.py": {"node", "ranks"},
    "worker/elastic.py": {"nodes", "ranks", "port", "restarts", "options"},
}
"""Arguments that a program is given by the program itself, and what sbatch reads."""


def unquoted(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the expression of each text that is put after a command or a flag unquoted."""
    for node in ast.walk(ast.parse(source)):
        for before, put in _put_together(node):
            if PASTED.search(before) and not _is_quoted(put):
                yield put.lineno, ast.unparse(put)


def _put_together(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the text before each expression that is put into a text."""
    if isinstance(node, ast.JoinedStr):
        before = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if not _is_number(part):
                    yield before, part.value
                before += "x"
            elif isinstance(part, ast.Constant):
                before += str(part.value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        texts = [one.value for one in ast.walk(node.left) if isinstance(one, ast.Constant)]
        if texts and isinstance(texts[-1], str):
            yield texts[-1].partition("%s")[0] if isinstance(node.op, ast.Mod) else texts[-1], node.right
    elif isinstance(node, ast.Call):
        match node.func:
            case ast.Attribute(value=ast.Constant(value=str(text)), attr="format"):
                parts = re.split(r"\{[^}]*\}", text)
                for number, put in enumerate([*node.args, *(one.value for one in node.keywords)]):
                    yield "x".join(parts[: number + 1]), put


def _is_number(part: ast.FormattedValue) -> bool:
    """Return whether a format inserts a number, or, by `!r`, shows a refused value as Python does."""
    return part.conversion == ord("r") or bool(
        part.format_spec and ast.unparse(part.format_spec)[-2] in "dfg%"
    )


def _is_quoted(put: ast.expr) -> bool:
    return isinstance(put, ast.Call) and ast.unparse(put.func).rpartition(".")[2] in OWNERS


def in_package() -> Iterator[tuple[str, int, str]]:
    """Yield file, line and expression of what the package puts after a command or a flag unquoted."""
    root = Path(ddpbench.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for line, put in unquoted(path.read_text(encoding="utf-8")):
            yield path.relative_to(root).as_posix(), line, put


def test_every_command_that_is_printed_is_quoted_in_one_place() -> None:
    """Use `texts.command` for a command or a flag with a value, and `texts.quoted` for one word."""
    lists = (NUMBERS_AND_OWN_WORDS, ONLY_SENTENCES, NO_SHELL)
    known = {(name, put) for one in lists for name, puts in one.items() for put in puts}
    found = list(in_package())
    assert [f"{name}:{line}: {put}" for name, line, put in found if (name, put) not in known] == []
    assert known - {(name, put) for name, _, put in found} == set()


QUOTED_ELSEWHERE = {
    "text_safety.py": "the owner",
    "launch/slurm/words.py": "refuses what a job's script cannot hold",
    "launch/slurm/disks.py": "a line of a job's script",
    "runtime/launched.py": "for MPI's launcher",
    "worker/ray/__main__.py": "for Ray",
}


def test_nobody_else_quotes() -> None:
    root = Path(ddpbench.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(
            r"\bshlex\.(quote|join)\b|import .*\bquote\b.*shlex|from shlex", path.read_text(encoding="utf-8")
        )
    }
    assert found == set(QUOTED_ELSEWHERE)


def test_no_template_makes_a_command() -> None:
    for path in Path(ddpbench.__file__).parent.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<!by )\bddpbench (--|[a-z]+ )[^<\n]*\{\{|--[a-z-]+[ =]\{\{", text), path.name


@pytest.mark.parametrize(
    "planted",
    [
        'f"run: chmod 600 {path}"',
        'f"{path} is open; run: chmod 600 {path}"',
        'f"Have its owner run chmod +t {shared}, as /tmp is"',
        'f"resume with: ddpbench sweep {run.path}"',
        'f"a run of `ddpbench sweep recovery --set base.workload={workload}`"',
        'f"(--strategy {name})"',
        'f"--where {name}={quoted(value)}"',
        'f"--where a={value}"',
        "f\"give --total '{needed}'\"",
        "f\"pip install 'x[{extra}]'\"",
        'f"kill {pid}"',
        'f"export PYTHONPATH={path}"',
        '"run: chmod 600 " + path',
        '"run: chmod 600 %s" % path',
        '"run: chmod 600 {}".format(path)',
        'f"mkdir -p {temporary}, or unset it"',
    ],
)
def test_an_unquoted_command_is_found(planted: str) -> None:
    assert list(unquoted(planted))


@pytest.mark.parametrize(
    "fine",
    [
        "f\"run: {command('chmod', 600, path)}\"",
        'f"--set base.workload={quoted(workload)}"',
        'f"--nodes {shortened(text)}: give numbers of nodes"',
        'f"--rounds {count:,d}"',
        'f"{path} is not empty; choose another --out, or rename {path}"',
        'f"Wait for it - {seconds} s at most"',
    ],
)
def test_a_quoted_one_is_not(fine: str) -> None:
    assert list(unquoted(fine)) == []
