"""Rounding as the reason of a deviation: right roundings are within the bounds, and wrong ones are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ddpbench.worker.verify.rounding import OF_ROUNDING, Sent, deviations, roundoff_of

U = 2.0**-3
Rounds = Callable[[torch.Tensor], torch.Tensor]


def in_places(numbers: torch.Tensor, bits: int, rounds: Rounds) -> torch.Tensor:
    mantissa, exponent = torch.frexp(numbers)
    return torch.ldexp(rounds(mantissa * 2**bits) / 2**bits, exponent)


def nearest(numbers: torch.Tensor) -> torch.Tensor:
    return in_places(numbers, 3, torch.round)


def toward_zero(numbers: torch.Tensor) -> torch.Tensor:
    return in_places(numbers, 4, torch.trunc)


def by_chance(numbers: torch.Tensor) -> torch.Tensor:
    return in_places(numbers, 4, lambda each: torch.floor(each + torch.rand_like(each)))


def in_turn(shares: list[torch.Tensor]) -> torch.Tensor:
    """Return a sum whose partial sums are rounded."""
    total = nearest(shares[0])
    for share in shares[1:]:
        total = nearest(total + nearest(share))
    return total


def summed(rounds: Rounds) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    return lambda shares: torch.stack([rounds(share) for share in shares]).sum(0)


def shares_of(ranks: int, spread: float, seed: int, size: int = 3000) -> list[torch.Tensor]:
    """Return ranks' gradients of widely different numbers, which differ by rank as `spread` says."""
    torch.manual_seed(seed)
    common = torch.randn(size, dtype=torch.float64) * torch.exp(torch.randn(size, dtype=torch.float64))
    scale = common.abs() + 0.1
    return [common + spread * scale * torch.randn(size, dtype=torch.float64) for _ in range(ranks)]


def exceeded(shares: list[torch.Tensor], result: torch.Tensor, *, coarse: bool = True) -> set[str]:
    """Return the comparisons that fail on any rank."""
    sent = Sent(ranks=len(shares), roundoff=U, floor=1e-10, coarse=coarse)
    whole = torch.stack(shares)
    exact, squares = {"a": whole.mean(0)}, {"a": (whole**2).mean(0)}
    found = [each for own in shares for each in deviations(sent, {"a": result}, {"a": own}, exact, squares)]
    return {each.compared for each in found if each.share > 1}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("add", [summed(nearest), summed(toward_zero), summed(by_chance), in_turn])
def test_a_right_rounding_is_within_the_bounds(
    ranks: int, spread: float, add: Callable[[list[torch.Tensor]], torch.Tensor]
) -> None:
    for seed in range(10):
        shares = shares_of(ranks, spread, seed)
        assert not exceeded(shares, add(shares) / ranks), (seed, exceeded(shares, add(shares) / ranks))


@pytest.mark.parametrize("factor", [0.61, 0.8, 1.2, 1.39])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_another_scale_is_not(factor: float, ranks: int) -> None:
    shares = shares_of(ranks, 1.0, 0)
    assert "gradients, scale" in exceeded(shares, summed(nearest)(shares) * factor / ranks, coarse=False)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_another_weight_of_a_rank_is_not(ranks: int) -> None:
    shares = shares_of(ranks, 1.0, 0)
    less = 0.4 / (ranks - 1)
    uneven = [1.4 * shares[0], *((1 - less) * share for share in shares[1:])]
    assert "gradients, each rank's weight" in exceeded(shares, summed(nearest)(uneven) / ranks, coarse=False)


def test_noise_beyond_rounding_is_not() -> None:
    shares = shares_of(2, 1.0, 0)
    noise = [share * (1 + 0.6 * (2 * torch.rand_like(share) - 1)) for share in shares]
    assert exceeded(shares, summed(nearest)(noise) / 2) == {"gradients, size of rounding"}


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_steps_for_several_parameters_together_are_coarse_for_a_small_one(ranks: int, spread: float) -> None:
    """Errors of a right rounding show no more than the stated unit roundoff."""
    shares = shares_of(ranks, spread, 0)
    exact, squares = torch.stack(shares).mean(0), (torch.stack(shares) ** 2).mean(0)
    sent = Sent(ranks=ranks, roundoff=U, floor=1e-10, coarse=True)

    def shown(rounds: Rounds) -> float:
        wrong = summed(rounds)(shares) / ranks - exact
        error = float(torch.linalg.vector_norm(wrong) / torch.linalg.vector_norm(exact))
        return roundoff_of(sent, error, exact, squares)

    assert U / 20 < shown(nearest) < U
    step = float(torch.stack(shares).abs().max())  # of a larger parameter's numbers
    assert shown(lambda share: step * torch.round(share / step)) > U
    assert roundoff_of(sent, 0.5, torch.zeros(2), torch.zeros(2)) == float("inf")


def test_nothing_is_said_of_a_gradient_that_is_zero() -> None:
    assert not exceeded(
        [torch.ones(3, dtype=torch.float64), -torch.ones(3, dtype=torch.float64)], torch.ones(3)
    )


def test_complex_numbers_are_pairs() -> None:
    own = torch.complex(torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    sent = Sent(ranks=1, roundoff=U, floor=1e-10, coarse=True)
    squares = {"a": torch.ones(4, 2, dtype=torch.float64)}
    found = deviations(sent, {"a": own * 1.5}, {"a": own}, {"a": own}, squares)
    assert {each.compared: each.error for each in found} == {
        "gradients, scale": pytest.approx(0.5),
        "gradients, size of rounding": pytest.approx(0.5),
    }
    assert set(OF_ROUNDING) > {each.compared for each in found}
