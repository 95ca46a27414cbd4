"""ResNets, the transformers library's models and their synthetic data, against published numbers and formulas."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from ddpbench.spec import Case
from ddpbench.workloads import load_workload
from ddpbench.workloads.hf import HfOptions, HuggingFace
from ddpbench.workloads.images import CHANNELS, STRIDE, noise_images
from ddpbench.workloads.resnet import ResNet, ResNetOptions
from ddpbench.workloads.resnet_model import Residual
from ddpbench.workloads.tokens import IGNORED, MASK, Masked, Next, random_tokens


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("size", "parameters"), [("18", 11_689_512), ("50", 25_557_032)])
def test_a_resnet_has_as_many_parameters_as_torchvisions(size: str, parameters: int) -> None:
    with torch.device("meta"):
        assert count(ResNet(size).model(ResNetOptions())) == parameters


@pytest.mark.parametrize(("size", "multiplications"), [("18", 1.814e9), ("50", 4.089e9)])
def test_a_resnet_computes_as_much_as_published(size: str, multiplications: float) -> None:
    # torchvision's model table: 1.81 and 4.09 GMAC for an image of 224 x 224; a MAC is two operations.
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = ResNet(size).model(ResNetOptions())
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.empty(2, 3, 224, 224))
    assert counter.get_total_flops() / 2 == pytest.approx(2 * multiplications, rel=2e-3)


def test_a_residual_block_adds_what_came_in() -> None:
    torch.manual_seed(1)
    block = Residual(8, 8, stride=1, bottleneck=False).eval()
    x = torch.randn(2, 8, 6, 6)
    first, second = block.parts
    inner = torch.relu(first[1](first[0](x)))
    expected = torch.relu(second[1](second[0](inner)) + x)
    torch.testing.assert_close(block(x), expected)
    half = Residual(8, 16, stride=2, bottleneck=True)
    assert half(x).shape == (2, 64, 3, 3)


def test_a_resnet_learns_and_has_statistics_of_the_batch() -> None:
    workload = ResNet("18")
    options = ResNetOptions(image_size=32, classes=10, learning_rate=0.02)
    torch.manual_seed(1)
    model = workload.model(options)
    data = workload.dataset(options)
    inputs, targets = default_collate([data[index] for index in range(16)])
    assert inputs.shape == (16, 3, 32, 32)
    assert int(targets.max()) < 10
    optimizer = workload.optimizer(model.parameters(), options)
    losses = []
    for _ in range(8):
        loss = workload.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    assert workload.batch_statistics


def test_images_are_windows_over_one_stretch_of_noise() -> None:
    images = noise_images(8, 5, count=4)
    assert len(images) == 4
    whole = images.noise
    for index in range(4):
        image, label = images[index]
        assert torch.equal(image.flatten(), whole[index * STRIDE : index * STRIDE + CHANNELS * 64])
        assert 0 <= int(label) < 5
    with pytest.raises(IndexError):
        images[4]
    again = pickle.loads(pickle.dumps(images))
    assert torch.equal(again[2][0], images[2][0])
    assert torch.equal(noise_images(8, 5, count=4).noise, whole)  # the same in every process


def test_every_sample_has_as_many_masked_words() -> None:
    data = Masked(random_tokens(1000, 10_000), 40)
    assert len(data) == 250
    for index in (0, 7, 249):
        inputs, targets = data[index]
        chosen = targets != IGNORED
        assert int(chosen.sum()) == 6  # 15 % of 40
        assert bool((inputs[chosen] == MASK).all())
        restored = torch.where(chosen, targets, inputs)
        assert torch.equal(restored, data.tokens[index * 40 : (index + 1) * 40].long())
        assert torch.equal(data[index][0], inputs)  # the same every time
    with pytest.raises(IndexError):
        data[250]


def test_tokens_come_in_zipfs_proportions() -> None:
    tokens = random_tokens(1000, 200_000)
    assert int(tokens.min()) >= 1
    assert int(tokens.max()) <= 999
    shares = torch.bincount(tokens, minlength=1000) / 200_000
    # Drawn as the whole part of exp(u log V): P(k) = log((k + 1) / k) / log V
    for k in (1, 2, 10):
        expected = float(torch.log(torch.tensor((k + 1) / k)) / torch.log(torch.tensor(1000.0)))
        assert float(shares[k]) == pytest.approx(expected, rel=0.05)
    following = Next(tokens, 10)
    assert torch.equal(following[3][0][1:], following[3][1][:-1])


def test_without_the_library_a_case_is_skipped_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.util

    case = Case(workload="hf:bert-tiny", strategy="ddp")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = HuggingFace("bert-tiny").check(case)
    assert reason is not None
    assert "pip install 'ddpbench[hf]'" in reason


@pytest.mark.parametrize(
    ("size", "options", "reason"),
    [
        ("resnet-50", {"tokens": 64, "dropout": 0.1}, "hf:resnet-50 has no tokens and no dropout"),
        ("resnet-50", {"dropout": 0.1}, "hf:resnet-50 has no dropout"),
        ("resnet-50", {"tokens": None, "dropout": 0.0}, None),
        ("bert-tiny", {"tokens": 513}, "option tokens is 513; BERT has positions for 512"),
        ("gpt2", {"tokens": 513, "dropout": 0.1}, None),
    ],
)
def test_an_option_without_effect_on_a_model_is_a_reason_to_skip_it(
    size: str, options: dict[str, Any], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    given = HfOptions.model_validate(options).model_dump_json()
    found = HuggingFace(size).check(Case(workload=f"hf:{size}", strategy="ddp", workload_options_json=given))
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


def library() -> Any:
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'ddpbench[hf]'")


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("bert-base", 109_514_298),  # BertForMaskedLM of bert-base-uncased
        ("gpt2", 124_439_808),
        ("resnet-50", 25_557_032),
    ],
)
def test_models_of_the_library_have_their_published_sizes(
    size: str, parameters: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    with torch.device("meta"):
        assert count(load_workload(f"hf:{size}").model(HfOptions())) == parameters


@pytest.mark.parametrize("size", ["bert-tiny", "gpt2", "resnet-50"])
def test_the_loss_of_the_librarys_models_is_the_mean_over_samples(size: str) -> None:
    library()
    workload = HuggingFace(size)
    options = HfOptions() if size == "resnet-50" else HfOptions(tokens=16)
    torch.manual_seed(1)
    model = copy.deepcopy(workload.model(options)).eval()
    data = workload.dataset(options)
    inputs, targets = default_collate([data[index] for index in range(2)])
    with torch.no_grad():
        each = [float(workload.loss(model(inputs[i : i + 1]), targets[i : i + 1])) for i in range(2)]
        whole = float(workload.loss(model(inputs), targets))
    assert whole == pytest.approx(sum(each) / 2, rel=1e-5)
