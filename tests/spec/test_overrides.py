"""`--set`: bare names, what a setting replaces, and that the advice in messages can be followed literally."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import Devices, Experiment, expand, parse_experiment
from ddpbench.spec.overrides import contradiction, setting_keys, whole_keys
from ddpbench.text_safety import given_twice

CATALOG = TableCatalog()
FOUR_CORES = Devices(kind="cpu", gpus=0, cores=4)
DDP = '[base]\nworkload = "mlp:small"\nstrategy = "ddp"\nworld_size = 2\n'
FABRIC = DDP.replace("world_size = 2\n", "") + '[fabric]\nnodes = 2\nbandwidth = "1 Gbit/s"\n'
NO_SETTINGS = {
    "requires_grad": "an attribute of a parameter",
    "batch": "an attribute of a user's own class",
    "knows_loss": "an attribute of a user's own replica",
    "of": "a key of a claim, of which there may be several",
    **dict.fromkeys(("no", "v", "value"), "no sentence's advice"),
}


def parsed(text: str, *overrides: str) -> tuple[Experiment, list[str]]:
    notes: list[str] = []
    return parse_experiment(text, CATALOG, name="x", overrides=overrides, on_note=notes.append), notes


def refused(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        parsed(text, *overrides)
    return [str(problem) for problem in caught.value.problems]


def value_of(experiment: Experiment, key: str) -> Any:
    found: Any = experiment.model_dump()
    for part in key.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("options.train.py.width", ["options", "train.py", "width"]),
        ("options.a.b/train.py.width", ["options", "a.b/train.py", "width"]),
        ("options.mine.py:TopK.ratio", ["options", "mine.py:TopK", "ratio"]),
        ("options.ddp.accumulate", ["options", "ddp", "accumulate"]),
    ],
)
def test_a_users_file_in_a_key_needs_no_quotes(path: str, keys: list[str]) -> None:
    assert setting_keys(path) == keys


@pytest.mark.parametrize(
    ("text", "override", "key", "value"),
    [
        (DDP, "precision=bf16", "base.precision", "bf16"),
        (DDP, "world_size = 4", "base.world_size", 4),
        (DDP, "until_s='5 min'", "budget.until_s", 300.0),
        (DDP, "nodes=2", "base.nodes", 2),
        (FABRIC, "ranks_per_node=4", "fabric.ranks_per_node", 4),
        (DDP, "accumulate=2", "options.ddp.accumulate", 2),
        (DDP, "learning_rate=0.5", "options.mlp.learning_rate", 0.5),
        (DDP + '[axes]\nprecision = ["full", "bf16"]', "precision=bf16", "base.precision", "bf16"),
        (DDP + '[axes]\n"options.ddp.accumulate" = [1, 2]', "accumulate=2", "options.ddp.accumulate", 2),
    ],
)
def test_a_bare_name_stands_for_the_one_setting_that_it_can_mean(
    text: str, override: str, key: str, value: object
) -> None:
    experiment, _ = parsed(text, override)
    assert value_of(experiment, key) == value
    assert not {key, key.removeprefix("base.")} & experiment.axes.keys()


def test_a_bare_option_is_one_of_the_strategy_that_another_override_names() -> None:
    for overrides in (["strategy=fsdp", "wrap=whole"], ["wrap=whole", "base.strategy=fsdp"]):
        experiment, _ = parsed(DDP, *overrides)
        assert experiment.options == {"fsdp": {"wrap": "whole"}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("accumulate=2", "options.ddp.accumulate=4"),
        ("options.ddp.accumulate=4", "accumulate=2"),
        ("base.local_batch=4", "local_batch=8"),
        ("axes.accumulate=[1]", 'axes."options.ddp.accumulate"=[2]'),
        ("options.ddp.accumulate=2", "options.ddp={static_graph=true}"),
        ("options.ddp={accumulate=2}", "options.ddp.accumulate=4"),
        ("axes.world_size=[1]", "axes={world_size=[2]}"),
        ("env.NCCL_ALGO=Tree", 'env={NCCL_ALGO="Ring"}'),
        ("env.NCCL_ALGO=Tree", "env={}"),
        ("options={ddp={accumulate=2}}", "options={ddp={}}"),
        ("axes.local_batch=[4]", "axes={world_size=[2]}"),
    ],
)
def test_a_key_with_two_values_is_refused(first: str, second: str) -> None:
    assert f"--set: {given_twice(first, second)}" in refused(DDP, first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("accumulate=2", "options.ddp.accumulate=2"),
        ("options.ddp={accumulate=2}", "options.ddp={accumulate=2}"),
    ],
)
def test_one_value_may_be_given_twice(first: str, second: str) -> None:
    assert parsed(DDP, first, second)[0].options == {"ddp": {"accumulate": 2}}


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (("options.ddp.accumulate=2", "options.ddp={accumulate=2}"), "options.ddp.accumulate", 2),
        (("accumulate=2", "options.ddp={accumulate=2, static_graph=true}"), "options.ddp.accumulate", 2),
        (("env={}", "env.A='1'"), "env", {"A": "1"}),
        (("options={ddp={}}", "accumulate=2"), "options", {"ddp": {"accumulate": 2}}),
        (
            ("axes.fabric.bandwidth=['1 Gbit/s']", "axes.fabric={latency=['1 ms']}"),
            "axes",
            {"fabric.bandwidth": [1e9], "fabric.latency": [0.001]},
        ),
        (
            ("axes.fabric={bandwidth=['1 Gbit/s']}", "axes.fabric={latency=['1 ms']}", "axes.fabric={}"),
            "axes",
            {"fabric.bandwidth": [1e9], "fabric.latency": [0.001]},
        ),
    ],
)
def test_settings_of_which_none_is_lost_are_taken(given: tuple[str, ...], key: str, value: object) -> None:
    assert contradiction(given) is None
    text = FABRIC.partition("bandwidth")[0] if "fabric" in given[0] else DDP
    assert value_of(parsed(text, *given)[0], key) == value


def test_a_table_given_again_loses_what_was_set_in_it_meanwhile() -> None:
    given = ("options.ddp={accumulate=2}", "options.ddp.static_graph=true", "options.ddp={accumulate=2}")
    assert contradiction(given) == given[1:]
    assert f"--set: {given_twice(*given[1:])}" in refused(DDP, *given)


def test_a_table_is_joined_with_what_is_not_in_it() -> None:
    experiment, _ = parsed(DDP, "options.ddp={accumulate=2}", "options.ddp.static_graph=true")
    assert experiment.options == {"ddp": {"accumulate": 2, "static_graph": True}}


@pytest.mark.parametrize("table", ["axes", "[exclude]"])
def test_a_name_in_quotes_and_in_a_nested_table_is_refused(table: str) -> None:
    text = f'{DDP}[{table}]\n"options.ddp.accumulate" = [1, 2]\noptions.ddp.accumulate = [4]\n'
    (problem,) = refused(text)
    assert problem.endswith("accumulate: is given twice, in quotes and in a nested table; give it once")


def test_an_axis_is_replaced_whether_its_name_is_in_quotes_or_not() -> None:
    axes = "[axes]\noptions.ddp.static_graph = [true]\n"
    experiment, _ = parsed(
        f'{DDP}{axes}"options.ddp.accumulate" = [1, 2]\n', "axes.options.ddp.accumulate=[4]"
    )
    assert experiment.axes["options.ddp.accumulate"] == [4]


def test_an_axis_may_be_given_by_the_bare_name_too() -> None:
    experiment, _ = parsed(DDP, "axes.accumulate=[1, 2]", "axes.local_batch=[4, 8]")
    assert experiment.axes == {"options.ddp.accumulate": [1, 2], "local_batch": [4, 8]}


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (DDP, "seed=3", "--set: seed may be base.seed or budget.seed: write the one that is meant"),
        (FABRIC, "nodes=4", "--set: nodes may be base.nodes or fabric.nodes: write the one that is meant"),
        (
            DDP.replace('strategy = "ddp"', "") + '[axes]\nstrategy = ["ddp", "hf_trainer"]',
            "accumulate=2",
            "--set: accumulate may be options.ddp.accumulate or options.hf_trainer.accumulate: write the one ",
        ),
        (DDP, "presicion=full", "presicion: unknown setting; did you mean 'precision'?"),
        (DDP, "wrap=whole", "wrap: unknown setting; "),
        ("precision = 'full'\n" + DDP, "world_size=2", "precision: unknown section; put this key in [base]"),
        (
            "accumulate = 2\n" + DDP,
            "world_size=2",
            "accumulate: unknown section; put this key in [options.ddp]",
        ),
        (
            DDP + "[options.ddp]\naccumulate = 2\n",
            "world_size=[1, 2]",
            "base.world_size: [1, 2] given; must be",
        ),
        ("wrold = 2\n" + DDP, "world_size=2", "wrold: unknown section; known: axes, base"),
    ],
)
def test_a_name_with_no_or_several_places_is_refused(text: str, override: str, message: str) -> None:
    (found,) = refused(text, override)
    assert found.startswith(message)


NCCL = '[env]\nNCCL_ALGO = "Ring"\n'
OWN = DDP.replace("mlp:small", "train.py:Measured")


@pytest.mark.parametrize(
    ("text", "override", "note"),
    [
        (
            DDP + NCCL,
            'axes."env.NCCL_ALGO"=["Ring", "Tree"]',
            "axes.env.NCCL_ALGO = ['Ring', 'Tree'] replaces env.NCCL_ALGO = Ring",
        ),
        (
            DDP + '[axes]\n"env.NCCL_ALGO" = ["Ring", "Tree"]',
            "env.NCCL_ALGO=Tree",
            "env.NCCL_ALGO = Tree replaces the axis env.NCCL_ALGO = [Ring, Tree]",
        ),
        (
            DDP + "[options.ddp]\naccumulate = 4\n",
            "axes.options.ddp.accumulate=[1, 2]",
            "axes.options.ddp.accumulate = [1, 2] replaces options.ddp.accumulate = 4",
        ),
        (
            DDP + '[axes]\n"options.ddp.accumulate" = [1, 2]',
            "options.ddp.accumulate=4",
            "options.ddp.accumulate = 4 replaces the axis options.ddp.accumulate = [1, 2]",
        ),
        (
            FABRIC,
            "axes.fabric.bandwidth=['1 Gbit/s', '2 Gbit/s']",
            "axes.fabric.bandwidth = ['1 Gbit/s', '2 Gbit/s'] replaces fabric.bandwidth = 1 Gbit/s",
        ),
        (
            OWN + '[options."train.py"]\nwidth = 8\n',
            'axes."options.train.py.width"=[4, 8]',
            "axes.options.train.py.width = [4, 8] replaces options.train.py.width = 8",
        ),
    ],
)
def test_a_value_and_an_axis_replace_each_other_wherever_they_stand(
    text: str, override: str, note: str
) -> None:
    _, notes = parsed(text, override)
    assert notes == [note]


def test_a_strategy_in_a_table_owns_the_bare_names_of_its_options() -> None:
    text = DDP.replace('strategy = "ddp"\n', "") + '[axes]\nstrategy = ["single", "fsdp"]\n'
    experiment, _ = parsed(
        text, 'base={workload="mlp:small", strategy="ddp", world_size=2}', "static_graph=true"
    )
    assert experiment.options == {"ddp": {"static_graph": True}}


@pytest.mark.parametrize(
    ("text", "override", "note"),
    [
        (
            FABRIC.replace('bandwidth = "1 Gbit/s"', "")
            + '[axes]\n"fabric.bandwidth" = ["1 Gbit/s", "2 Gbit/s"]',
            "fabric={nodes=2, bandwidth='4 Gbit/s'}",
            "fabric.bandwidth = 4 Gbit/s replaces the axis fabric.bandwidth = [1 Gbit/s, 2 Gbit/s]",
        ),
        (
            FABRIC,
            "axes.fabric={bandwidth=['1 Gbit/s', '2 Gbit/s']}",
            "axes.fabric.bandwidth = ['1 Gbit/s', '2 Gbit/s'] replaces fabric.bandwidth = 1 Gbit/s",
        ),
        (
            DDP,
            "axes={world_size=[1, 2]}",
            "axes.world_size = [1, 2] replaces base.world_size = 2",
        ),
    ],
)
def test_a_table_replaces_what_each_of_its_values_would(text: str, override: str, note: str) -> None:
    _, notes = parsed(text, override)
    assert notes == [note]


LEFT = (
    DDP
    + """[axes]
