"""`ddpbench init` on scripts of common shapes, also with lines deleted, renamed or moved."""

from __future__ import annotations

import ast
import builtins
import dis
import os
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli import run
from ddpbench.errors import RequestError
from ddpbench.launch.own_class import Written, can_guard, inserted, read_script, written_class
from ddpbench.launch.own_class.insertion import GUARD
from ddpbench.launch.own_class.trial import trial_of
from tests.launch.mutants import SCRIPTS, mutants
from tests.launch.test_own_class_source import check_meant, recording

WITH_STEP = {"closures", "nano", "adversaries", "scaled", "locally"}


def written(tmp_path: Path, source: str, name: str = "train.py") -> Written:
    path = tmp_path / name
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return written_class(read_script(path))


def functions(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a module's class and of all its methods, as Python compiles them."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from functions(each)


def unresolved(text: str, module: set[str]) -> set[str]:
    """Return the names that the class's code reads but a module with only these names lacks."""
    names = {
        str(step.argval)
        for code in functions(compile(text, "class", "exec"))
        for step in dis.get_instructions(code)
        if step.opname == "LOAD_GLOBAL"
    }
    return {each for each in names - module if not hasattr(builtins, each)} - {"__file__"}


def names_of_module(path: Path, ends: list[ast.stmt]) -> set[str]:
    """Return the names bound at the top level of a script above its guard, without statements that train."""
    lines = {each.lineno for each in ends}
    found: set[str] = set()
    for statement in ast.parse(path.read_bytes()).body:
        if statement.lineno in lines or (
            isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
        ):
            continue
        found |= {name for name, value in _bindings(statement)}
    return found


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name, statement
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name.partition(".")[0]), node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node


def test_there_are_ten_shapes_and_more() -> None:
    assert len(SCRIPTS) >= 12


@pytest.mark.parametrize(("path", "kind"), [(Path(), "a folder"), (Path(os.devnull), "a device")])
def test_what_is_no_regular_file_is_called_what_it_is(path: Path, kind: str) -> None:
    with pytest.raises(RequestError, match=f"{path} is {kind}, not a script: give the path of a script"):
        read_script(path)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_class_of_a_common_shape_makes_its_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddpbench.worker.verify.inspection import inspect_workload
    from ddpbench.workloads import load_workload
    from tests.worker.test_own_loops import case_of

    script = read_script(SCRIPTS[name])
    found = written_class(script)
    assert not found.is_open, found.whole
    ends = found.ends if can_guard(script, found.ends) else []
    assert bool(found.ends) == (name in ("flat", "nano", "plain"))
    own = tmp_path / f"shape_{name}.py"
    own.write_text(inserted(script, found.whole, ends), encoding="utf-8")
    monkeypatch.setattr("tests.worker.test_own_loops.FILE", own)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("RANK", "WORLD_SIZE"):  # from these some scripts decide to join a group
        monkeypatch.delenv(variable, raising=False)
    load_workload(f"{own}:Measured")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    tried: dict[str, Any] = inspect_workload(case_of("Measured"))
    assert "problem" not in tried, tried
    assert tried.get("step", False) == (name in WITH_STEP)
    sys.modules.pop(own.stem)


def of(found: Written, group: str) -> list[tuple[int, str]]:
    return [(each.line, each.text) for each in found.dropped if each.group == group]


def test_what_a_trainer_does_beside_its_steps_is_listed_with_its_lines() -> None:
    found = written_class(read_script(SCRIPTS["trainer"]))
    assert of(found, "waits, and messages between ranks") == [
        (50, "torch.distributed.barrier()"),
        (51, "time.sleep(0.001)"),
    ]
    assert of(found, "threads, environment and backends") == [(75, "torch.set_num_threads(8)")]
    assert [line for line, _ in of(found, "checkpoints")] == [40, 41, 63]
    assert (77, "DataLoader(num_workers=2, sampler=DistributedSampler(dataset))") in of(found, "data loading")
    assert [(each.key, each.value, each.line) for each in found.settings] == [
        ("base.bucket_cap_mb", "1", 35),
        ("options.ddp.find_unused_parameters", "true", 35),
        ("options.ddp.broadcast_buffers", "false", 35),
        ("base.threads_per_rank", "8", 75),
        ("base.loader_workers", "2", 77),
    ]


