"""The models: their sizes, what they compute, and that they learn."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.data import default_collate

from ddpbench.workloads import load_workload
from ddpbench.workloads.gpt import SHAPES, Gpt, GptOptions
from ddpbench.workloads.gpt_model import Decoder, SelfAttention
from ddpbench.workloads.mlp import Mlp, MlpOptions
from ddpbench.workloads.mlp_model import Perceptron


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", SHAPES)
def test_a_gpt_has_as_many_parameters_as_its_formula_says(size: str) -> None:
    shape = SHAPES[size]
    d, vocabulary = shape.width, 256
    # Embeddings, positions and the head; 12 d² + 13 d a block (d² of them: qkv 3, out 1, mlp 4 + 4); a norm.
    expected = 2 * vocabulary * d + shape.block_size * d + shape.layers * (12 * d * d + 13 * d) + 2 * d
    with torch.device("meta"):
        model = Gpt(size).model(GptOptions())
    assert count(model) == expected
    assert shape.width % shape.heads == 0


def test_gpt_2_with_its_own_vocabulary_has_the_published_size() -> None:
    shape = SHAPES["small"]
    with torch.device("meta"):
        model = Decoder(
            layers=shape.layers, heads=shape.heads, width=shape.width, block_size=1024, vocabulary=50257
        )
    # minGPT reports 124.44M for gpt2 "without lm_head"
    assert round((count(model) - 50257 * 768) / 1e6, 2) == 124.44


@pytest.mark.parametrize(("size", "units"), [("small", 256), ("large", 2048)])
def test_an_mlp_has_as_many_parameters_as_its_formula_says(size: str, units: int) -> None:
    with torch.device("meta"):
        model = Mlp(size).model(MlpOptions())
    assert count(model) == (64 + 1) * units + 2 * (units + 1) * units + (units + 1) * 256


def test_attention_is_the_textbooks() -> None:
    torch.manual_seed(1)
    batch, time, width, heads = 2, 5, 12, 3
    attention = SelfAttention(width, heads).double()
    x = torch.randn(batch, time, width, dtype=torch.float64)
    packed = attention.query_key_value(x)
    out = torch.zeros(batch, time, width, dtype=torch.float64)
    size = width // heads
    for b in range(batch):
        for h in range(heads):
            query, key, value = (
                packed[b, :, part * width + h * size : part * width + (h + 1) * size] for part in range(3)
            )
            for t in range(time):
                weights = torch.softmax(key[: t + 1] @ query[t] / math.sqrt(size), 0)
                out[b, t, h * size : (h + 1) * size] = weights @ value[: t + 1]
    torch.testing.assert_close(attention(x), attention.projection(out))


def test_a_gpt_never_sees_what_comes_later() -> None:
    torch.manual_seed(1)
    model = Gpt("nano").model(GptOptions()).double()
    tokens = torch.randint(256, (1, 64))
    changed = tokens.clone()
    changed[0, 40] = (changed[0, 40] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_a_gpt_tells_positions_apart() -> None:
    torch.manual_seed(1)
    logits = Gpt("nano").model(GptOptions())(torch.full((1, 64), 101))
    assert not torch.allclose(logits[0, 0], logits[0, 1])


def test_weights_start_as_in_mingpt() -> None:
    torch.manual_seed(1)
    model = Gpt("mini").model(GptOptions())
    for name, parameter in model.named_parameters():
        spread = float(parameter.detach().std())
        if name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("projection.weight"):
            assert spread == pytest.approx(0.02 / math.sqrt(2 * 6), rel=0.03), name
        else:
            assert spread == pytest.approx(0.02, rel=0.03), name


def test_a_perceptron_scales_bytes_to_unit_range() -> None:
    model = Perceptron(context=2, hidden=(3,), vocabulary=4)
    seen: list[torch.Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.double()(torch.tensor([[0, 255], [51, 204]], dtype=torch.uint8))
    expected = torch.tensor([[-1.0, 1.0], [-0.6, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("name", ["gpt:nano", "mlp:small", "two_branch:small"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_workload_starts_at_chance_and_learns(name: str, dtype: torch.dtype) -> None:
    workload = load_workload(name)
    options = workload.options(learning_rate=0.1 if not name.startswith("gpt") else 3e-3)
    torch.manual_seed(1)
    model = workload.model(options).to(dtype)
    optimizer = workload.optimizer(model.parameters(), options)
    dataset = workload.dataset(options)
    inputs, targets = default_collate([dataset[i] for i in range(8)])
    losses = []
    for _ in range(30):
        loss = workload.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("name", ["gpt:nano", "mlp:small", "two_branch:small"])
def test_the_loss_is_the_mean_over_samples(name: str) -> None:
    workload = load_workload(name)
    options = workload.options()
    torch.manual_seed(1)
    model = workload.model(options).double()
    dataset = workload.dataset(options)
    inputs, targets = default_collate([dataset[i] for i in range(4)])
    each = [float(workload.loss(model(inputs[i : i + 1]), targets[i : i + 1]).detach()) for i in range(4)]
    whole = float(workload.loss(model(inputs), targets).detach())
    assert whole == pytest.approx(sum(each) / 4, rel=1e-12)


@pytest.mark.parametrize("name", ["gpt:nano", "mlp:small", "two_branch:small"])
def test_the_same_seed_gives_the_same_model(name: str) -> None:
    workload = load_workload(name)
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in workload.model(workload.options()).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_a_block_size_of_ones_own_shapes_model_and_data() -> None:
    options = GptOptions(block_size=20)
    inputs, targets = Gpt("nano").dataset(options)[0]
    assert inputs.shape == targets.shape == (20,)
    assert Gpt("nano").model(options).positions.weight.shape == (20, 48)
    assert Gpt("nano").dataset(GptOptions())[0][0].shape == (64,)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (GptOptions, {"block_size": 0}),
        (GptOptions, {"learning_rate": 0}),
        (GptOptions, {"learning_rate": -1}),
        (GptOptions, {"dropout": 0.1}),
        (GptOptions, {"text": "one.txt"}),
        (MlpOptions, {"learning_rate": 0}),
        (MlpOptions, {"layers": 3}),
    ],
)
def test_options_out_of_range_are_refused(options: type[GptOptions | MlpOptions], given: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        options.model_validate(given)