"options.ddp.accumulate" = [1, 2]
[options.ddp]
static_graph = true
[[exclude]]
"options.ddp.accumulate" = 2
[[claims]]
says = "the second is faster"
faster = { "options.ddp.accumulate" = 2 }
than = { "options.ddp.accumulate" = 1 }
"""
)


@pytest.mark.parametrize("given", [[8], "base.seed=1", {"base.seed": 1}, None, ["base.seed=1", b"x"]])
def test_overrides_that_are_no_list_of_texts_are_told_as_such(given: Any) -> None:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment("", CATALOG, name="x", overrides=given)
    (message,) = map(str, caught.value.problems)
    assert message == f'overrides: {given!r}: give a list of texts, such as ["base.local_batch=16"]'


@pytest.mark.parametrize("override", ["base.strategy=fsdp", "axes.strategy=['single', 'fsdp']"])
def test_what_belongs_to_a_strategy_that_was_replaced_is_left_out(override: str) -> None:
    experiment, notes = parsed(LEFT, override)
    assert "options.ddp.accumulate" not in experiment.axes
    assert not experiment.options
    assert not experiment.exclude
    assert not experiment.claims
    assert notes[-1] == (
        "ddp was replaced: the axis options.ddp.accumulate, options.ddp, exclude[0] and claims[0] are left out"
    )


def test_what_belongs_to_a_workload_that_was_replaced_is_left_out() -> None:
    text = OWN + '[options."train.py"]\nwidth = 8\n'
    experiment, notes = parsed(text, "base.workload=gpt:nano", "block_size=32")
    assert experiment.options == {"gpt": {"block_size": 32}}
    assert notes == ["train.py was replaced: options.train.py is left out"]


def test_an_option_that_is_given_for_a_strategy_that_is_not_there_is_still_refused() -> None:
    assert refused(LEFT, "base.strategy=single", "options.ddp.accumulate=2")
    (found,) = refused(DDP + "[options.fsdp]\nwrap = 'whole'\n", "world_size=4")
    assert found.startswith("options.fsdp: 'fsdp' is not used by this experiment")


@pytest.mark.parametrize(
    ("override", "axis"),
    [
        ("world_size=[1, 2]", "axes.world_size"),
        ("base.precision=['full', 'bf16']", "axes.precision"),
        ("options.ddp.accumulate=[1, 2]", "axes.options.ddp.accumulate"),
        ("fabric.nodes=[2, 4]", "axes.fabric.nodes"),
        ("world_size=2.5", ""),
        ("budget.rounds_max=[5, 6]", ""),
    ],
)
def test_several_values_of_a_setting_are_told_to_be_an_axis(override: str, axis: str) -> None:
    (problem,) = refused(FABRIC if "fabric" in override else DDP, override)
    assert problem.partition("several values are an axis: ")[2] == axis
    if axis:
        assert parsed(FABRIC if "fabric" in override else DDP, f"{axis}={override.partition('=')[2]}")


def test_a_file_without_a_class_is_told_how_to_name_one() -> None:
    (problem,) = refused(DDP, "workload=x.py")
    assert problem.endswith("base.workload: 'x.py' does not name a class: write 'x.py:Class'")


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("device = cuda", ["base.device"]),
        ("axes.device=['cpu']", ["base.device"]),
        ("base.device=cuda", ["base.device"]),
        ("seed=1", ["base.seed", "budget.seed"]),
        ("axes.fabric.nodes=[2]", ["fabric.nodes"]),
        ("accumulate=2", ["accumulate"]),
        ("base={device='cuda', precision='bf16'}", ["base.device", "base.precision"]),
        ("axes={device=['cpu'], fabric={nodes=[2]}}", ["base.device", "fabric.nodes"]),
    ],
)
def test_whole_keys_are_known_without_an_experiment(override: str, keys: list[str]) -> None:
    assert whole_keys(override) == keys


# Advice in messages


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module except its docstrings; values filled into an f-string become `{}`."""
    left_out = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in node.values
    }
    left_out |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