def test_a_result_that_a_step_returns_as_a_number_is_listed() -> None:
    found = written_class(read_script(SCRIPTS["trio"]))
    assert of(found, "results read from the device") == [(40, "return loss.item()")]


def test_what_is_left_out_stands_at_the_head_of_the_class_and_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpbench.launch.own_class.trial.trial_of", lambda *_, **__: (True, "one step"))
    assert run(["init", str(SCRIPTS["trainer"])]) == 0
    out, printed = capsys.readouterr()
    head = " ".join(line.removeprefix("    # ") for line in out.splitlines() if line.startswith("    # "))
    for each in (
        "waits, and messages between ranks: line 50 `torch.distributed.barrier()`; line 51 `time.sleep(0.001)`",
        "threads, environment and backends: line 75 `torch.set_num_threads(8)`",
    ):
        assert f"left out: {each}" in printed
        assert f"Left out, {each}" in head
    assert "set in the experiment: options.ddp.find_unused_parameters = true (line 35)" in printed
    assert "from line 35: options.ddp.find_unused_parameters = true" in head
    assert printed.rstrip().endswith(
        "--set base.bucket_cap_mb=1 --set options.ddp.find_unused_parameters=true "
        "--set options.ddp.broadcast_buffers=false --set base.threads_per_rank=8 --set base.loader_workers=2"
    )


SLOW = """
    import time
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset

    def main():
        {first}
        data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        loader = DataLoader(data, batch_size=8)
        model = DDP(nn.Linear(4, 1){ddp})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for epoch in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                {inside}
            {after}

    if __name__ == "__main__":
        main()
"""


OPENS = (
    "model.weight.grad /= 2",
    "model.weight.grad /= torch.distributed.get_world_size()",
    "model.weight.data.clamp_(-1, 1)",
    "model.head.eval()",
    "[each.eval() for each in model.modules()]",
)
"""Statements that leave something to fill in."""


@pytest.mark.parametrize(
    ("part", "text", "group", "line"),
    [
        ("inside", "time.sleep(0.01)", "waits, and messages between ranks", 21),
        ("inside", "torch.distributed.barrier()", "waits, and messages between ranks", 21),
        ("inside", "torch.distributed.all_reduce(loss)", "waits, and messages between ranks", 21),
        ("inside", "seen = loss.item()", "results read from the device", 21),
        ("inside", "torch.cuda.empty_cache()", "waits, and messages between ranks", 21),
        ("inside", "helper(loss)", "other statements", 21),
        ("inside", "model.weight.grad /= 2", "other statements", 21),
        ("inside", "model.weight.grad /= torch.distributed.get_world_size()", "other statements", 21),
        ("inside", "model.weight.data.clamp_(-1, 1)", "other statements", 21),
        ("inside", "model.head.eval()", "what else is done to the model", 21),
        ("inside", "[each.eval() for each in model.modules()]", "what else is done to the model", 21),
        ("after", "plan.step()", "learning-rate schedule", 22),
        ("first", "torch.set_num_threads(8)", "threads, environment and backends", 9),
        ("first", "torch.backends.cudnn.benchmark = True", "threads, environment and backends", 9),
        ("first", "torch.manual_seed(4)", "seeds", 9),
    ],
)
def test_a_statement_that_the_class_lacks_is_named(
    part: str, text: str, group: str, line: int, tmp_path: Path
) -> None:
    parts = {"first": "pass", "ddp": "", "inside": "pass", "after": "pass"}
    found = written(tmp_path, SLOW.format(**{**parts, part: text}))
    assert (line, text) in of(found, group)
    assert text in " ".join(found.whole.replace("    # ", "").split())
    without = written(tmp_path, SLOW.format(**parts))
    assert text not in {each.text for each in without.dropped}
    if text in OPENS:  # then the class trains something else
        assert found.is_open
        assert any(f"do there what line {line} does: `{text}`" in each for each in found.left)
    else:
        assert methods_of(found.text) == methods_of(without.text)  # it is left out


def methods_of(text: str) -> list[str]:
    (found,) = ast.parse(text).body
    assert isinstance(found, ast.ClassDef)
    return [ast.unparse(each) for each in found.body]


