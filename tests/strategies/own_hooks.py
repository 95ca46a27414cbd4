"""Communication hooks from a user's file: two that are right, and some with one fault each."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ddpbench.strategies import CompensatedHookStrategy, HookOptions, HookStrategy, NoOptions


class Averages(HookStrategy[HookOptions]):
    """Average as DDP does without a hook."""

    options = HookOptions

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(dist.get_world_size())
        work: Any = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


class Waits(HookStrategy[NoOptions]):
    """Average, and wait for the result within the hook."""

    options = NoOptions

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(dist.get_world_size())
        dist.all_reduce(buffer)
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future


class Halves(Averages):
    """Sends numbers in half precision, and declares it."""

    unit_roundoff = 2.0**-11

    def hook(self, state: Any, bucket: Any) -> Any:
        whole = bucket.buffer()
        half = (whole / dist.get_world_size()).half()
        work: Any = dist.all_reduce(half, async_op=True)
        return work.get_future().then(lambda future: whole.copy_(future.value()[0]))

    def sent_bytes(self, state: Any, bucket: Any) -> int:
        return 2 * bucket.buffer().numel()


class Eighths(Averages):
    """Sends numbers of eight bits with two bits of mantissa, and declares it."""

    unit_roundoff = 2.0**-3

    def hook(self, state: Any, bucket: Any) -> Any:
        whole = bucket.buffer()
        scale = whole.abs().max().clamp(min=1e-30) / 2**10
        whole.copy_((whole / scale).to(torch.float8_e5m2).to(whole)).mul_(scale)
        return super().hook(state, bucket)


class Uphill(Averages):
    """Halves the average and negates it, and declares the coarsest rounding that is allowed."""

    unit_roundoff = 2.0**-3

    def hook(self, state: Any, bucket: Any) -> Any:
        bucket.buffer().div_(-2)
        return super().hook(state, bucket)


class SumsCoarsely(Uphill):
    """Returns 1.9 times the average."""

    def hook(self, state: Any, bucket: Any) -> Any:
        return Averages.hook(self, state, bucket).then(lambda future: future.value().mul_(1.9))


class HalvesCoarsely(Uphill):
    """Returns half of the average."""

    def hook(self, state: Any, bucket: Any) -> Any:
        return Averages.hook(self, state, bucket).then(lambda future: future.value().mul_(0.5))


class Sums(Averages):
    """Forgets to divide."""

    def hook(self, state: Any, bucket: Any) -> Any:
        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


class Lags(Averages):
    """Sends the gradients of the previous step, from the second step on."""

    def state(self, job: Any, options: Any) -> Any:
        return {}

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer, index = bucket.buffer(), bucket.index()
        own, last = buffer.clone(), state.get(index)
        state[index] = own
        if last is not None and len(last) == len(own):
            buffer.copy_(last)
        return super().hook(state, bucket)


class NotCleared(Averages):
    """Leaves gradients where the next step adds its own."""

    def build(self, job: Any, options: Any) -> Any:
        replica: Any = super().build(job, options)
        replica.apply = replica.optimizer.step
        return replica


class Freezes(Averages):
    """Stops training its first parameter."""

    def build(self, job: Any, options: Any) -> Any:
        next(iter(job.model.parameters())).requires_grad_(False)
        return super().build(job, options)


class SaysLess(Averages):
    """Returns half of its loss."""

    def build(self, job: Any, options: Any) -> Any:
        replica: Any = super().build(job, options)
        right = replica.gradients_of
        replica.gradients_of = lambda inputs, targets: right(inputs, targets) / 2
        return replica


class NoFuture(Averages):
    def hook(self, state: Any, bucket: Any) -> Any:
        return bucket.buffer()


class Shorter(Averages):
    def hook(self, state: Any, bucket: Any) -> Any:
        return super().hook(state, bucket).then(lambda future: future.value()[1:].clone())


class RaisesLater(Averages):
    def hook(self, state: Any, bucket: Any) -> Any:
        return super().hook(state, bucket).then(lambda future: future.value()[1.5])


class Raises(Averages):
    def hook(self, state: Any, bucket: Any) -> Any:
        raise KeyError("of mine")


class KeepsNothing(CompensatedHookStrategy[NoOptions]):
    """Sends everything, and keeps nothing; the kept tensor that it reports is too short."""

    options = NoOptions

    def hook(self, state: Any, bucket: Any) -> Any:
        return Averages().hook(state, bucket)

    def kept(self, state: Any, index: int) -> Any:
        return torch.zeros(3)


class KeepsNone(KeepsNothing):
    def kept(self, state: Any, index: int) -> Any:
        return None


class CountsNothing(Averages):
    """Does not report how much it sent."""

    def sent_bytes(self, state: Any, bucket: Any) -> Any:
        return None


class PromisesMore(Averages):
    """Makes a promise that its replica cannot show."""

    def promise(self, options: Any) -> Any:
        return "averaged"


class BuildsNothing(Averages):
    def build(self, job: Any, options: Any) -> Any:
        return None


class NeverSends(CompensatedHookStrategy[NoOptions]):
    """Sends the larger half of each gradient, and adds up the rest without sending it."""

    options = NoOptions

    def state(self, job: Any, options: Any) -> Any:
        return {}

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer, index = bucket.buffer(), bucket.index()
        small = buffer.abs() < buffer.abs().median()
        state[index] = state.get(index, 0) + buffer * small
        buffer[small] = 0
        return Averages().hook(state, bucket)

    def kept(self, state: Any, index: int) -> Any:
        return state[index]


class SendsHalf(NeverSends):
    """Sends the larger half of each gradient with what it kept before."""

    def hook(self, state: Any, bucket: Any) -> Any:
        bucket.buffer().add_(state.pop(bucket.index(), 0))
        return super().hook(state, bucket)


class SendsAShare(CompensatedHookStrategy[NoOptions]):
    """Sends half of each number with what it kept before."""

    options = NoOptions
    factor = 0.5

    def state(self, job: Any, options: Any) -> Any:
        return {}

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer, index = bucket.buffer(), bucket.index()
        rest = buffer + state.get(index, 0)
        buffer.copy_(self.factor * rest)
        state[index] = rest - buffer
        return Averages().hook(state, bucket)

    def kept(self, state: Any, index: int) -> Any:
        return state[index]


class Negates(SendsAShare):
    factor = -1.0


class NegatesAHundredth(SendsAShare):
    factor = -0.01


class Triples(SendsAShare):
    factor = 3.0


class SendsABitTooMuch(SendsAShare):
    """Over three steps it keeps less than their gradients, but the kept part grows."""

    factor = 2.1


class Doubles(SendsAShare):
    """Changes the sign of what it keeps in each step."""

    factor = 2.0


class SendsAThousandth(SendsAShare):
    factor = 0.001


class SendsHalfAThousandth(SendsAShare):
    factor = 0.0005


class OneRankSends(SendsAShare):
    """Sends only rank 0's gradients."""

    def hook(self, state: Any, bucket: Any) -> Any:
        self.factor = 0.5 if dist.get_rank() == 0 else 0.0
        return super().hook(state, bucket)