ASSIGNED = re.compile(r"""(?<![\w.\[/])([a-z][\w.]*) = (?:(?P<value>"[^"{]*"|'[^'{]*'|\d+|true|false)|)""")
SET_TO = re.compile(r"\bset ([a-z_]+(?:\.[a-z_]+)*)(?: to |, | and | or )")


def advice() -> dict[str, set[str]]:
    """Return the settings that messages name with a value or say to set, each with the values written out."""
    found: dict[str, set[str]] = {}
    for path in Path(ddpbench.__file__).parent.rglob("*.py"):
        for text in texts(ast.parse(path.read_text())):
            if "\n" in text:  # text of a file, not a sentence
                continue
            for match in ASSIGNED.finditer(text):
                found.setdefault(match[1], set()).update(filter(None, [match["value"]]))
            for match in SET_TO.finditer(text):
                if "_" in match[1] or "." in match[1]:
                    found.setdefault(match[1], set())
    return {name: values for name, values in found.items() if name not in NO_SETTINGS}


@functools.cache
def owners() -> dict[tuple[str, str], set[str]]:
    """Return the options of strategies and workloads, by the pair that an experiment selects them with."""
    found = {("gpt:nano", name): CATALOG.strategy(name).options for name in CATALOG.strategy_names()}
    workloads = {
        name.partition(":")[0]: name for name in CATALOG.workload_names()
    }.values()  # one size is enough
    found |= {(name, "single"): CATALOG.workload(name).options for name in workloads}
    return {pair: set(options.model_fields) for pair, options in found.items()}


