"""Cases of two sides are matched by all settings but those in which the sides are meant to differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import pytest

from ddpbench.errors import ExperimentError
from ddpbench.launch.catalog import TableCatalog
from ddpbench.naming import EVERY
from ddpbench.spec import Case, Devices, expand, parse_experiment
from ddpbench.spec.grouping import differing
from ddpbench.spec.matching import FOLLOWING, fields_apart, fields_set, keys_apart, match, with_following

CATALOG = TableCatalog()
FOUR_CORES = Devices(kind="cpu", gpus=0, cores=4)
Labels = list[tuple[str, str]]
STRATEGIES = ['axes.strategy=["ddp", "master"]']
CAPS = ["axes.bucket_cap_mb=[1, 25]"]


def cases_of(*overrides: str) -> list[Case]:
    text = "[base]\nworld_size = 2"
    experiment = parse_experiment(text, CATALOG, name="test", overrides=overrides)
    return [entry.case for entry in expand(experiment, CATALOG, FOUR_CORES) if not entry.added_as_baseline]


def matched(base: Sequence[str], new: Sequence[str], both: Sequence[str] = ()) -> tuple[Labels, int, int]:
    """Return the labels of the pairs, the number of unclear groups, and the number of cases that are alone."""
    mine, others = cases_of(*both, *base), cases_of(*both, *new)
    found = match(mine, others, fields_apart(base, new))
    pairs = [(mine[a].label, others[b].label) for a, b in found.pairs]
    return pairs, len(found.unclear), sum(map(len, found.alone))


DDP, MASTER = "ddp · 2 ranks · default buckets", "master · 2 ranks"
CAP = "ddp · 2 ranks · {} MiB buckets"
SMALL, LARGE = CAP.format(1), CAP.format(25)


@pytest.mark.parametrize(
    ("base", "new", "both", "pairs"),
    [
        (["base.strategy=ddp"], ["base.strategy=master"], [], [(DDP, MASTER)]),
        (['axes.strategy=["ddp"]'], ['axes.strategy=["master"]'], [], [(DDP, MASTER)]),
        ([], ["strategy=master"], [], [(DDP, MASTER)]),
        (["base.bucket_cap_mb=1"], ["base.bucket_cap_mb=25"], [], [(SMALL, LARGE)]),
        (  # a strategy without buckets is equal on both sides
            ["base.bucket_cap_mb=1"],
            ["base.bucket_cap_mb=25"],
            ['axes.strategy=["master", "ddp"]'],
            [(MASTER, MASTER), (SMALL, LARGE)],
        ),
        (  # several settings of one side
            ["base.strategy=ddp", "base.bucket_cap_mb=1"],
            ["base.strategy=fsdp"],
            ["axes.world_size=[2, 4]"],
            [(SMALL, "fsdp · 2 ranks"), (SMALL.replace("2", "4"), "fsdp · 4 ranks")],
        ),
        (
            ["base.world_size=1"],
            ["base.world_size=2"],
            ["axes.local_batch=[8, 16]"],
            [("ddp · 1 rank · default buckets", DDP)] * 2,
        ),
        (["base.local_batch=8"], ["base.local_batch=16"], STRATEGIES, [(DDP, DDP), (MASTER, MASTER)]),
        ([], ["base.scaling=strong", "base.global_batch=16"], STRATEGIES, [(DDP, DDP), (MASTER, MASTER)]),
        (["options.ddp.accumulate=1"], ["options.ddp.accumulate=2"], [], [(DDP, DDP)]),
        (["env.FOO='1'"], ["env.FOO='2'"], ['axes.strategy=["ddp", "single"]', "base.world_size=1"], None),
        (["base.workload=cnn"], ["workload=gpt:nano"], STRATEGIES, [(DDP, DDP), (MASTER, MASTER)]),
        (["budget.measured_s=1"], ["budget.measured_s=2"], CAPS, [(SMALL, SMALL), (LARGE, LARGE)]),
        (CAPS, ["axes.bucket_cap_mb=[2, 4]"], [], [(SMALL, CAP.format(2)), (LARGE, CAP.format(4))]),
        (  # the same axis in another order
            ["axes.bucket_cap_mb=[1, 25]"],
            ["axes.bucket_cap_mb=[25, 1]"],
            [],
            [(SMALL, SMALL), (LARGE, LARGE)],
        ),
        (  # the axis is the same on both sides, and only the strategy differs
            ["axes.world_size=[1, 2]", "base.strategy=ddp"],
            ["axes.world_size=[1, 2]", "base.strategy=master"],
            [],
            [("ddp · 1 rank · default buckets", "master · 1 rank"), (DDP, MASTER)],
        ),
    ],
)  # fmt: skip
def test_sides_are_matched_by_all_else(
    base: list[str], new: list[str], both: list[str], pairs: Labels | None
) -> None:
    found, unclear, alone = matched(base, new, both)
    assert (unclear, alone) == (0, 0)
    assert found == (pairs or found)
    assert found


FABRIC = ["fabric.bandwidth='1 Gbit/s'"]


def test_links_are_a_setting_and_the_layout_follows() -> None:
    both = ["axes.world_size=[1, 2, 4]", 'axes.strategy=["ddp", "master"]']
    for base, new in (
        (FABRIC, ["fabric.bandwidth='10 Gbit/s'"]),
        ([], FABRIC),
        ([*FABRIC, "fabric.latency='1 ms'"], [*FABRIC, "fabric.latency='2 ms'"]),
    ):
        pairs, unclear, alone = matched(base, new, both)
        assert (unclear, alone, len(pairs)) == (0, 0, 6)
        assert all(a.split(" · ")[:2] == b.split(" · ")[:2] for a, b in pairs)
    pairs, unclear, alone = matched(["fabric.nodes=2"], ["fabric.nodes=4"], [*FABRIC, "base.world_size=4"])
    assert (unclear, alone, len(pairs)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("base", "new", "both"),
    [
        (["base.strategy=ddp"], ["base.strategy=master"], CAPS),
        (["axes.bucket_cap_mb=[1, 2]"], ["axes.bucket_cap_mb=[4, 8, 16]"], []),
        (["axes.bucket_cap_mb=[1, 2, 25]"], ["axes.bucket_cap_mb=[25, 50]"], []),
        (['axes.strategy=["ddp", "master"]'], ['axes.strategy=["fsdp"]'], []),
    ],
)
def test_what_may_match_several_is_not_matched(base: list[str], new: list[str], both: list[str]) -> None:
    for one, other in ((base, new), (new, base)):
        pairs, unclear, alone = matched(one, other, both)
        assert (unclear, alone) == (1, 0)
        assert pairs in ([], [(LARGE, LARGE)])


def test_equal_cases_are_matched_before_others() -> None:
    base, new = ['axes.strategy=["ddp", "master"]'], ['axes.strategy=["ddp", "fsdp"]']
    assert matched(base, new) == ([(DDP, DDP), (MASTER, "fsdp · 2 ranks")], 0, 0)
    base, new = CAPS, ["axes.bucket_cap_mb=[25, 50]"]
    assert matched(base, new) == ([(SMALL, "ddp · 2 ranks · 50 MiB buckets"), (LARGE, LARGE)], 0, 0)


def test_a_case_of_one_side_only_is_alone() -> None:
    assert matched(['axes.strategy=["ddp", "master"]'], ['axes.strategy=["ddp"]']) == ([(DDP, DDP)], 0, 1)
    assert matched(["axes.world_size=[2, 4]"], ["axes.world_size=[2, 3, 4]"])[1:] == (0, 1)
    assert matched(["base.strategy=ddp"], ["threads_per_rank=2", "base.strategy=ddp"])[1:] == (0, 0)
    mine, others = cases_of(), cases_of("threads_per_rank=2", "strategy=master")
    assert match(mine, others, ("strategy",)).alone == ([0], [0])


def test_equal_cases_are_paired_in_order_if_both_sides_have_as_many() -> None:
    (one,) = cases_of()
    assert match([one, one], [one, one]).pairs == [(0, 0), (1, 1)]
    assert match([one, one], [one]).unclear == [([0, 1], [0])]


SETTINGS = {
    "base.strategy": [name for name in CATALOG.strategy_names() if name != "ddp"],
    "base.workload": ["cnn", "mlp", "replay:bert-base-v100", "resnet:18"],
    "base.world_size": [1, 4],
    "base.threads_per_rank": [2],
    "base.bucket_cap_mb": [1],
    "base.local_batch": [3],
    "base.precision": ["bf16"],
    "base.dtype": ["float64"],
    "base.data": ["memory"],
    "base.loader_workers": [2],
    "base.schedule": ["after_backward"],
    "base.algorithm": ["ring"],
    "base.seed": [3],
    "base.replicate": [1],
    "base.launcher": ["torchrun", "spawn"],
    "base.evaluation": ["true"],
    "base.checkpoint": ["true"],
    "base.recovery": ["exception"],
    "base.dilation": [2],
    "base.device": ["cuda"],
    "base.backend": ["mpi", "nccl"],
    "options.ddp.accumulate": [2],
    "env.NCCL_ALGO": ["Ring"],
    "fabric.bandwidth": ["'1 Gbit/s'"],
}


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.parametrize(
    "both", [[], FABRIC, ["env.NCCL_ALGO=Tree", "base.data=loader", "base.loader_workers=1"]]
)
def test_all_that_follows_from_a_setting_is_known(key: str, both: list[str]) -> None:
    free = with_following(fields_set([key]))
    for value in SETTINGS[key]:
        if any(text.startswith(key) for text in both):
            continue
        try:
            (before,), (after,) = cases_of(*both), cases_of(*both, f"{key}={value}")
        except ExperimentError:  # for example nccl on an emulated network
            continue
        assert set(differing([before, after], EVERY)) <= set(free), (key, value)


def test_what_follows_are_fields() -> None:
    names = {one.name for one in fields(Case)}
    assert {*FOLLOWING} | {name for more in FOLLOWING.values() for name in more} <= names


def test_a_setting_that_both_sides_have_does_not_differ() -> None:
    base, new = (
        ["base.strategy=ddp", "base.bucket_cap_mb=1"],
        ["base.strategy=master", "base.bucket_cap_mb=1"],
    )
    assert keys_apart(base, new) == ["base.strategy"]
    assert fields_apart(base, new) == ("strategy",)