class NegatesTheNew(SendsAShare):
    """Sends half of what it kept before, less the gradient, so that what it keeps is bounded."""

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer, index = bucket.buffer(), bucket.index()
        before = state.get(index, torch.zeros_like(buffer))
        state[index] = before / 2 + 2 * buffer
        buffer.copy_(before / 2 - buffer)
        return Averages().hook(state, bucket)


class SendsSome(SendsAShare):
    """Sends an eighth of the numbers, drawn again in each step, with what it kept of them."""

    def mask(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(numbers) < 0.125

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer, index = bucket.buffer(), bucket.index()
        rest = buffer + state.get(index, 0)
        buffer.copy_(rest * self.mask(rest))
        state[index] = rest - buffer
        return Averages().hook(state, bucket)


class SendsTheSame(SendsSome):
    """Draws the numbers that it sends once: the others are never sent."""

    def mask(self, numbers: torch.Tensor) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(1)
        return torch.rand(numbers.shape, generator=drawn) < 0.125


class Truncates(Averages):
    """Sends numbers of which the mantissa has two bits, rounded toward zero, and declares it."""

    unit_roundoff = 2.0**-2 / 2

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        mantissa, exponent = torch.frexp(buffer)
        buffer.copy_(torch.ldexp(torch.trunc(mantissa * 2**4) / 2**4, exponent))
        return super().hook(state, bucket)


class Shrinks(Eighths):
    """Also multiplies the average by 0.8."""

    def hook(self, state: Any, bucket: Any) -> Any:
        return super().hook(state, bucket).then(lambda future: future.value().mul_(0.8))


class WeighsUnevenly(Eighths):
    """Also weighs the first rank by 1.3, the second by 0.7."""

    def hook(self, state: Any, bucket: Any) -> Any:
        bucket.buffer().mul_(0.7 if dist.get_rank() else 1.3)
        return super().hook(state, bucket)


class AddsNoise(Eighths):
    """Also changes each number by 40 %, up or down."""

    def hook(self, state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        buffer.mul_(torch.where(torch.rand_like(buffer) < 0.5, 0.6, 1.4))
        return super().hook(state, bucket)


class GrowsFromTheSecondStep(Averages):
    """Is exact in the first step, and multiplies by 1.3 afterwards, which it hides behind a coarse type."""

    unit_roundoff = 2.0**-3
    factor = 1.3

    def state(self, job: Any, options: Any) -> Any:
        return {"steps": 0}

    def hook(self, state: Any, bucket: Any) -> Any:
        state["steps"] += bucket.index() == 0
        if state["steps"] > 1:
            bucket.buffer().mul_(self.factor)
        return super().hook(state, bucket)


class GrowsInHalfPrecision(GrowsFromTheSecondStep):
    unit_roundoff = 2.0**-8


class HalvesFromTheSecondStep(GrowsFromTheSecondStep):
    factor = 0.5
