"""A module whose calls are divided among threads gives the outputs and gradients of the module itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from ddpbench.strategies.base import CannotTrainError
from ddpbench.strategies.data_parallel import replicate
from ddpbench.strategies.threaded_module import ThreadedModule


class Pair(nn.Module):
    """Two outputs of two inputs, one of them a keyword; tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(3, 3), nn.Linear(2, 2)
        self.again = self.layer

    def forward(self, one: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.again(torch.tanh(self.layer(one))) * scale
        return {"hidden": hidden, "total": hidden.sum(1), "places": hidden.argmax(1)}


def on_all(functions: Sequence[Callable[..., Any]], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    with ThreadPoolExecutor(len(functions)) as threads:
        return list(threads.map(lambda each: each[0](*each[1]), zip(functions, arguments, strict=True)))


def gradients(module: nn.Module, call: nn.Module) -> tuple[Any, list[torch.Tensor | None]]:
    generator = torch.Generator().manual_seed(2)
    one = torch.randn(8, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)
    out = call(one, scale=scale)
    (out["hidden"].square().mean() + out["total"].mean()).backward()
    found = [one.grad, scale.grad, *(each.grad for each in module.parameters())]
    module.zero_grad()
    return out, found


def test_outputs_and_gradients_are_those_of_the_module() -> None:
    torch.manual_seed(1)
    module = Pair().double()
    expected, slopes = gradients(module, module)
    out, found = gradients(module, ThreadedModule(module, 4, on_all, replicate))
    for name, value in expected.items():
        assert torch.allclose(out[name], value), name
    assert not out["places"].requires_grad
    for own, slope in zip(found, slopes, strict=True):
        assert (own is None) == (slope is None)
        assert own is None or slope is None or torch.allclose(own, slope, rtol=1e-12)


class Owner:
    """A holder of threads, which cannot be copied."""

    def on_all(self, *given: Any) -> list[Any]:
        return on_all(*given)

    def __deepcopy__(self, _: Any) -> None:
        raise TypeError("this cannot be copied")


def test_a_copy_computes_with_weights_of_its_own_in_the_same_threads() -> None:
    module = Pair().double()
    whole = ThreadedModule(module, 2, Owner().on_all, replicate)
    copied = torch.optim.swa_utils.AveragedModel(whole)
    expected, _ = gradients(module, module)
    with torch.no_grad():
        for each in module.parameters():
            each.zero_()
    out, _ = gradients(copied.module.module, copied)
    assert torch.allclose(out["hidden"], expected["hidden"])
    assert not whole(torch.ones(4, 3).double(), scale=torch.ones(3).double())["hidden"].any()


def test_without_gradients_no_graph_is_kept() -> None:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        out = ThreadedModule(module, 2, on_all, replicate)(torch.ones(4, 3))
    assert not out.requires_grad
    assert torch.equal(out, module(torch.ones(4, 3)).detach())


def test_autocast_holds_in_the_threads_too() -> None:
    module = nn.Linear(3, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert ThreadedModule(module, 2, on_all, replicate)(torch.ones(4, 3)).dtype == torch.bfloat16
    assert ThreadedModule(module, 2, on_all, replicate)(torch.ones(4, 3)).dtype == torch.float32


def test_a_graph_that_is_kept_is_gone_through_again() -> None:
    torch.manual_seed(1)
    module = Pair().double()

    def of_two_backwards(call: nn.Module) -> list[torch.Tensor | None]:
        one = torch.arange(24, dtype=torch.float64).reshape(8, 3).requires_grad_()
        out = call(one, scale=torch.ones(3, dtype=torch.float64))
        out["hidden"].square().mean().backward(retain_graph=True)
        out["total"].mean().backward()
        found = [one.grad, *(each.grad for each in module.parameters())]
        module.zero_grad()
        return found

    expected = of_two_backwards(module)
    for own, slope in zip(
        of_two_backwards(ThreadedModule(module, 4, on_all, replicate)), expected, strict=True
    ):
        assert (own is None) == (slope is None)
        assert own is None or slope is None or torch.allclose(own, slope, rtol=1e-12)


class Cache:
    """An object made from its parts, like a decoder's cache."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self.parts = [*parts]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)


class Gives(nn.Module):
    """Returns something with its input."""

    def __init__(self, more: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.more = more

    def forward(self, one: torch.Tensor) -> Any:
        return one, self.more(one)


def test_an_object_that_torch_makes_anew_from_its_parts_is_not_refused() -> None:
    call = ThreadedModule(Gives(lambda one: Cache([(one, None)])), 2, on_all, replicate)
    whole, cache = call(torch.ones(4, 3))
    assert whole.shape == (4, 3)
    assert isinstance(cache, Cache)


@pytest.mark.parametrize("more", [3, 2.5, True, "text", b"bytes", range(2), Cache(["text"])])
def test_what_torch_cannot_gather_is_refused(more: object) -> None:
    call = ThreadedModule(Gives(lambda _: more), 2, on_all, replicate)
    with pytest.raises(CannotTrainError, match=f"an object of type {type(more).__name__}, which torch"):
        call(torch.ones(4, 3))