@pytest.mark.parametrize(
    ("argument", "setting"),
    [
        ("bucket_cap_mb=0.1", ("base.bucket_cap_mb", "0.1")),
        ("find_unused_parameters=True", ("options.ddp.find_unused_parameters", "true")),
        ("static_graph=True", ("options.ddp.static_graph", "true")),
        ("gradient_as_bucket_view=True", ("options.ddp.gradient_as_bucket_view", "true")),
        ("broadcast_buffers=False", ("options.ddp.broadcast_buffers", "false")),
        ("bucket_cap_mb=size()", ("base.bucket_cap_mb", "")),
        ("**{'static_graph': True}", ("options.ddp.static_graph", "true")),
        ("**dict(bucket_cap_mb=3)", ("base.bucket_cap_mb", "3")),
    ],
)
def test_arguments_of_ddp_become_settings_that_an_experiment_takes(
    argument: str, setting: tuple[str, str], tmp_path: Path
) -> None:
    from ddpbench.launch.catalog import TableCatalog
    from ddpbench.launch.own_class.writing import in_toml
    from ddpbench.spec import parse_experiment

    source = SLOW.format(first="pass", ddp=f", {argument}", inside="pass", after="pass")
    found = written(tmp_path, source)
    assert [(each.key, each.value, each.line) for each in found.settings] == [(*setting, 12)]
    if setting[1]:
        table, _, line = (
            in_toml(found.settings[0]).rpartition(".") if setting[1] != "0.1" else ("base", "", "")
        )
        assert parse_experiment(
            "", TableCatalog(), name="x", overrides=[f"{setting[0]}={setting[1]}", "base.strategy=ddp"]
        )
        assert table.startswith(setting[0].rpartition(".")[0]), line
    else:
        assert in_toml(found.settings[0]) == "base.bucket_cap_mb = ...  (in the script, size())"


def test_an_argument_of_ddp_without_a_setting_is_named(tmp_path: Path) -> None:
    source = SLOW.format(first="pass", ddp=", delay_all_reduce_named_params=[]", inside="pass", after="pass")
    printed = [text for _, text in of(written(tmp_path, source), "how the model is wrapped")]
    assert any(each.endswith("which an experiment cannot set") for each in printed)


def test_a_flat_script_is_put_below_a_guard_as_it_stands() -> None:
    script = read_script(SCRIPTS["plain"])
    found = written_class(script)
    assert can_guard(script, found.ends)
    tree = ast.parse(inserted(script, found.text, found.ends))
    guard = tree.body[-1]
    assert isinstance(guard, ast.If)
    assert ast.unparse(guard.test) == ast.unparse(ast.parse(GUARD + " pass").body[0].test)  # type: ignore[attr-defined]
    before = ast.parse(script.source).body
    assert [ast.dump(each) for each in [*tree.body[:-2], *guard.body]] == [ast.dump(each) for each in before]