def texts_for(name: str) -> list[str]:
    """Return experiments in which a setting of this name can occur: of every strategy and workload that has
    it.
    """
    short = name.rpartition(".")[2]
    base = "[base]\nworkload = '{}'\nstrategy = '{}'\nworld_size = 2\n"
    able = [pair for pair, options in owners().items() if short in options]
    return [base.format(*pair) for pair in able] or [DDP if short == "nodes" else FABRIC]


def test_every_setting_that_a_message_advises_can_be_given_as_it_is_written() -> None:
    advised = advice()
    assert advised.keys() >= {"precision", "launcher", "accumulate", "microbatches", "world_size"}
    wrong: list[str] = []
    for name, values in sorted(advised.items()):
        for text in texts_for(name):
            if name.startswith("options.") and f"'{name.split('.')[1]}'" not in text:
                continue
            for value in values or {"0"}:
                try:
                    parsed(text, f"{name}={value}")
                except ExperimentError as error:
                    wrong += [
                        f"{name} = {value}: {one}"
                        for one in error.problems
                        if re.match("unknown (setting|section|key|axis)", one.message) or one.path == "--set"
                    ]
    assert not wrong


REPLAY = "[base]\nworkload = 'replay:gpt-nano-cpu'\nstrategy = '{}'\nworld_size = 2\n"


