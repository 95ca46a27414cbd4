"""Inputs that nobody should give: experiments, flags, run directories, profiles and classes, each with a
name.

An input is files and a command. Its name says how it is made, so that the corpus keeps only the names that
found a defect. `oracle.py` has the rules for every answer, except exit codes and the words of the cause.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from ddpbench.cli import make_parser
from tests.campaign import classes, documents, models, outputs, rundirs, submissions
from tests.campaign.nasty import VALUES, Path_, as_json, dotted, leaves, replaced, toml_document, without
from tests.launch import mutants
from tests.launch import test_own_class_replaced as rebound
from tests.test_costly import SHAPES

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(path.stem for path in (ROOT / "experiments").glob("*.toml"))
PROFILES = ("gpt-nano-cpu", "resnet50-v100")


@dataclass(frozen=True)
class Input:
    """A command with its files in a separate folder, whose path replaces `{here}`."""

    name: str
    argv: Sequence[str]
    prepare: Callable[[Path], None]
    codes: tuple[int, ...] = (0, 2)
    named: tuple[str, ...] = ()
    made: tuple[str, ...] = field(default=("run",))
    """Files that may be in the folder afterwards, in addition to the prepared ones."""
    prints_first: bool = False
    """Its results are printed even if a file cannot be written afterwards."""
    said: tuple[str, ...] = ()
    """Words that must be on standard error, with every exit code."""
    limits: Mapping[int, int] = field(default_factory=dict)
    """Limits of its process, by their number in `resource`."""
    state: Callable[[Path], Any] = lambda folder: None
    """Return the files of the folder that must outlast the command; `lost` gets them with the folder and the
    exit code.
    """
    lost: Callable[[Any, Path, int | None], list[str]] = lambda state, folder, code: []
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the usual ones; `{here}` is replaced in them too."""
    launches: bool = False
    """True if it starts ranks, and takes seconds."""
    deadline_s: float = 30.0


FAMILIES: dict[str, tuple[Callable[[], list[str]], Callable[[str], Input]]] = {}


def family(
    name: str, names: Callable[[], list[str]]
) -> Callable[[Callable[[str], Input]], Callable[[str], Input]]:
    """Add a kind of input: all its names, and the function that makes one from its name."""

    def add(make: Callable[[str], Input]) -> Callable[[str], Input]:
        FAMILIES[name] = (names, make)
        return make

    return add


def input_of(name: str) -> Input:
    """Return the input of a name, `family:rest`."""
    kind, _, rest = name.partition(":")
    return FAMILIES[kind][1](rest)


SHARES = {
    "experiment": 0.26,
    "set": 0.10,
    "bytes": 0.06,
    "flag": 0.14,
    "run": 0.14,
    "document": 0.20,
    "profile": 0.06,
    "class": 0.04,
    "model": 0.08,
    "script": 0.02,
    "submission": 0.06,
    "name": 0.04,
    "output": 0.06,
    "twice": 0.01,
    "text": 0.03,
}
"""Shares of families among a campaign's inputs."""


@cache
def _names_of(kind: str) -> list[str]:
    """Return the names of all inputs of a family: finding them takes seconds."""
    return [f"{kind}:{rest}" for rest in dict.fromkeys(FAMILIES[kind][0]())]


def drawn(count: int, seed: int) -> list[str]:
    """Return the names of `count` inputs of all families, without duplicates."""
    generator = random.Random(seed)
    names: list[str] = []
    for kind, share in SHARES.items():
        every = _names_of(kind)
        names += generator.sample(every, min(len(every), max(1, round(count * share))))
    return names


@cache
def _experiment(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / f"experiments/{name}.toml").read_text(encoding="utf-8"))


