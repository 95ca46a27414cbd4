"""Names of cases: no two alike, and a setting written the same way in every name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.analysis.export.formats import exported
from ddpbench.analysis.regression import changes_of, read_side
from ddpbench.analysis.regression.wording import to_json
from ddpbench.naming import EVERY, JOINT, Namer, columns, curve_key, ranks_of
from ddpbench.records.plan import read_plan
from ddpbench.spec import Case
from ddpbench.spec.grouping import FACETS, OPTIONS, option_words
from tests.kept import summary_of, unpacked
from tests.spec.test_grouping import AXES, BASE

DDP = Case(workload="mlp", strategy="ddp", world_size=2, bucket_cap_mb="default", global_batch=16)


def with_options(**options: object) -> Case:
    return replace(DDP, options_json=json.dumps({"accumulate": 1, "compression": "none"} | options))


def called(*cases: Case) -> list[str]:
    return [Namer(cases).full(case) for case in cases]


def test_cases_that_differ_in_their_labels_keep_them() -> None:
    other = replace(DDP, world_size=4, dtype="float64")
    assert called(DDP, other) == [DDP.label, other.label]


def test_options_that_differ_are_named() -> None:
    plain, fp16, both = (
        with_options(),
        with_options(compression="fp16"),
        with_options(compression="fp16", accumulate=2),
    )
    assert called(plain, fp16, both) == [
        f"{DDP.label} · accumulate=1 · compression=none",
        f"{DDP.label} · accumulate=1 · compression=fp16",
        f"{DDP.label} · accumulate=2 · compression=fp16",
    ]
    assert called(plain, fp16) == [f"{DDP.label} · compression=none", f"{DDP.label} · compression=fp16"]


def test_one_batch_is_enough() -> None:
    small, strong = replace(DDP, local_batch=4, global_batch=8), replace(DDP, scaling="strong")
    assert called(DDP, small) == [f"{DDP.label} · local batch of 8", f"{DDP.label} · local batch of 4"]
    assert called(DDP, strong) == [
        f"{DDP.label} · local batch of 8 · weak scaling",
        f"{DDP.label} · global batch of 16 · strong scaling",
    ]


def test_replayed_models_and_replicates() -> None:
    replay = replace(DDP, workload="replay:resnet50-v100", compute="synthetic")
    assert called(DDP, replay) == [f"{DDP.label} · mlp", f"{DDP.label} · resnet50-v100"]
    assert called(DDP, replace(DDP, replicate=1))[1] == f"{DDP.label} · replicate 1"


def test_a_workload_is_named_before_what_differs_within_it() -> None:
    other = replace(DDP, workload="gpt:nano", workload_options_json='{"block_size": 64}')
    fp16 = replace(with_options(compression="fp16"), workload="gpt:nano")
    assert called(with_options(), with_options(compression="fp16"), other) == [
        f"{DDP.label} · mlp · compression=none",
        f"{DDP.label} · mlp · compression=fp16",
        f"{DDP.label} · gpt:nano",
    ]
    assert called(with_options(), fp16) == [f"{DDP.label} · mlp", f"{DDP.label} · gpt:nano"]


def test_an_option_called_as_a_setting_is_an_option() -> None:
    first, second = (replace(DDP, workload_options_json=json.dumps({"seed": seed})) for seed in (0, 1))
    assert called(first, second) == [f"{DDP.label} · seed=0", f"{DDP.label} · seed=1"]


IMAGES, NARROW = "experiments/claim_images.py:Images", "experiments/claim_layers.py:Narrow"
KEYS: dict[str, list[str]] = {
    "claim_data_parallel": [
        f"data_parallel · 2 ranks · {NARROW}",
        f"ddp · 2 ranks · default buckets · {NARROW}",
        "data_parallel · 2 ranks · mlp:large",
        "ddp · 2 ranks · default buckets · mlp:large",
        f"single · 1 rank · {NARROW}",
        "single · 1 rank · mlp:large",
    ],
    "claim_input_bound": [
        f"{case}{data} · {workload}"
        for workload in ("gpt:nano", IMAGES)
        for case in ("single · 1 rank", "ddp · 2 ranks · default buckets")
        for data in (" · data in memory", "", " · 1 loader worker")
    ],
    "frameworks": [
        "single · 1 rank · data in memory · torchrun",
        "ddp · 1 rank · default buckets · data in memory",
        "ddp · 2 ranks · default buckets · data in memory",
        "accelerate · 1 rank · default buckets · data in memory",
        "accelerate · 2 ranks · default buckets · data in memory",
        "lightning · 1 rank · default buckets · data in memory · api=trainer",
        "lightning · 1 rank · default buckets · data in memory · api=fabric",
        "lightning · 2 ranks · default buckets · data in memory · api=trainer",
        "lightning · 2 ranks · default buckets · data in memory · api=fabric",
        "hf_trainer · 1 rank · default buckets · data in memory",
        "hf_trainer · 2 ranks · default buckets · data in memory",
        "deepspeed · 1 rank · data in memory",
        "deepspeed · 2 ranks · data in memory",
        "ray_train · 1 rank · default buckets · data in memory · launched by ray",
        "ray_train · 2 ranks · default buckets · data in memory · launched by ray",
        "tf_mirrored · 1 rank · data in memory",
        "tf_mirrored · 2 ranks · data in memory",
        "tf_multi_worker · 1 rank · data in memory",
        "tf_multi_worker · 2 ranks · data in memory",
        "single · 1 rank · data in memory · local",
    ],
    "quick-two-cores-gloo": [
        "single · 1 rank · threads_per_rank=1",
        "single · 1 rank · threads_per_rank=2",
        "independent · 2 ranks",
        "data_parallel · 2 ranks",
        "ddp · 1 rank · default buckets",
        "ddp · 2 ranks · default buckets",
        "ddp · 2 ranks · 1 MiB buckets",
        "master · 2 ranks",
    ],
}
"""Names that files of kept runs have had since the first version that wrote them."""
LAWS = {
    "claim_data_parallel": 2 * ["DataParallel (threads)", "DDP"],
    "claim_input_bound": 6 * ["DDP"],
    "frameworks": [
        "DDP",
        "Accelerate",
        "Lightning api=trainer",
        "Lightning api=fabric",
        "the HF Trainer",
        "DeepSpeed",
    ],
    "quick-two-cores-gloo": [
        "independent ranks",
        "DataParallel (threads)",
        "DDP with default buckets",
        "master",
    ],
}


@pytest.mark.parametrize("name", KEYS)
def test_names_in_files_of_a_kept_run_stay(name: str, tmp_path: Path) -> None:
    run = unpacked(name, tmp_path)
    said = json.loads(exported(run, "pytest-benchmark"))["benchmarks"]
    experiment = read_plan(run).experiment
    assert [one["name"] for one in said] == KEYS[name]
    assert [one["fullname"] for one in said] == [f"{experiment}::{key}" for key in KEYS[name]]
    changes = to_json(changes_of(read_side(run, "a"), read_side(run, "b")))
    assert [one["label"] for one in changes["cases"]] == KEYS[name]
    assert [one["name"] for one in summary_of(name)["laws"]] == LAWS[name]


def test_a_key_has_settings_as_an_experiment_gives_them() -> None:
    def keys(*cases: Case) -> list[str]:
        return [Namer(cases).key(case).removeprefix(f"{DDP.label} · ") for case in cases]

    own = replace(DDP, dtype="own")
    torchrun = replace(DDP, launcher="torchrun")
    other = replace(DDP, seed=3, local_batch=4, global_batch=8)
    assert keys(DDP, other) == ["local_batch=8 · seed=0", "local_batch=4 · seed=3"]
    assert keys(DDP, own, torchrun) == ["local · float32", "local · own types", "torchrun · float32"]
    assert keys(DDP, replace(DDP, env_json='{"A": "1", "B": ""}')) == [DDP.label, "A=1 · B unset"]
    assert keys(with_options(), with_options(accumulate=2)) == ["accumulate=1", "accumulate=2"]
    files = [replace(DDP, strategy=f"{name}.py:TopK") for name in "ab"]
    assert [Namer(files).key(case).rpartition(" · ")[2] for case in files] == ["a.py", "b.py"]
    replay = replace(DDP, workload="replay:resnet50", compute="synthetic")
    assert keys(DDP, replay) == ["mlp", "resnet50"]


def test_the_key_of_a_curve_has_no_brackets_but_its_strategys() -> None:
    algorithms = [replace(DDP, algorithm=name, bucket_cap_mb=None) for name in ("all_reduce", "ring")]
    assert [curve_key(case, algorithms) for case in algorithms] == ["DDP all reduce", "DDP ring"]
    unset = replace(DDP, env_json='{"A": ""}')
    assert [curve_key(case, [DDP, unset]) for case in (DDP, unset)] == ["DDP", "DDP A=unset"]


def drawn(values: list[dict[str, object]]) -> list[Case]:
    return list({case.case_id: case for case in (replace(BASE, **one) for one in values)}.values())


SETTINGS: dict[str, list[object]] = {
    **{name: [getattr(BASE, name), value] for name, value in AXES.items() if name != "scaling"},
    "strategy": ["ddp", "master", "single", "a.py:TopK", "b/a.py:TopK"],
    "algorithm": ["all_reduce", "master", "a.py:Mine", "b.py:Mine"],
    "workload": ["mlp", "replay:mlp", "a.py:Net", "b.py:Net"],
    "options_json": [
        "{}",
        '{"decay": 0.05}',
        '{"decay": "0.05"}',
        '{"decay": null}',
        '{"decay": 0.1, "on": true}',
    ],
    "env_json": ["{}", '{"NCCL_ALGO": ""}', '{"NCCL_ALGO": "unset"}', '{"NCCL_ALGO": "a\\nb"}'],
    "bucket_cap_mb": [None, "default", 25.0, 25.0000001],
    "world_size": [1, 2, 4],
}
"""Values to draw, by field, including words that could stand for something else."""


def sets_of_cases() -> st.SearchStrategy[list[Case]]:
    fields = {name: st.sampled_from(values) for name, values in SETTINGS.items()}
    varied = st.sets(st.sampled_from(sorted(fields)), max_size=4)
    one = varied.map(lambda names: st.fixed_dictionaries({name: fields[name] for name in sorted(names)}))
    return one.flatmap(lambda each: st.lists(each, min_size=1, max_size=8)).map(drawn)


def ways_of(case: Case, names: Namer) -> set[str]:
    """Return every setting of a case in the forms in which it may be written: only one."""
    found = {names.workload(case), names.spoken_strategy(case), case.case_id}
    for name in EVERY:
        if name in OPTIONS:
            found.update(option_words(name, None, case))
        elif name in ("strategy", "algorithm"):
            word = FACETS[name].word(case)
            found.update((word, f"{word} ({getattr(case, name).rpartition(':')[0]})"))
        elif name != "workload":
            found.add(FACETS[name].word(case))
    return {word.replace("\n", " ") for word in found}


@given(sets_of_cases())
def test_no_two_have_one_name(cases: list[Case]) -> None:
    names = Namer(cases)
    for kind in (names.full, names.short, names.spoken):
        assert len({kind(case) for case in cases}) == len(cases)


@given(sets_of_cases())
def test_a_spoken_name_has_the_words_of_the_short_one(cases: list[Case]) -> None:
    names = Namer(cases)
    for case in cases:
        words = names.short(case).removeprefix(f"{names.strategy(case)}, {ranks_of(case)}").removeprefix(", ")
        spoken = f"{names.spoken_strategy(case)} at {ranks_of(case)}"
        assert names.spoken(case) == (f"{spoken} ({words})" if words else spoken)


@given(sets_of_cases())
def test_each_setting_is_written_in_one_way(cases: list[Case]) -> None:
    names = Namer(cases)
    for case in cases:
        own = ways_of(case, names)
        beyond = names.full(case).removeprefix(case.label).removeprefix(JOINT)
        words = [*names.details(case), *names.apart(case), *(beyond.split(JOINT) if beyond else [])]
        assert not {word.replace("\n", " ") for word in words} - own


@given(sets_of_cases())
def test_what_all_share_is_in_every_name_and_what_tells_apart_in_none_of_it(cases: list[Case]) -> None:
    names = Namer(cases)
    shared = names.shared()
    for case in cases:
        assert {*names.full(case).split(JOINT)} >= {*shared}
        assert not {*names.full(case, but=shared).split(JOINT)[1:]} & {*shared}


def test_a_name_tells_what_is_not_the_same_in_all() -> None:
    """Name all settings that differ: one sweep showed `decay=0.05` in one place, and otherwise in another."""
    first, second = (
        replace(DDP, workload_options_json=json.dumps({"decay": decay, "width": 8}), threads_per_rank=threads)
        for decay, threads in ((0.05, 1), (0.1, 2))
    )
    names = Namer([first, second])
    assert names.full(first) == f"{DDP.label} · decay=0.05 · 1 thread per rank"
    assert names.short(first) == "DDP, 2 ranks, decay=0.05, 1 thread per rank"
    assert names.spoken(second) == "DDP at 2 ranks (decay=0.1, 2 threads per rank)"
    assert names.apart(second) == ["decay=0.1", "2 threads per rank"]
    assert names.shared() == ["2 ranks", "default buckets"]
    assert names.variant(first, ["threads_per_rank"]) == "DDP (1 thread per rank)"
    assert [(one.title, one.text(second)) for one in columns([first, second])] == [
        ("decay", "0.1"),
        ("Threads", "2"),
    ]


def test_a_name_in_brackets_takes_what_tells_it_apart_into_them() -> None:
    linked = {"fabric": "1 Gbit/s", "schedule": "overlapped", "world_size": 4}
    ring, wide = (
        replace(DDP, algorithm="all_reduce", nodes=nodes, ranks_per_node=4 // nodes, **linked)  # type: ignore[arg-type]
        for nodes in (2, 4)
    )
    master = replace(
        ring, strategy="master", algorithm="master", schedule="after_backward", bucket_cap_mb=None
    )
    names = Namer([ring, wide, master])
    assert names.variant(wide) == "ring (DDP, 4 x 1)"
    assert names.spoken(ring) == "ring (DDP) at 4 ranks (2 x 2)"
    assert names.short(master) == "master, 4 ranks"
    assert names.of([ring]).short(ring) == "ring (DDP), 4 ranks"
    assert Namer([ring]).short(ring) == "DDP, 4 ranks"


def test_layouts_are_named_where_ranks_do_not_imply_them() -> None:
    flat, square, small = (
        replace(DDP, world_size=size, nodes=nodes, ranks_per_node=size // nodes)
        for size, nodes in ((4, 1), (4, 2), (2, 1))
    )
    names = Namer([flat, square, small])
    assert [names.spoken(case) for case in (flat, square, small)] == [
        "DDP at 4 ranks (1 x 4)",
        "DDP at 4 ranks (2 x 2)",
        "DDP at 2 ranks",
    ]
    assert Namer([square, small]).apart(square) == ["4 ranks"]


@pytest.mark.parametrize("kind", ["full", "short", "spoken"])
def test_a_case_that_is_not_among_them_is_named_as_if_it_were(kind: str) -> None:
    other = replace(DDP, bucket_cap_mb=25.0)
    assert getattr(Namer([DDP]), kind)(other) == getattr(Namer([DDP, other]), kind)(other)