@pytest.mark.parametrize(
    ("text", "to_set"),
    [
        (REPLAY.format("ddp") + "[options.ddp]\naccumulate = 2\n", "accumulate"),
        (REPLAY.format("ddp") + "precision = 'bf16'\n", "precision"),
        (REPLAY.format("ddp") + "scaling = 'strong'\nglobal_batch = 4\n", "scaling"),
        (
            DDP + "[axes]\nlauncher = ['spawn', 'torchrun']\n[fabric]\nnodes = 2\nbandwidth = '1 Gbit/s'\n",
            "launcher",
        ),
        (
            DDP.replace("mlp:small", "gpt:nano").replace("ddp", "pipeline") + "precision = 'bf16'\n",
            "precision",
        ),
        (
            DDP.replace("mlp:small", "gpt:mini").replace("ddp", "pipeline")
            + "local_batch = 4\n[options.pipeline]\norder = '1f1b'\nmicrobatches = 1\n",
            "microbatches",
        ),
        (DDP + "recovery = 'SIGKILL'\n", "launcher"),
    ],
)
def test_advice_of_a_skipped_case_can_be_followed(text: str, to_set: str) -> None:
    def reasons(*overrides: str) -> list[str]:
        entries = expand(parsed(text, *overrides)[0], CATALOG, FOUR_CORES)
        return [entry.skip_reason or "" for entry in entries if entry.case.strategy != "single"]

    before = reasons()
    (match,) = (
        one for one in ASSIGNED.finditer(before[0].split(": ", 1)[1]) if one[1] == to_set and one["value"]
    )
    assert match["value"]
    assert reasons(f"{match[1]}={match['value']}") == [""]


@pytest.mark.parametrize(
    ("file", "override", "head"),
    [
        ("", "base.strategy=dpd", "--set: 1 problem\n  base.strategy: unknown strategy 'dpd'"),
        ("", "axes.world_size=[1, 0]", "--set: 1 problem\n  axes.world_size: 0 given"),
        ("", "budget.rounds_max=1", "--set: 1 problem\n  budget.rounds_max: is 1, below"),
        ("", "nowhere=1", "--set: 1 problem\n  nowhere: unknown setting"),
        ("", "nowhere.seed=1", "--set: 1 problem\n  nowhere: unknown section"),
        ("", "options.ddq.bucket_view=true", "--set: 1 problem\n  options.ddq: 'ddq' is not a strategy"),
        ("[nowhere]\nx = 1\n", "nowhere.seed=1", "quick.toml: 1 problem\n  nowhere: unknown section"),
        ("[options.ddq]\nx = 1\n", "options.ddq.x=2", "quick.toml: 1 problem\n  options.ddq: 'ddq' is not"),
        ('dtype = "nope"\n', "world_size=2", "quick.toml: 1 problem\n  base.dtype: "),
        ('dtype = "nope"\n', "base.device=dpd", "quick.toml: 2 problems\n"),
    ],
)
def test_a_problem_of_an_override_names_the_flag_and_not_the_file(
    file: str, override: str, head: str
) -> None:
    with pytest.raises(ExperimentError) as error:
        parse_experiment(DDP + file, CATALOG, name="quick", source="quick.toml", overrides=[override])
    assert str(error.value).startswith(head)
    assert ("  --set base.device: " in str(error.value)) == ("2 problems" in head)