@cache
def _settings() -> list[Path_]:
    """Return all keys of the page of settings, as they are written in a document."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    tables = {"Base": "base", "Budget": "budget", "Fabric": "fabric"}
    found: list[Path_] = []
    table = ""
    for line in page.splitlines():
        if title := re.match(r"## .*\[(\w+)\]", line):
            table = title[1]
        elif key := re.match(r"\| `(?:\w+\.)?(\w+)`", line):
            found.append((table, key[1]) if table in tables.values() else (key[1],))
    return found


def _changes(document: dict[str, Any], more: Sequence[Path_] = ()) -> Iterator[str]:
    """Yield names of all changes of a document: a value in place of each, or one left out."""
    for path in dict.fromkeys([*leaves(document), *more]):
        if path:
            yield f"{dotted(path)}=left-out"
            yield from (f"{dotted(path)}={value}" for value in VALUES)


def _changed(document: dict[str, Any], change: str) -> dict[str, Any]:
    """Return a document with one of `_changes`."""
    where, _, value = change.rpartition("=")
    path = next(
        (path for path in leaves(document) if path and dotted(path) == where), tuple(where.split("."))
    )
    if value == "left-out":
        try:
            return dict(without(document, path))
        except (KeyError, AttributeError):
            return document
    return dict(replaced(document, path, VALUES[value]))


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def _experiments() -> list[str]:
    return [f"{name}:{change}" for name in EXPERIMENTS for change in _changes(_experiment(name), _settings())]


@family("experiment", _experiments)
def _experiment_input(rest: str) -> Input:
    name, _, change = rest.partition(":")
    text = toml_document(_changed(_experiment(name), change)).encode("utf-8", "surrogatepass")
    argv = ["sweep", "{here}/given.toml", "--dry-run", "--out", "{here}/run"]
    if hash_of(rest) % 8 == 0:
        argv = ["plan", "{here}/given.toml", "--nodes", "a,b", "--ranks-per-node", "2", "--out", "{here}/run"]
    return Input(f"experiment:{rest}", argv, _write("given.toml", text))


def hash_of(text: str) -> int:
    """Return a number for a text, the same in every process."""
    return sum((place + 1) * ord(letter) for place, letter in enumerate(text))


def _sets() -> list[str]:
    return [f"{dotted(path)}={value}" for path in _settings() for value in VALUES]


@family("set", _sets)
def _set_input(rest: str) -> Input:
    key, _, value = rest.rpartition("=")
    text = as_text(VALUES[value])
    return Input(
        f"set:{rest}",
        ["sweep", "quick", "--dry-run", "--out", "{here}/run", f"--set={key}={text}"],
        lambda folder: None,
    )


def as_text(value: Any) -> str:
    """Return a value as a user would type it."""
    text = value if isinstance(value, str) else as_json(value)
    return text.replace("\0", "\\0")  # no argument of a command can hold it


def _flipped(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]


BROKEN: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "flip": _flipped,
    "doubled": lambda content, draw: content * 2,
    "binary": lambda content, draw: draw.randbytes(500),
    "utf-16": lambda content, draw: content.decode().encode("utf-16"),
    "marked": lambda content, draw: b"\xef\xbb\xbf" + content,
    "mac-lines": lambda content, draw: content.replace(b"\n", b"\r"),
    "deep-tables": lambda content, draw: content + b"[" + b".".join([b"a"] * 20_000) + b"]\n",
    "deep-lists": lambda content, draw: content + b"x = " + b"[" * 50_000,
    "long-line": lambda content, draw: content + b"x = '" + b"y" * 5_000_000 + b"'\n",
    "many-keys": lambda content, draw: content + b"".join(b"k%d = 1\n" % number for number in range(20_000)),
    "empty": lambda content, draw: b"",
}


def _broken() -> list[str]:
    return [f"{name}:{way}:{number}" for name in EXPERIMENTS for way in BROKEN for number in range(5)]


@family("bytes", _broken)
def _broken_input(rest: str) -> Input:
    name, way, _ = rest.split(":")
    content = (ROOT / f"experiments/{name}.toml").read_bytes()
    changed = BROKEN[way](content, random.Random(hash_of(rest)))
    argv = ["sweep", "{here}/given.toml", "--dry-run", "--out", "{here}/run"]
    return Input(f"bytes:{rest}", argv, _write("given.toml", changed))


STEMS: dict[str, list[str]] = {
    "sweep": ["sweep", "quick", "--dry-run", "--out", "{here}/run"],
    "plan": ["plan", "quick", "--nodes", "a,b", "--out", "{here}/run"],
    "report": ["report", "{here}/given"],
    "pack": ["pack", "{here}/given"],
    "allocation": ["allocation", "{here}/given"],
    "merge": ["merge", "{here}/given", "{here}/given", "--out", "{here}/run"],
    "list": ["list"],
    "init": ["init", "{here}/train.py"],
}
"""Commands that start nothing, with the arguments they need; a flag is appended."""


@cache
def _flags() -> list[str]:
    parser = make_parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return [
        f"{command}:{action.option_strings[-1] if action.option_strings else 'argument'}={value}"
        for command in STEMS
        for action in commands.choices[command]._actions
        if action.dest not in ("help", "dry_run")
        for value in VALUES
        if not isinstance(VALUES[value], dict | list | bool)
    ]


@family("flag", _flags)
def _flag_input(rest: str) -> Input:
    command, _, flag_and_value = rest.partition(":")
    flag, _, value = flag_and_value.rpartition("=")
    text = as_text(VALUES[value])
    stem = STEMS[command]
    argv = [stem[0], text, *stem[2:]] if flag == "argument" else [*stem, f"{flag}={text}"]
    if flag == "--out":
        place = stem.index(flag) if flag in stem else len(stem)
        argv = [*stem[:place], *stem[place + 2 :], f"--out={{here}}/{text}"]
    return Input(
        f"flag:{rest}",
        argv,
        _prepare_for_flags,
        codes=(0, 1, 2),
        made=("run", "given", *((text.lstrip("/").split("/")[0],) if flag == "--out" else ())),
    )


def _prepare_for_flags(folder: Path) -> None:
    rundirs.write(folder / "given")
    (folder / "train.py").write_text(classes.SOUND, encoding="utf-8")


@family("run", rundirs.names)
def _run_input(rest: str) -> Input:
    argv = {
        0: ["report", "{here}/given"],
        1: ["merge", "{here}/given", "{here}/other", "--out", "{here}/run"],
        2: ["allocation", "{here}/given"],
    }[hash_of(rest) % 8 if hash_of(rest) % 8 < 3 else 0]

    def prepare(folder: Path) -> None:
        if argv[0] == "merge":
            rundirs.write(folder / "other")
        rundirs.write(folder / "given")
        rundirs.change(folder / "given", rest)

    return Input(f"run:{rest}", argv, prepare, codes=(0, 1, 2), made=("run", "given", "other"))


@family("document", documents.names)
def _document_input(rest: str) -> Input:
    return Input(
        f"document:{rest}",
        documents.command(rest),
        lambda folder: documents.prepare(folder, rest),
        codes=(0,) if rest.endswith(documents.UNCHANGED) else (0, 1, 2),
        made=("run", "given", "other", ".benchmarks"),
    )


@cache
def _profile(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"ddpbench/profiles/{name}.json").read_text(encoding="utf-8"))
    return found


def _profiles() -> list[str]:
    return [f"{name}:{change}" for name in PROFILES for change in _changes(_profile(name))]


@family("profile", _profiles)
def _profile_input(rest: str) -> Input:
    name, _, change = rest.partition(":")
    text = as_json(_changed(_profile(name), change)).encode()
    argv = ["sweep", "quick", "--dry-run", "--out", "{here}/run", "--workload", "replay:{here}/given.json"]
    return Input(f"profile:{rest}", argv, _write("given.json", text))


@family("class", classes.names)
def _class_input(rest: str) -> Input:
    settings = {
        "axes.strategy": '["ddp"]',
        "axes.world_size": "[2]",
        "axes.bucket_cap_mb": '["default"]',
        "budget.rounds_min": "1",
        "budget.rounds_max": "1",
        "budget.measured_s": "0.05",
        "budget.hang_timeout": "5",
    }
    argv = ["sweep", "quick", "--out", "{here}/run", "--workload", "{here}/train.py:Measured"]
    argv += [f"--set={key}={value}" for key, value in settings.items()]
    return Input(
        f"class:{rest}",
        argv,
        _write("train.py", classes.source(rest).encode()),
        codes=classes.codes(rest),
        launches=True,
        deadline_s=150.0,  # a class that never ends gets two minutes
    )


@family("model", models.names)
def _model_input(rest: str) -> Input:
    model = models.models()[rest]
    argv = ["sweep", "quick", "--out", "{here}/run", "--workload", "{here}/train.py:Measured"]
    argv += [f"--set={key}={value}" for key, value in models.settings(rest).items()]
    return Input(
        f"model:{rest}",
        argv,
        _write("train.py", model.text.encode()),
        codes=model.codes,
        named=model.named,
        said=model.said,
        lost=lambda _, here, code: models.broken(rest, here / "run") if code in (0, 1) else [],
        env=model.env,
        limits=model.limits,
        launches=True,
        deadline_s=150.0,  # a class that never ends gets two minutes
    )


def _scripts() -> list[str]:
    changed = [
        f"{name}-{seed}" for name in mutants.SCRIPTS for seed in range(100, 130) if mutants.mutant(name, seed)
    ]
    return changed + [f"rebound-{place.replace(' ', '-')}" for place in rebound.PLACES]


@family("script", _scripts)
def _script_input(rest: str) -> Input:
    """Return a training script with changes for `init`, which reports what it cannot follow or tries the
    class.

    If a script gives its names a second value, the class uses that one.
    """
    name, _, seed = rest.partition("-")
    if name == "rebound":
        source = textwrap.dedent(rebound.HEAD) + rebound.PLACES[seed.replace("-", " ")]
        argv = ["init", "{here}/given.py", "--write"]
        prepare = _write("given.py", source.encode())
        lost = _first_values
        return Input(f"script:{rest}", argv, prepare, codes=(0,), lost=lost, launches=True, deadline_s=150.0)
    found = mutants.mutant(name, int(seed))
    assert found is not None
    argv = ["init", "{here}/given.py"]
    write = _write("given.py", found[1].encode())
    return Input(f"script:{rest}", argv, write, codes=(0, 1, 2), launches=True, deadline_s=150.0)


def _first_values(_state: Any, folder: Path, _code: int | None) -> list[str]:
    """Return first values that the class should have of a script that reassigns its names, but lacks."""
    _, _, written = (folder / "given.py").read_text(encoding="utf-8").partition("class Measured:")
    own = written.partition("if __name__ ==")[0]
    wanted = (
        "build(5)",
        "label_smoothing=0.5",
        "torch.optim.Adam(parameters, lr=0.2)",
        "batch = 8",
        "doubled",
    )
    return [f"{each} is not in the class" for each in wanted if each not in own]


_DRY = ("sweep", "quick", "--dry-run", "--out", "{here}/run")
TWICE: dict[str, list[str]] = {
    "set": [*_DRY, "--set=base.local_batch=4", "--set=local_batch=8"],
    "option": [*_DRY, "--set=options.ddp.accumulate=2", "--set=accumulate=4"],
    "table": [*_DRY, "--set=options.ddp.accumulate=2", "--set=options.ddp={static_graph=true}"],
    "axis": [*_DRY, "--set=axes.world_size=[1]", "--set=axes={world_size=[2]}"],
    "workload": [*_DRY, "--workload", "mlp:small", "--set=workload=gpt:nano"],
    "fabric": [*_DRY, "--fabric", "2 x 1gbit", "--set=fabric.bandwidth='2gbit'"],
    "plan": ["plan", "quick", "--nodes", "a,b", "--set=env.A=1", "--set=env.A=2", "--out", "{here}/run"],
    "quoted": ["sweep", "{here}/given.toml", "--dry-run", "--out", "{here}/run"],
    **{
        f"side-{name}": [
            "compare",
            "--interleave",
            "quick",
            "--new",
            "env=A=1",
            "--base",
            one,
            "--base",
            other,
        ]
        for name, one, other in (
            ("set", "set=base.local_batch=4", "set=local_batch=8"),
            ("env", "env=NAME=1", "env=NAME=2"),
            ("ref", "ref=main", "ref=other"),
            ("python", "python=python3", "python=python3.11"),
        )
    },
    "both-sides": [
        "compare",
        "--interleave",
        "quick",
        "--new",
        "set=local_batch=4",
        "--set=base.local_batch=8",
    ],
    "where": ["allocation", "{here}/given", "--where", "local_batch=4", "--where", "local_batch=8"],
    "queue-wait": ["allocation", "{here}/given", "--queue-wait", "1=5min,1=2h"],
}
"""Commands that give a key twice."""


@family("twice", lambda: list(TWICE))
def _twice_input(rest: str) -> Input:
    quoted = b'[axes]\n"options.ddp.accumulate" = [1, 2]\noptions.ddp.accumulate = [4]\n'

    def prepare(folder: Path) -> None:
        rundirs.write(folder / "given")
        (folder / "given.toml").write_bytes(quoted)

    return Input(f"twice:{rest}", TWICE[rest], prepare, codes=(2,), named=("given twice",))


COSTLY: dict[str, list[str]] = {
    "report": ["report", "{here}/given"],
    "csv": ["export", "{here}/given", "--format", "csv", "--out", "{here}/out"],
    "markdown": ["compare", "{here}/given", "{here}/other", "--markdown", "{here}/out"],
    "history": ["history", "{here}/given", "{here}/other", "--markdown", "{here}/out"],
    "openmetrics": ["export", "{here}/given", "--format", "openmetrics", "--out", "{here}/out"],
}
"""Commands that show the texts of a run, in each format that is escaped."""


@family("text", lambda: [f"{command}:{shape}" for command in COSTLY for shape in SHAPES])
def _text_input(rest: str) -> Input:
    command, _, shape = rest.partition(":")

    def prepare(folder: Path) -> None:
        for name in ("given", "other"):
            rundirs.write(folder / name)
            plan = json.loads((folder / name / "plan.json").read_text(encoding="utf-8"))
            plan |= {"question": SHAPES[shape], "scope": SHAPES[shape]}
            plan["cases"][-1]["skip_reason"] = SHAPES[shape]
            (folder / name / "plan.json").write_text(json.dumps(plan), encoding="utf-8")

    made = ("given", "other", "out")
    return Input(f"text:{rest}", COSTLY[command], prepare, codes=(0, 1, 2), made=made)


_SLURM = {"PATH": "{here}/bin:/usr/bin:/bin"}


@family("submission", submissions.names)
def _submission_input(rest: str) -> Input:
    argv = ["submit", "{here}/given", *(["--retry-failed"] if hash_of(rest) % 2 == 0 else []), "--detach"]

    def prepare(folder: Path) -> None:
        submissions.install(folder)
        submissions.write(folder / "given")
        submissions.change(folder / "given", rest)

    return Input(f"submission:{rest}", argv, prepare, codes=(0, 1, 2), made=("given",), env=_SLURM)


@family("name", submissions.names_of_names)
def _name_input(rest: str) -> Input:
    name, more = submissions.named(rest)

    def prepare(folder: Path) -> None:
        submissions.install(folder)
        submissions.write_experiment(folder, name)

    argv = ["submit", f"{{here}}/{name}", "--nodes", "1", "--detach", *more]
    return Input(f"name:{rest}", argv, prepare, codes=(0, 2), env=_SLURM)


@family("output", outputs.names)
def _output_input(rest: str) -> Input:
    return Input(
        f"output:{rest}",
        outputs.argv(rest),
        partial(outputs.prepare, rest),
        codes=outputs.codes(rest),
        made=("given", "other", "run", "out", "elsewhere", "pages", "mine", ".benchmarks", "train.py"),
        env=outputs.env(rest),
        prints_first=rest.startswith(("compare", "history")),
        limits=outputs.limits(rest),
        state=outputs.state,
        lost=partial(outputs.lost, rest),
    )
