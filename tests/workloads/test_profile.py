"""Profiles: reading them back, messages of refused ones, and those that come with ddpbench."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpbench.workloads.profile import Profile, parse_profile, profile_digest, read_profile
from ddpbench.workloads.shipped import SHIPPED, profile_path, profile_summary, shipped

ROOT = Path(__file__).parents[2]


def data(**changes: Any) -> dict[str, Any]:
    """Return a small valid profile."""
    return {
        "schema": {"name": "ddpbench profile", "version": 1},
        "source": "measured",
        "workload": "tiny",
        "local_batch": 4,
        "device": "cpu",
        "provenance": {"machine": "One", "torch": "2.9", "threads": 1, "date": "2026-01-02"},
        "sample_bytes": 8,
        "steps": 30,
        "forward_s": [0.01, 0.009, 0.011],
        "backward_s": [0.02, 0.019, 0.021],
        "optimizer_s": 0.003,
        "parameters": [
            {"name": "a.weight", "shape": [3, 5], "dtype": "float32", "ready_s": [0.02, 0.019, 0.021]},
            {"name": "a.bias", "shape": [3], "dtype": "float32", "ready_s": 0.015},
            {"name": "b.weight", "shape": [7], "dtype": "float32", "ready_s": 0.005},
            {"name": "scale", "shape": [], "dtype": "float32", "ready_s": 0.015},
        ],
        **changes,
    }


def parsed(**changes: Any) -> Profile:
    return parse_profile(json.dumps(data(**changes)))


def changed(number: int, **changes: Any) -> list[dict[str, Any]]:
    parameters = data()["parameters"]
    parameters[number] |= changes
    return list(parameters)


def test_a_profile_is_read_with_its_intervals() -> None:
    profile = parsed()
    assert (profile.forward_s.mean, profile.forward_s.low, profile.forward_s.high) == (0.01, 0.009, 0.011)
    assert (profile.optimizer_s.mean, profile.optimizer_s.low) == (0.003, None)
    assert [p.elements for p in profile.parameters] == [15, 3, 7, 1]
    assert profile.step_s == pytest.approx(0.033)
    assert profile.dtype == "float32"


def test_the_order_is_that_of_the_moments_and_the_models_last_first_where_they_are_one() -> None:
    assert parsed().order == (2, 3, 1, 0)


def test_what_is_written_is_read_back() -> None:
    profile = parsed()
    text = profile.dumps()
    assert parse_profile(text) == profile
    assert sum('"name": "' in line for line in text.splitlines()) == 5  # the schema's, and a parameter a line
    assert json.loads(text)["parameters"][0]["ready_s"] == [0.02, 0.019, 0.021]


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_cut_off_file_is_refused(keep: float) -> None:
    text = parsed().dumps().rstrip()
    with pytest.raises(ValueError, match="it is truncated"):
        parse_profile(text[: int(keep * len(text))])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is truncated"),
        ("nonsense", "it is not JSON"),
        ("[1, 2]", "it is not a profile"),
        ('{"a": 1}', "it is not a profile"),
        (json.dumps(data(schema={"name": "chrome trace", "version": 1})), "it is not a profile"),
        (
            json.dumps(data(schema={"name": "ddpbench profile", "version": 2})),
            "schema version 2; .* version 1",
        ),
    ],
)
def test_another_schema_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_profile(text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"forward_s": -0.5}, r"forward_s\.mean: -0\.5 given; must be 0 s to 1 day"),
        ({"backward_s": "long"}, r"backward_s: 'long' given"),
        ({"backward_s": [1, 2]}, r"a time must be a number of seconds, or \[mean, low, high\]"),
        ({"backward_s": [1, 2, 3]}, r"the interval \[2, 3\] does not hold its mean 1"),
        ({"backward_s": 0}, "gradients need a backward that takes time"),
        ({"backward_s": float("nan")}, "backward_s.mean: nan given; must be 0 s to 1 day"),
        ({"parameters": []}, "parameters: empty"),
        ({"parameters": changed(1, name="a.weight")}, r"a\.weight is listed twice"),
        (
            {"parameters": changed(1, ready_s=0.5)},
            r"the gradient of a\.bias is ready after 0\.5 s, .* \(0\.02 s\)",
        ),
        ({"parameters": changed(1, ready_s=-0.001)}, r"parameters\.1\.ready_s\.mean: -0\.001 given"),
        (
            {"parameters": changed(1, ready_s=None)},
            r"parameters\.1\.ready_s: it never gets a gradient, .* freeze it",
        ),
        ({"parameters": changed(1, shape=[3, 0])}, r"parameters\.1\.shape\.1: 0 given"),
        (
            {"parameters": changed(1, dtype="float64")},
            "of float32, float64; a replay has parameters of one dtype",
        ),
        ({"local_batch": 0}, "local_batch: 0 given; must be a whole number, 1 to 1,000,000"),
        ({"local_batch": None}, "local_batch: None given"),
        ({"source": "guessed"}, "source: 'guessed' given; should be 'measured' or 'synthetic'"),
        ({"source": "synthetic"}, "a synthetic profile must name a publication or assumptions"),
        ({"extra": 1}, "extra: unknown key"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(**changes)


def test_what_is_missing_is_named() -> None:
    short = data()
    del short["optimizer_s"]
    with pytest.raises(ValueError, match="optimizer_s: is missing"):
        parse_profile(json.dumps(short))


def test_many_problems_are_not_all_listed() -> None:
    parameters = [{"name": str(n), "shape": [1], "dtype": "float32", "ready_s": -1} for n in range(9)]
    with pytest.raises(
        ValueError, match=r"and 6 more; restore the file from a copy, or profile again$"
    ) as caught:
        parsed(parameters=parameters)
    assert "parameters.2.ready_s" in str(caught.value)
    assert "parameters.3.ready_s" not in str(caught.value)


def test_a_files_sentence_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"there is no profile {tmp_path}/gone\.json"):
        read_profile(tmp_path / "gone.json")
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=rf"profile {path}: it is not text"):
        read_profile(path)
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory"):
        read_profile(tmp_path)


def test_a_profile_that_is_no_file_is_refused_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        assert profile_digest(tmp_path / name) == ""
        with pytest.raises(ValueError, match=f"{name}: it is not a regular file"):
            read_profile(tmp_path / name)


def test_a_changed_file_is_read_again_and_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(parsed().dumps(), encoding="utf-8")
    before = profile_digest(path)
    assert read_profile(path).local_batch == 4
    path.write_text(parsed(local_batch=64).dumps(), encoding="utf-8")
    assert read_profile(path).local_batch == 64
    assert profile_digest(path) != before
    assert profile_digest(tmp_path / "gone.json") == ""


KNOWN = {
    "resnet50-v100": (25_557_032, 161, 0.097),
    "resnet101-v100": (44_549_160, 314, 0.162),
    "resnext50-v100": (25_028_904, 161, 0.145),
    "resnext101-v100": (88_791_336, 314, 0.415),
    "vgg16-v100": (138_357_544, 32, None),
    "bert-base-v100": (109_482_240, 199, None),
}
"""Parameters as torchvision and Hugging Face count them, and the published times of an iteration, seconds."""


@pytest.mark.parametrize("name", KNOWN)
def test_synthetic_profiles_have_the_architectures_parameters_and_the_published_times(name: str) -> None:
    profile = read_profile(profile_path(name))
    elements, tensors, step_s = KNOWN[name]
    assert sum(p.elements for p in profile.parameters) == elements
    assert len(profile.parameters) == tensors
    assert profile.source == "synthetic"
    assert profile.provenance.assumptions
    assert profile.backward_s.mean == pytest.approx(2 * profile.forward_s.mean, rel=1e-3)
    if step_s is not None:
        assert profile.step_s == pytest.approx(step_s, rel=1e-4)
        assert profile.provenance.publication


def test_resnet_50_has_the_parameters_of_the_workload_in_the_same_order() -> None:
    from ddpbench.workloads.resnet_model import Classifier

    def shapes(parameters: Any) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for p in parameters]

    model = Classifier((3, 4, 6, 3), bottleneck=True, classes=1000)
    assert shapes(read_profile(profile_path("resnet50-v100")).parameters) == shapes(model.parameters())


def test_resnet_50s_gradients_come_in_proportion_to_operations() -> None:
    profile = read_profile(profile_path("resnet50-v100"))
    moments = {p.name: p.ready_s.mean / profile.backward_s.mean for p in profile.parameters}
    assert profile.parameters[profile.order[0]].name == "fc.bias"
    assert profile.parameters[profile.order[-1]].name == "conv1.weight"
    # 4.089 billion multiplications for a forward (He et al. 2015 say 3.8, torchvision's variant has more):
    # conv1's 7 x 7 x 3 x 64 x 112 x 112 of them come last.
    stem = 7 * 7 * 3 * 64 * 112 * 112 / 4.089e9
    assert 1 - moments["layer1.0.conv1.weight"] == pytest.approx(stem, rel=0.01)
    assert moments["conv1.weight"] == 1.0


def test_bert_bases_largest_gradient_comes_last() -> None:
    profile = read_profile(profile_path("bert-base-v100"))
    last = profile.parameters[profile.order[-1]]
    assert last.name == "embeddings.word_embeddings.weight"
    assert last.elements == 30_522 * 768
    # A sample's forward: 2 operations a weight and token of the encoder, and attention's two products.
    layer = 2 * (4 * 768 * 768 + 2 * 768 * 3072) * 512 + 4 * 512 * 512 * 768
    assert profile.forward_s.mean == pytest.approx((12 * layer + 2 * 768 * 768) * 8 / 9e12, rel=1e-3)


@pytest.mark.parametrize("name", shipped())
def test_shipped_profiles_are_whole_small_and_honest(name: str) -> None:
    path = profile_path(name)
    profile = read_profile(path)
    assert path.stat().st_size < 40_000
    assert (profile.source == "synthetic") == (profile.steps == 0)
    if profile.source == "measured":
        assert profile.steps >= 30
        assert all((profile.provenance.machine, profile.provenance.torch, profile.provenance.date))
    assert all(math.isfinite(p.ready_s.mean) for p in profile.parameters)


def test_the_committed_script_makes_the_synthetic_profiles(tmp_path: Path) -> None:
    script = ROOT / "experiments/synthetic_profiles.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, cwd=ROOT)
    assert {path.stem for path in tmp_path.iterdir()} == set(KNOWN)
    for path in tmp_path.iterdir():
        assert path.read_text(encoding="utf-8") == (SHIPPED / path.name).read_text(encoding="utf-8")


@pytest.mark.parametrize("interval", [True, False])
def test_a_profiles_line_says_what_a_step_takes(tmp_path: Path, interval: bool) -> None:
    path = tmp_path / "p.json"
    times = {"forward_s": 0.010, "backward_s": 0.0205, "optimizer_s": 0.002}
    shown = {name: [t, t - 0.001, t + 0.001] if interval else t for name, t in times.items()}
    path.write_text(json.dumps(data(**shown)), encoding="utf-8")
    assert 1e3 * read_profile(path).step_s == pytest.approx(32.5)
    assert profile_summary(path) == "tiny on cpu, 32.5 ms a step of 4 samples (measured)"
