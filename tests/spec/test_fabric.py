"""Fabrics as experiments name them: conversion to text and back, layouts, axes, and refused fabrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.errors import ExperimentError, RequestError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec import (
    Devices,
    Experiment,
    Links,
    PlannedCase,
    crossed_words,
    expand,
    parse_experiment,
    resolve,
)
from ddpbench.spec.fabric import fabric_overrides
from ddpbench.spec.limits import MAX_RATE, MIN_RATE

CATALOG = TableCatalog()
DEVICES = Devices(kind="cpu", gpus=0, cores=2)


def parsed(text: str) -> Experiment:
    return parse_experiment(text, CATALOG, name="test")


def cases(text: str) -> list[PlannedCase]:
    return expand(parsed(text), CATALOG, DEVICES)


def problems(text: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        cases(text)
    return str(caught.value)


def layouts(text: str) -> list[tuple[int, int, int, str]]:
    return [
        (entry.case.world_size, entry.case.nodes, entry.case.ranks_per_node, entry.case.fabric)
        for entry in cases(text)
        if not entry.added_as_baseline and entry.skip_reason is None
    ]


rates = st.floats(MIN_RATE, MAX_RATE).map(lambda rate: float(f"{rate:.6g}"))


@given(
    st.lists(rates, min_size=1, max_size=8).map(tuple),
    st.none() | rates,
    st.integers(2, 4) | st.just(1),
    rates,
    st.sampled_from([0.0, 50e-6, 0.0013]),
    st.sampled_from([0.0, 0.001]),
    st.sampled_from(["none", "shared", "own"]),
)
def test_links_are_read_back_from_their_text(
    bandwidth: tuple[float, ...],
    local: float | None,
    racks: int,
    uplink: float,
    latency: float,
    loss: float,
    storage: str,
) -> None:
    links = Links(
        bandwidth=bandwidth,
        local_bandwidth=local,
        racks=racks,
        uplink=uplink if racks > 1 else None,
        latency_s=latency,
        loss=loss,
        storage=storage,
    )
    again = Links.parse(links.text())
    assert again.text() == links.text()
    assert again.bandwidth == pytest.approx(links.bandwidth, rel=1e-9)
    assert (again.racks, again.storage) == (links.racks, links.storage)
    assert again.latency_s == pytest.approx(links.latency_s)


def test_links_in_words() -> None:
    links = Links(bandwidth=(1e9,), racks=2, uplink=4e9, latency_s=50e-6, loss=0.001)
    assert links.text() == "1 Gbit/s; 2 racks, uplink 4 Gbit/s; latency 50 µs; loss 0.1 %"
    assert Links.parse("1 Gbit/s, 100 Mbit/s").of_node(1) == 1e8
    made = links.slowed(dilation=5, shrink=2)
    assert made.text() == "100 Mbit/s; 2 racks, uplink 400 Mbit/s; latency 250 µs; loss 0.1 %"


FABRIC = '[fabric]\nbandwidth = "1 Gbit/s"\n'


def test_a_resumed_experiment_has_the_layouts_it_began_with() -> None:
    for layout in ("nodes = 4", "nodes = 2\nranks_per_node = 4", '[axes]\n"fabric.nodes" = [2, 4]'):
        experiment = resolve(parsed(FABRIC + layout), DEVICES)
        resumed = resolve(parsed(experiment.to_toml()), DEVICES)
        laid = [{entry.case for entry in expand(one, CATALOG, DEVICES)} for one in (experiment, resumed)]
        assert laid[0] == laid[1]
        assert max(case.nodes for case in laid[0]) > 1


def test_any_two_of_nodes_ranks_a_node_and_world_size_give_the_third() -> None:
    assert layouts(FABRIC + "nodes = 4") == [(4, 4, 1, "1 Gbit/s")]
    assert layouts(FABRIC + "nodes = 2\nranks_per_node = 4") == [(8, 2, 4, "1 Gbit/s")]
    assert layouts(FABRIC + "[axes]\nworld_size = [2, 4]") == [(2, 2, 1, "1 Gbit/s"), (4, 4, 1, "1 Gbit/s")]
    assert layouts(FABRIC + "ranks_per_node = 2\n[base]\nworld_size = 8") == [(8, 4, 2, "1 Gbit/s")]
    shapes = layouts('[base]\nworld_size = 8\n[axes]\n"fabric.nodes" = [1, 2, 8]\n' + FABRIC)
    assert [shape[:3] for shape in shapes] == [(8, 1, 8), (8, 2, 4), (8, 8, 1)]
    assert [shape[0] for shape in layouts(FABRIC + 'nodes = 8\n[axes]\nworld_size = ["auto"]')] == [
        1,
        2,
        4,
        8,
    ]


def test_a_job_that_crosses_no_link_is_on_none_and_counted_once() -> None:
    axes = '[axes]\nstrategy = ["ddp", "independent"]\n"fabric.bandwidth" = ["1 Gbit/s", "100mbit"]\n'
    text = axes + "[fabric]\nnodes = 2"
    assert layouts(text) == [(2, 2, 1, "1 Gbit/s"), (2, 2, 1, "100 Mbit/s"), (2, 1, 2, "")]
    (base,) = (entry.case for entry in cases(text) if entry.added_as_baseline)
    assert (base.strategy, base.fabric, base.nodes) == ("single", "", 1)


def test_a_link_for_each_node_may_be_an_axis() -> None:
    text = '[axes.fabric]\nbandwidth = ["1 Gbit/s", ["1 Gbit/s", "100 Mbit/s"]]\n[fabric]\nnodes = 2'
    assert [shape[3] for shape in layouts(text)] == ["1 Gbit/s", "1 Gbit/s, 100 Mbit/s"]
    alike = '[fabric]\nnodes = 2\nbandwidth = ["1 Gbit/s", "1 Gbit/s"]'
    assert [shape[3] for shape in layouts(alike)] == ["1 Gbit/s"]


def test_a_resolved_experiment_with_a_fabric_is_read_back() -> None:
    text = '[axes]\n"fabric.nodes" = [2, 4]\n[[exclude]]\n"fabric.nodes" = 4\nstrategy = "master"\n' + FABRIC
    experiment = resolve(parsed(text), DEVICES)
    again = parse_experiment(experiment.to_toml(), CATALOG, name="other")
    assert again == experiment


def test_options_may_be_an_axis() -> None:
    planned = cases('[base]\nworld_size = 2\n[axes]\n"options.ddp.gradient_as_bucket_view" = [false, true]')
    ddp = [entry.case for entry in planned if entry.case.strategy == "ddp"]
    assert [case.options["gradient_as_bucket_view"] for case in ddp] == [False, True]
    assert "did you mean 'options.ddp.static_graph'" in problems('[axes]\n"options.ddp.static_grap" = [true]')
    twice = '[axes]\n"options.ddp.static_graph" = [true]\n[options.ddp]\nstatic_graph = true'
    assert "options.ddp.static_graph: is an axis too" in problems(twice)


def test_a_gpu_machine_emulates_on_its_cpu() -> None:
    gpus = Devices(kind="cuda", gpus=8, cores=16)
    as_axes = '[base]\nworld_size = 2\n[axes.fabric]\nbandwidth = ["1 Gbit/s"]'
    for text in (FABRIC + "nodes = 2", as_axes):
        planned = expand(parsed(text), CATALOG, gpus)
        assert {(entry.case.device, entry.case.backend) for entry in planned} == {
            ("cpu", "gloo"),
            ("cpu", ""),
        }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[fabric]\nnodes = 2", "fabric.bandwidth: is missing: how fast each node's link is"),
        ("[fabric]\nnodes = 2\nbandwidth = 0", "fabric.bandwidth: 0 given; must be 8 Mbit/s to 4 Tbit/s"),
        (
            "[fabric]\nnodes = 2\nbandwidth = true",
            "fabric.bandwidth: True given; must be 8 Mbit/s to 4 Tbit/s",
        ),
        ('[fabric]\nnodes = 2\nbandwidth = "fast"', "invalid rate 'fast': write a number and one of kbit/s"),
        ('[fabric]\nnodes = 2\nbandwidth = "-1 Gbit/s"', "invalid rate '-1 Gbit/s'"),
        ('[fabric]\nnodes = 2\nbandwidth = "1 Mbit/s"', "must be 8 Mbit/s to 4 Tbit/s: a burst"),
        ('[fabric]\nnodes = 2\nbandwidth = "1000 Tbit/s"', "4 Tbit/s: is the unit right?"),
        (
            FABRIC + "nodes = 300",
            "fabric.nodes: 300 given; must be a whole number, 1 to 128: each node is a network namespace",
        ),
        (FABRIC + "node = 4", "fabric.node: unknown key; did you mean 'nodes'?"),
        (FABRIC + "nodes = 4\nuplink = '1 Gbit/s'", "an uplink joins racks: set racks to 2 or more"),
        (FABRIC + "nodes = 3\nracks = 2", "fabric.racks: 3 nodes do not divide evenly over 2 racks"),
        ('[fabric]\nnodes = 3\nbandwidth = ["1 Gbit/s", "2 Gbit/s"]', "has 2 rates for 3 nodes"),
        (
            FABRIC + "nodes = 2\nranks_per_node = 2\n[base]\nworld_size = 8",
            "2 nodes of 2 ranks are 4 ranks, not 8",
        ),
        (FABRIC + 'nodes = 2\n[base]\nbackend = "nccl"', "nccl does not use emulated links"),
        (FABRIC + "nodes = 2\n[base]\nnodes = 2", "base.nodes belongs to other launchers"),
        ("[base]\ndilation = 0.5", "base.dilation: 0.5 given"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    assert said in problems(text)


CROSSED = '[axes]\nworld_size = [2, 4, 8]\n"fabric.nodes" = {nodes}\n'


def test_world_sizes_are_not_multiplied_with_nodes_that_they_do_not_fit() -> None:
    said = problems(CROSSED.format(nodes=[2, 4, 8]) + FABRIC)
    assert 'axes.world_size: is multiplied with axes."fabric.nodes", and 2 ranks do not divide evenly' in said
    assert "over 4 nodes (nor do 2 more pairs): remove it for one rank per node" in said
    assert said.count("\n") == 1, "one sentence for all of them"
    torchrun = '[base]\nlauncher = "torchrun"\n[axes]\nworld_size = [2, 4]\nnodes = [1, 4]'
    assert "multiplied with axes.nodes, and 2 ranks do not divide evenly over 4 nodes: leave" in problems(
        torchrun
    )
    said = problems("[axes]\nnodes = [2, 4]\n" + FABRIC)
    assert 'axes.nodes: nodes of a fabric are set as axes."fabric.nodes"' in said


def test_a_pair_that_is_excluded_is_not_missed() -> None:
    rules = "".join(
        f'[[exclude]]\nworld_size = {ranks}\n"fabric.nodes" = {nodes}\n'
        for ranks, nodes in ((2, "[4, 8]"), (4, 8))
    )
    shapes = layouts(CROSSED.format(nodes=[2, 4, 8]) + rules + FABRIC)
    assert [shape[:2] for shape in shapes] == [(2, 2), (4, 2), (4, 4), (8, 2), (8, 4), (8, 8)]


def test_a_crossing_that_fits_is_told() -> None:
    fitting = CROSSED.format(nodes=[1, 2]) + FABRIC

    def words_of(text: str) -> str:
        return crossed_words(parsed(text), [(e.case.world_size, e.case.nodes) for e in cases(text)])

    assert words_of(fitting) == (
        'axes.world_size and axes."fabric.nodes" are multiplied, 6 layouts: 2 ranks on 1 and 2 nodes; '
        "4 ranks on 1 and 2 nodes; 8 ranks on 1 and 2 nodes; without axes.world_size each node has one rank"
    )
    assert words_of('[base]\nworld_size = 8\n[axes]\n"fabric.nodes" = [1, 2, 8]\n' + FABRIC) == ""
    assert words_of("[axes]\nworld_size = [2, 4, 8]\n" + FABRIC + "nodes = 4") == ""


def test_what_is_skipped_with_its_reason() -> None:
    (entry,) = (
        found for found in cases("[base]\ndilation = 10.0\nworld_size = 2") if found.case.strategy == "ddp"
    )
    assert entry.skip_reason is not None
    assert entry.skip_reason.startswith("dilation needs replayed computation")


def test_a_short_text_for_the_command_line() -> None:
    assert fabric_overrides("8 x 1gbit") == ["fabric.nodes=8", 'fabric.bandwidth="1 Gbit/s"']
    assert fabric_overrides("2x4x10gbit/s") == [
        "fabric.nodes=2",
        "fabric.ranks_per_node=4",
        'fabric.bandwidth="10 Gbit/s"',
    ]
    for text, what in (
        ("0 x 1gbit", "nodes: 0 given; must be a whole number, 1 to 128"),
        ("129 x 1gbit", "nodes: 129 given"),
        ("2 x 0 x 1gbit", "ranks per node: 0 given"),
        ("2 x 4 x 1kbit", "rate: must be 8 Mbit/s to"),
    ):
        with pytest.raises(RequestError, match=f"--fabric '{text}': {what}"):
            fabric_overrides(text)
    for wrong in ("fast", "8 x fast", "eight x 1gbit", "1gbit", "1 x 2 x 3 x 1gbit"):
        with pytest.raises(RequestError, match="write nodes x rate"):
            fabric_overrides(wrong)