BROKEN = {
    "a name that only the function has": (
        "loss = nn.functional.mse_loss(model(x), y)",
        "loss = nn.functional.mse_loss(model(x), y) * weight",
        "`read_weight` is a name that the module does not have",
    ),
    "a batch that nothing reads": (
        "loss = nn.functional.mse_loss(model(x), y)",
        "loss = model(torch.ones(8, 4)).mean()",
        "the mean over its samples. The script's code cannot be used: it never reads `batch`.",
    ),
    "a model that nothing reads": (
        "loss = nn.functional.mse_loss(model(x), y)",
        "loss = nn.functional.mse_loss(x, y)",
        "it never reads `model`",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_method_that_cannot_be_right_is_a_line_to_fill_in_and_says_why(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, printed = BROKEN[name]
    source = SLOW.format(
        first="weight = read_weight()" if "weight" in new else "pass", ddp="", inside="pass", after="pass"
    )
    found = written(tmp_path, source.replace(old, new))
    assert found.is_open
    assert any(printed in each for each in found.left), found.left
    assert run(["init", str(tmp_path / "train.py")]) == 1
    assert "not finished: fill in the lines with `...`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("x = y\ny = model(batch)\nreturn x", "`y` is read before anything is assigned to it"),
        ("for i in range(2):\n    z = model(x)\n    x = batch\nreturn z", "`x` is read before"),
        ("total += model(batch)\nreturn total", "`total` is read before"),
        ("return model(batch) / weight", "`weight` is a name that the module does not have"),
        (
            "return [model(each) for each in batch if other]",
            "`other` is a name that the module does not have",
        ),
        ("return 256(batch) + model", "`256(batch)` uses a value as if it were a function"),
        ("return model(images)", "it never reads `batch`"),
        ("return batch.mean()", "it never reads `model`"),
        ("def inner(model):\n    return model(batch)\nreturn inner(self)", "it never reads `model`"),
        ("return (lambda model: model(batch))(self)", "it never reads `model`"),
        ("return sum(model(batch) for model in self.nets)", "it never reads `model`"),
        (
            "def inner():\n    model = self.net\n    return model(batch)\nreturn inner()",
            "it never reads `model`",
        ),
        ("def inner(x, y=model):\n    return y(x)\nreturn inner(batch)", ""),
        (
            "def inner(a):\n    return a + missing\nreturn inner(model(batch))",
            "`missing` is a name that the module",
        ),
        ("if batch:\n    y = 1\nelse:\n    y = 2\nreturn model(y)", ""),
        ("with known as y:\n    pass\nreturn model(batch, y)", ""),
        ("def inner(a):\n    return a + y\ny = model(batch)\nreturn inner(y)", ""),
        ("return sum(model(each) for each in batch)", ""),
        ("return model(batch, key=lambda each: each + known)", ""),
        ("return model(', '.join(batch))", ""),
        ("return model((2 * 8)(batch))", "`(2 * 8)(batch)` uses a value as if it were a function"),
        ("return model((-known)(batch))", "`(-known)(batch)` uses a value as if it were a function"),
        ("return model(lambda x=missing: x, batch)", "`missing` is a name that the module"),
        ("return (model(batch) - known).mean()", ""),
    ],
)
def test_names_and_arguments_of_a_method_are_checked(body: str, problem: str) -> None:
    from ddpbench.launch.own_class.checking import problems_of

    tree = ast.parse(f"def step():\n{textwrap.indent(body, '    ')}").body[0]
    assert isinstance(tree, ast.FunctionDef)
    given = ["images"] if "images" in body else []
    found = problems_of("step", ("model", "batch", "optimizer"), given, tree.body, frozenset({"known"}))
    assert [each for each in found if problem and each.startswith(problem)] == found[: bool(problem)]
    assert len(found) == bool(problem)


def test_a_clipping_that_is_not_of_the_models_gradients_is_not_taken() -> None:
    from ddpbench.launch.own_class.checking import problems_of

    def problems(source: str) -> list[str]:
        return problems_of(
            "before_update", ("model",), [], ast.parse(source).body, frozenset({"clip", "Net"})
        )

    assert problems("clip(Net().parameters(), 0.5)") == ["it never reads `model`"]
    assert problems("clip(model.parameters(), 0.5)") == []


def test_a_global_that_an_argument_of_the_method_would_hide_is_found(tmp_path: Path) -> None:
    source = SLOW.format(first="pass", ddp="", inside="pass", after="pass")
    source = textwrap.dedent(source).replace("import time\n", "import time\nbatch = 32\n", 1)
    found = written(tmp_path, source.replace("mse_loss(model(x), y)", "mse_loss(model(x), y) / batch"))
    assert any(
        "`batch` means one thing in the script and another in the method" in each for each in found.left
    )


@pytest.mark.ranks
def test_a_class_that_works_is_tried_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trio_own.py"
    path.write_text(SCRIPTS["trio"].read_text(encoding="utf-8"), encoding="utf-8")
    assert run(["init", str(path)]) == 0
    printed = capsys.readouterr().err
    assert "tried one step: trio_own.py:Measured: 72,449 parameters" in printed
    assert sorted(each for each in sys.modules if "trio_own" in each) == []
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.ranks
def test_a_class_whose_step_fails_is_said_to_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = SLOW.format(first="pass", ddp="", inside="pass", after="pass").replace(
        "nn.Linear(4, 1)", "nn.Linear(5, 1)"
    )
    path = tmp_path / "slow_own.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    assert run(["init", str(path)]) == 1
    printed = capsys.readouterr().err
    assert "does not work yet: class Measured: its loss failed: RuntimeError: mat1 and mat2 shapes" in printed
    assert "Traceback" not in printed


@pytest.mark.ranks
def test_a_trial_that_does_not_end_is_ended(tmp_path: Path) -> None:
    source = "import time\ntime.sleep(1000)\n" + SCRIPTS["trio"].read_text(encoding="utf-8")
    works, printed = trial_of(tmp_path / "slow_own.py", source.encode(), timeout_s=3)
    assert not works
    assert "did not end within 3 s" in printed


def test_what_two_parts_of_the_data_are_made_of_is_made_once() -> None:
    found = written_class(read_script(SCRIPTS["epochs"]))
    assert (
        "        xs = torch.randn(256, 8)\n        return TensorDataset(xs, xs.sum(1, keepdim=True))\n"
        in found.text
    )


def test_a_schedule_that_ends_keeps_its_last_rate_in_a_step() -> None:
    text = written_class(read_script(SCRIPTS["closures"])).text
    assert "if schedule.last_epoch < schedule.total_steps:\n                schedule.step()\n" in text


def test_what_nobody_thought_of_is_a_sentence_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(node: ast.stmt, *_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("ddpbench.launch.own_class.loop_methods.before_backward", lambda body: fails(body[0]))
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(SLOW.format(first="pass", ddp="", inside="pass", after="pass")), encoding="utf-8"
    )
    assert run(["init", str(path)]) == 2
    printed = capsys.readouterr().err
    assert printed == (
        f"ddpbench: {path}, line 17: cannot be analysed (AssertionError); write the class by hand, as "
        "docs/own-loop.md shows\n"
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_of_a_changed_script_there_is_a_class_that_passes_its_checks_or_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{name}.py"
    tried = closed = 0
    refused: list[str] = []
    rendered = recording(monkeypatch)
    unchanged = SCRIPTS[name].read_text(encoding="utf-8")
    for label, source in [("as it is", unchanged), *mutants(name, 25)]:
        path.write_text(source, encoding="utf-8")
        tried += 1
        try:
            found = written_class(read_script(path))
        except RequestError as error:
            refused.append(f"{label}: {error}")
            continue
        ast.parse(found.whole)
        missing = unresolved(found.text, names_of_module(path, found.ends))
        assert not missing, (label, missing, found.text)
        if found.is_open:
            assert found.left, label
            continue
        closed += 1
        (made,) = ast.parse(found.text).body
        assert isinstance(made, ast.ClassDef)
        for method in (each for each in made.body if isinstance(each, ast.FunctionDef)):
            read = {
                each.id
                for each in ast.walk(method)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
            }
            if method.name in ("loss", "step"):
                assert {"model", "batch"} <= read, (label, found.text)
            if method.name == "optimizer":
                assert {"model", "parameters"} & read, (label, found.text)
            assert not _read_too_early(method), (label, found.text)
        if can_guard(read_script(path), found.ends) or not found.ends:
            ast.parse(inserted(read_script(path), found.whole, found.ends))
    assert not [each for each in refused if "cannot be analysed" in each or "\n" in each]
    assert tried > 16
    assert closed > 1  # some have something to fill in, but not all
    assert len(rendered) >= tried
    check_meant(rendered)


def _read_too_early(method: ast.FunctionDef) -> set[str]:
    """Return names that a method reads in a line above the first that binds them, outside of nested functions."""
    stored: dict[str, int] = {each.arg: 0 for each in method.args.args}
    todo: list[ast.AST] = list(method.body)
    loads: list[ast.Name] = []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef):
            stored[node.name] = min(stored.get(node.name, node.lineno), node.lineno)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored[node.id] = min(stored.get(node.id, node.lineno), node.lineno)
        elif isinstance(node, ast.Name):
            loads.append(node)
        todo += ast.iter_child_nodes(node)
    return {each.id for each in loads if each.id in stored and stored[each.id] > each.lineno}


def test_the_check_of_names_sees_what_python_would_not_find() -> None:
    text = "class Measured:\n    def loss(self, model, batch):\n        return nowhere(model, batch)\n"
    assert unresolved(text, set()) == {"nowhere"}
    assert unresolved(text, {"nowhere"}) == set()
    (made,) = ast.parse("def step(self, X):\n    Y = Z\n    Z = X\n").body
    assert isinstance(made, ast.FunctionDef)
    assert _read_too_early(made) == {"Z"}
