"""Users' classes whose updates keep state, draw at random, or get gradients in other ways: named by this path."""

from __future__ import annotations

import copy
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(128, 8, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def plain_step(
    model: Any, batch: Any, optimizer: Any, change: Callable[[Any], None] = lambda _: None
) -> torch.Tensor:
    """Make an update; `change` gets the model with its gradients."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    change(model)
    optimizer.step()
    return loss.detach()


class Sound:
    dataset = staticmethod(data)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01)


class Counts(Sound):
    """Clips by a norm that shrinks with each update."""

    made = 0

    def before_update(self, model: nn.Module) -> None:
        self.made += 1
        nn.utils.clip_grad_norm_(model.parameters(), 1.0 / self.made)


class CountsInList(Sound):
    """Counts in a list that it has from the start."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def before_update(self, model: nn.Module) -> None:
        self.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0 / (1 + len(self.norms)))))


class KeepsOptimizer(Sound):
    """Sets the rate of the optimizer that it kept."""

    def optimizer(self, parameters: Any) -> Any:
        self.kept = torch.optim.SGD(parameters, lr=1e-6)
        return self.kept

    def before_update(self, model: nn.Module) -> None:
        for group in self.kept.param_groups:
            group["lr"] = 0.05


class Averages(Sound):
    """Keeps a moving average of the model's weights."""

    average: Any = None

    def before_update(self, model: nn.Module) -> None:
        if self.average is None:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.average.update_parameters(model)


class KeepsModel(Sound):
    """Reads its model where model() kept it."""

    def model(self) -> nn.Module:
        self.kept = super().model()
        return self.kept

    def before_update(self, model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(self.kept.parameters(), 0.01)


class CountsLosses(Sound):
    """Its loss counts more with each of the first ones."""

    made = 0

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        self.made += 1
        return super().loss(model, batch) * (1 + min(self.made, 10) / 10)


class ClipsByCount(Sound):
    """Clips by a norm that grows with each loss."""

    losses = 0

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        self.losses += 1
        return super().loss(model, batch)

    def before_update(self, model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1 * self.losses)


class ClipsByLoss(Sound):
    """Clips by the loss of its own rank's samples."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        loss = super().loss(model, batch)
        self.last = loss.item()
        return loss

    def before_update(self, model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01 * self.last)


class Largest(nn.Module):
    """Divides by the largest value that it has seen, or by that of the first batch alone."""

    largest: torch.Tensor

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.inner, self.first = nn.Linear(8, 16), first
        self.register_buffer("largest", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> Any:
        found = self.inner(x).relu()
        if not self.first or not self.largest:
            with torch.no_grad():
                self.largest.copy_(torch.maximum(self.largest, found.max()))
        return found / self.largest


class RunsMaximum(Sound):
    first = False

    def model(self) -> nn.Module:
        return nn.Sequential(Largest(first=self.first), nn.Linear(16, 1))


class ScalesByFirst(RunsMaximum):
    first = True


class ClipsOnFirst(Sound):
    """Clips on rank 0 alone."""

    def before_update(self, model: nn.Module) -> None:
        if os.environ["RANK"] == "0":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)


class Warms(torch.optim.Optimizer):
    """Sets the rate of another optimizer and steps it, as the annotated transformer's does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.made = inner, 0
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.made += 1
        for group in self.inner.param_groups:
            group["lr"] = 0.01 * min(self.made, 10) / 10
        self.inner.step()


class WrapsAdam(Sound):
    def optimizer(self, parameters: Any) -> Any:
        return Warms(torch.optim.Adam(parameters))


class HidesAdam(Sound):
    """The inner optimizer is in no attribute."""

    def optimizer(self, parameters: Any) -> Any:
        outer = Warms(torch.optim.Adam(parameters))
        inner = outer.inner
        del outer.inner
        outer.param_groups = [{**group, "params": list(group["params"])} for group in inner.param_groups]
        outer.step = lambda closure=None: inner.step()  # type: ignore[method-assign]
        return outer


class KeepsAListOfAll(Sound):
    """Draws parameters to their averages, which it keeps in the order of all parameters."""

    def optimizer(self, parameters: Any) -> Any:
        class Draws(torch.optim.SGD):
            def __init__(self, parameters: Any) -> None:
                super().__init__(parameters, lr=0.01)
                self.slow = [each.detach().clone() for each in self.param_groups[0]["params"]]

            @torch.no_grad()
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                super().step()
                for each, slow in zip(self.param_groups[0]["params"], self.slow, strict=False):
                    each.copy_(slow.lerp_(each, 0.5))

        return Draws(parameters)


STEP = [0]


class CountsForAll(Sound):
    """Its loss counts more with each of the first ones, of any model."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        STEP[0] += 1
        return super().loss(model, batch) * min(1.0, STEP[0] / 50)


class CountsUpdatesForAll(Sound):
    made = 0

    def before_update(self, model: nn.Module) -> None:
        CountsUpdatesForAll.made += 1
        nn.utils.clip_grad_norm_(model.parameters(), 1.0 / CountsUpdatesForAll.made)


class StepsForAll(Sound):
    loss: Any = None
    made = 0

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        StepsForAll.made += 1

        def change(given: Any) -> None:
            for each in given.parameters():
                each.grad.mul_(StepsForAll.made / 100)

        return plain_step(model, batch, optimizer, change)


HIDDEN = random.Random(1)


class CountsAndDraws(Sound):
    """The count, for a log, changes nothing: its random draws do."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        STEP[0] += 1
        return super().loss(model, batch) * HIDDEN.random()


class InBfloat16(torch.optim.Optimizer):
    """Makes matrices more orthogonal in bfloat16, as Muon does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            x = each.grad.bfloat16()
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
            each.add_(x.to(each.dtype), alpha=-0.02)


class Orthogonalises(Sound):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]).sum(1, keepdim=True), batch[1])

    def optimizer(self, parameters: Any) -> Any:
        return InBfloat16(parameters)


class DAdaptation(torch.optim.Optimizer):
    """Estimates its rate from all gradients so far, as D-Adaptation SGD does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self.d, self.total = 1e-6, 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        square = along = 0.0
        for each in held:
            sums = self.state[each].setdefault("sums", torch.zeros_like(each))
            along += float((each.grad * sums).sum())
            sums.add_(each.grad, alpha=self.d)
            square += float((sums**2).sum())
        self.total += self.d * along
        self.d = max(self.d, min(self.total / max(square**0.5, 1e-12), 2 * self.d))
        for each in held:
            each.sub_(self.d * each.grad)


class EstimatesRate(Sound):
    def optimizer(self, parameters: Any) -> Any:
        return DAdaptation(parameters)


class Momentum(nn.Module):
    """A second layer follows the first, and starts as a copy: no forward changes it before an update."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 1)
        self.second = copy.deepcopy(self.first).requires_grad_(False)
        with torch.no_grad():
            for each in self.parameters():
                each.fill_(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for own, other in zip(self.first.parameters(), self.second.parameters(), strict=True):
            other.data = other.data * 0.5 + own.data * 0.5
        return self.first(x) + 0 * self.second(x)


class FollowsItself(Sound):
    model = Momentum

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD([each for each in parameters if each.requires_grad], lr=0.01)


class Langevin(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(each.grad, alpha=-group["lr"]).add_(torch.randn_like(each), alpha=group["lr"])


class DrawsInOptimizer(Sound):
    def optimizer(self, parameters: Any) -> Any:
        return Langevin(parameters)


class OneLayer(Sound):
    """A single number is its only parameter that is not a matrix."""

    def model(self) -> nn.Module:
        return nn.Linear(8, 1)


class Faint(nn.Module):
    """Its bias has gradients far smaller than its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 64)
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x).tanh() @ self.weight + 1e-6 * self.bias).sum(1, keepdim=True)


class FaintBias(Sound):
    def model(self) -> nn.Module:
        made = Faint()
        made.inner.bias.requires_grad_(False)
        return made

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD([each for each in parameters if each.requires_grad], lr=0.01)


class DrawsMildly(Sound):
    """Draws so little that in float32 it may pass as Adam's amplified rounding."""

    def before_update(self, model: nn.Module) -> None:
        for each in model.parameters():
            assert each.grad is not None
            each.grad.add_(torch.randn_like(each.grad), alpha=0.002)


class ClipsAndDraws(Sound):
    """Clips by the norm of all gradients and adds noise, as private training does."""

    def optimizer(self, parameters: Any) -> Any:
        return Private(parameters, lr=0.1)


class Private(torch.optim.SGD):
    most = 0.1

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        held = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        norm = torch.stack([each.grad.norm() for each in held]).norm()
        for each in held:
            each.grad.mul_(float(min(1, self.most / norm))).add_(self.noise(each.grad), alpha=1e-3)
        return super().step(closure)

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(like)


class DrawsAlike(Sound):
    """Draws from its own generator, which is seeded alike on all ranks."""

    def optimizer(self, parameters: Any) -> Any:
        return OwnGenerator(parameters, lr=0.1)


class OwnGenerator(Private):
    most = 1e9

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.generator = torch.Generator().manual_seed(3)

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like).normal_(generator=self.generator)


class DrawsBeforeUpdate(Sound):
    def before_update(self, model: nn.Module) -> None:
        for each in model.parameters():
            assert each.grad is not None
            each.grad.add_(torch.randn_like(each.grad), alpha=0.1)


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another that doesn't call its base class, as some published ones."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.state = defaultdict(dict)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return self.inner.step(closure)


class WrapsOptimizer(Sound):
    def optimizer(self, parameters: Any) -> Any:
        return Wrapping(torch.optim.Adam(parameters, lr=0.01))

    def before_update(self, model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


class WrapsInStep(Sound):
    loss: Any = None

    def optimizer(self, model: nn.Module) -> Any:
        return Wrapping(torch.optim.Adam(model.parameters(), lr=0.01))

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        return plain_step(model, batch, optimizer)


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Sound().model()
        self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            found: torch.Tensor = self.net(x)
        return found


class HoldsLock(Sound):
    def model(self) -> nn.Module:
        return Locked()


class SeededByRank(Sound):
    def model(self) -> nn.Module:
        torch.manual_seed(42 + int(os.environ["RANK"]))
        return super().model()


class Clamped(Sound):
    """Hooks of parameters clamp gradients."""

    def model(self) -> nn.Module:
        made = super().model()
        for each in made.parameters():
            each.register_hook(lambda slope: slope.clamp(-0.05, 0.05))
        return made


class Limit(torch.autograd.Function):
    """Leaves a tensor as it is, and clamps its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return slope.clamp(-0.05, 0.05)


class Limited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Sound().model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Limit.apply(self.net(x))  # type: ignore[no-untyped-call]
        return found


class LimitsInGraph(Sound):
    """An operation limits the gradients that pass back through it."""

    def model(self) -> nn.Module:
        return Limited()


class LimitsOutput(Sound):
    """A hook of the output limits them."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        found = model(batch[0])
        if found.requires_grad:
            found.register_hook(lambda slope: slope.clamp(-0.05, 0.05))
        return nn.functional.mse_loss(found, batch[1])


class Evolves(Sound):
    """Gets gradients without backward(), from calls of the model alone."""

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            for each in model.parameters():
                each.grad = 0.01 * torch.sign(each) * loss
        optimizer.step()
        return loss


class NamesItP(Evolves):
    def optimizer(self, p: Any) -> Any:
        return torch.optim.SGD(p, lr=0.01)


class EvolvesAround(Evolves):
    """Trains the module within, and calls the wrapper for a number that is printed."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        with torch.no_grad():
            model(batch[0])
        inner = getattr(model, "module", model)
        return plain_step(inner, batch, optimizer)


class NestedLists(nn.Module):
    """Each layer is a list of two parts that are called one by one, as in a transformer or a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]) for _ in range(2)
        )
        self.leave = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second in self.layers:  # type: ignore[misc]
            x = x + second(first(x))
        found: torch.Tensor = self.leave(x)
        return found


class Nested(Sound):
    def model(self) -> nn.Module:
        return NestedLists()


class Coder(nn.Module):
    """Used by its own methods, never called."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 8), nn.Linear(8, 8)

    def coded(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.leave(self.enter(x).relu())
        return found


class Coders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.coders = nn.ModuleList(Coder() for _ in range(2))
        self.leave = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.coders:
            x = x + each.coded(x)  # type: ignore[operator]
        found: torch.Tensor = self.leave(x)
        return found


class ByMethods(Sound):
    def model(self) -> nn.Module:
        return Coders()


class InnerLoop(nn.Module):
    """Takes steps on its inputs before it answers, as MAML does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Sound().model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = dict(self.net.named_parameters())
        aim = functional_call(self.net, weights, (x,)).square().mean()
        slopes = torch.autograd.grad(aim, list(weights.values()), create_graph=True)
        weights = {
            name: each - 0.01 * slope for (name, each), slope in zip(weights.items(), slopes, strict=True)
        }
        found: torch.Tensor = functional_call(self.net, weights, (x,))
        return found


class Adapts(Sound):
    def model(self) -> nn.Module:
        return InnerLoop()


class Stepping(Sound):
    loss: Any = None

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.01)


class Surgery(Stepping):
    """Computes gradients without a backward, and sets them."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        optimizer.zero_grad()
        parameters = list(model.parameters())
        for each, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            each.grad = slope.clamp(-1, 1)
        optimizer.step()
        return loss.detach()


class PerSample(Stepping):
    """Clips each sample's gradient, as private training does."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        weights = dict(model.named_parameters())

        def of_one(given: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(functional_call(model, given, (x[None],)), y[None])

        fixed = {name: each.detach() for name, each in weights.items()}
        slopes = vmap(grad(of_one), in_dims=(None, 0, 0))(fixed, *batch)
        optimizer.zero_grad()
        for name, each in weights.items():
            each.grad = slopes[name].clamp(-1, 1).mean(0)
        optimizer.step()
        return nn.functional.mse_loss(model(batch[0]), batch[1]).detach()


class PutTogether(Stepping):
    """Combines its gradients from two backwards': those that a strategy has averaged."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        taken = []
        for part in (1, 2):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch[0]), batch[1]) * part
            loss.backward()
            taken.append([each.grad for each in model.parameters()])
        for each, first, second in zip(model.parameters(), *taken, strict=True):
            each.grad = first.clamp(-1, 1) + second
        optimizer.step()
        return loss.detach()


class DrawsInStep(Stepping):
    """Adds noise to its gradients after backward()."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        return plain_step(model, batch, optimizer, self.add_noise)

    def add_noise(self, model: Any) -> None:
        for each in model.parameters():
            each.grad.add_(torch.randn_like(each.grad), alpha=0.1)


class DropsOut(Stepping):
    """Draws only in its forward."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        return plain_step(model, batch, optimizer)


class Coin(nn.Module):
    """Skips a layer by the toss of a coin, for the whole batch at once."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.between, self.leave = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x).relu()
        kept = float(torch.rand(()) < 0.39)  # under seeds 1 and 2 the first three fall alike
        found: torch.Tensor = self.leave(x + kept * self.between(x).relu())
        return found


class TossesCoin(Sound):
    def model(self) -> nn.Module:
        return Coin()


class TossesCoinInStep(DropsOut):
    def model(self) -> nn.Module:
        return Coin()


class Tied(nn.Module):
    """Two parameters over one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 4), nn.Linear(4, 8)
        self.leave.weight = nn.Parameter(self.enter.weight.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.leave(self.enter(x).tanh()).sum(1, keepdim=True)
        return found


class TiesMemory(Sound):
    def model(self) -> nn.Module:
        return Tied()


class ThawsInStep(Stepping):
    """Begins to train a layer in its second step."""

    made = 0
    after = 2

    def model(self) -> nn.Module:
        made = super().model()
        made[0].requires_grad_(False)  # type: ignore[index]
        return made

    def optimizer(self, model: nn.Module) -> Any:
        self.kept: Any = model
        return torch.optim.SGD(model[2].parameters(), lr=0.01)  # type: ignore[index]

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        self.made += 1
        if self.made == self.after:
            self.kept[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(self.kept[0].parameters())})
        return plain_step(model, batch, optimizer)


class ThawsLate(ThawsInStep):
    """Does so after the proof has ended."""

    after = 10


class ThawsOptimized(Stepping):
    """Begins to train a layer that its optimizer has from the start, in its second step."""

    made = 0

    def model(self) -> nn.Module:
        made = super().model()
        made[0].requires_grad_(False)  # type: ignore[index]
        return made

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        self.made += 1
        if self.made == 2:
            model.requires_grad_(True)
        return plain_step(model, batch, optimizer)


class FreezesInStep(Stepping):
    """Freezes its first layer in its third step."""

    made = 0

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        self.made += 1
        if self.made == 3:
            next(model.parameters()).requires_grad_(False)
        return plain_step(model, batch, optimizer)


class Freezes(Sound):
    """Freezes its first layer before its second update."""

    made = 0

    def before_update(self, model: Any) -> None:
        self.made += 1
        if self.made == 2:
            model[0].requires_grad_(False)


class ThawsBeforeUpdate(Sound):
    """Trains its first layer from its third update on."""

    made = 0

    def model(self) -> nn.Module:
        made = super().model()
        made[0].requires_grad_(False)  # type: ignore[index]
        return made

    def before_update(self, model: Any) -> None:
        self.made += 1
        if self.made == 3:
            model.requires_grad_(True)


class Graph(nn.Module):
    """Its buffer is a sparse matrix, as a graph's neighbours are."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.register_buffer("neighbours", torch.eye(8).roll(1, 0).to_sparse(layout=layout))
        self.leave = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.leave((self.neighbours @ x.t()).t())
        return found


class SparseGraph(Sound):
    layout: torch.layout = torch.sparse_coo

    def model(self) -> nn.Module:
        return Graph(self.layout)


class SparseRows(SparseGraph):
    layout = torch.sparse_csr


class Observer(nn.Module):
    """Rounds to steps of a size that follows its inputs, as training for quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            now = x.abs().max()
            self.largest.copy_(torch.where(self.largest > 0, 0.9 * self.largest + 0.1 * now, now))  # type: ignore[operator]
        step = self.largest / 7
        found: torch.Tensor = self.layer(x + ((x / step).round() * step - x).detach())
        return found


class Observes(Sound):
    def model(self) -> nn.Module:
        return nn.Sequential(Observer(), nn.Linear(8, 1))


class ObservesInStep(DropsOut):
    def model(self) -> nn.Module:
        return nn.Sequential(Observer(), nn.Linear(8, 1))


class ObservesInParts(ObservesInStep):
    """Two networks, the first of which first runs without gradients."""

    def model(self) -> Any:
        return {"first": Observer(), "second": nn.Linear(8, 1)}

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.no_grad():
            aim = model["first"](batch[0] * 2).mean(1, keepdim=True)
        loss = nn.functional.mse_loss(model["second"](model["first"](batch[0])), batch[1] + aim)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()


class StepsPlainly(Sound):
    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        return plain_step(model, batch, optimizer)


class StepsByAdam(StepsPlainly):
    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.Adam(parameters, lr=0.01)


class WithPenalty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), self.layer.weight.square().sum()


class ReturnsScalar(StepsPlainly):
    def model(self) -> nn.Module:
        return WithPenalty()

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        found, penalty = model(batch[0])
        loss = nn.functional.mse_loss(found, batch[1]) + 0.1 * penalty
        loss.backward()
        optimizer.step()
        return loss.detach()


class TakesMeanOfScalar(ReturnsScalar):
    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        return super().step(
            lambda x: tuple(each.mean() if each.dim() < 2 else each for each in model(x)), batch, optimizer
        )


class PenalisesGradients(Sound):
    """Two networks in turn, one of them with a penalty on its gradients, as WGAN-GP has."""

    def model(self) -> Any:
        return {
            name: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for name in ("maker", "judge")
        }

    def optimizer(self, model: Any) -> Any:
        return [torch.optim.Adam(model[name].parameters(), lr=0.01) for name in ("maker", "judge")]

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        maker, judge = model["maker"], model["judge"]
        makers, judges = optimizer
        judges.zero_grad()
        made = maker(batch[0]).detach()
        between = ((batch[0] + made) / 2).requires_grad_(True)
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        loss: torch.Tensor = (
            judge(made).mean() - judge(batch[0]).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        judges.step()
        makers.zero_grad()
        (-judge(maker(batch[0])).mean()).backward()
        makers.step()
        return loss.detach()


class Follower(nn.Module):
    """Compares with a copy of its weights that follows them, and with the last batches, as MoCo does."""

    def __init__(self) -> None:
        super().__init__()
        self.leads, self.follows = nn.Linear(8, 8), nn.Linear(8, 8)
        self.follows.load_state_dict(self.leads.state_dict())
        self.follows.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: Any = self.seen
        with torch.no_grad():
            for mine, other in zip(self.follows.parameters(), self.leads.parameters(), strict=True):
                mine.mul_(0.5).add_(other, alpha=0.5)
            aim = self.follows(x.flip(0))
            seen.copy_(torch.cat((aim, seen))[:16])
        found: torch.Tensor = (self.leads(x).tanh() @ torch.cat((aim, seen)).tanh().t()).logsumexp(
            1, keepdim=True
        )
        return found


class FollowsInForward(StepsPlainly):
    def model(self) -> nn.Module:
        return Follower()

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)


class FollowsInStep(FollowsInForward):
    """The copy is a network by itself, which the step moves."""

    def model(self) -> Any:
        return {"leads": nn.Linear(8, 1), "follows": nn.Linear(8, 1).requires_grad_(False)}

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = super().step(lambda x: model["leads"](x) + model["follows"](x), batch, optimizer)
        with torch.no_grad():
            pairs = zip(model["follows"].parameters(), model["leads"].parameters(), strict=True)
            for mine, other in pairs:
                mine.mul_(0.5).add_(other, alpha=0.5)
        return loss


class ScalesInForward(StepsPlainly):
    """Its forward makes its weights smaller."""

    def model(self) -> nn.Module:
        return Shrinking()


class Shrinking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.layer.weight.mul_(0.9)
        found: torch.Tensor = self.layer(x)
        return found


class HooksInStep(StepsPlainly):
    """Hooks of its parameters give their gradients one length."""

    def model(self) -> nn.Module:
        made = super().model()
        for each in made.parameters():
            each.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-3))  # type: ignore[no-untyped-call]
        return made


class HooksForOneStep(StepsPlainly):
    """Hooks of its parameters that each step makes, and removes."""

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        hooks: list[Any] = [
            each.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))  # type: ignore[no-untyped-call]
            for each in model.parameters()
        ]
        loss = super().step(model, batch, optimizer)
        for each in hooks:
            each.remove()
        return loss


class LooksOn(HooksInStep):
    """Hooks that change nothing, as loggers' do."""

    def model(self) -> nn.Module:
        made = Sound().model()
        for each in made.parameters():
            each.register_hook(lambda _gradient: None)  # type: ignore[no-untyped-call]
        return made


class AddsNoise(StepsPlainly):
    """Adds noise to its weights after each update, the same on all ranks, as Langevin dynamics does."""

    def model(self) -> nn.Module:
        self.generator = torch.Generator().manual_seed(1)
        return super().model()

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = super().step(model, batch, optimizer)
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.randn(each.shape, generator=self.generator, dtype=each.dtype), alpha=0.01)
        return loss


class ClipsWeights(StepsPlainly):
    """Keeps its weights small after each update."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = super().step(model, batch, optimizer)
        for each in model.parameters():
            each.data.clamp_(-0.1, 0.1)
        return loss


class UpdatesOnFirstRank(StepsPlainly):
    """Updates only on the first rank, as code that saves checkpoints does."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        if os.environ["RANK"] == "0":
            optimizer.step()
        return loss.detach()


class PenalizesOnFirstRank(StepsPlainly):
    """Makes a second backward on the first rank only."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        def penalize(model: Any) -> None:
            if os.environ["RANK"] == "0":
                model(batch[0]).square().mean().backward()

        return plain_step(model, batch, optimizer, penalize)


class SkipsByItsLoss(StepsPlainly):
    """Skips the updates of a rank whose samples have a small loss."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        if float(batch[1].sum()) > 0:
            optimizer.step()
        return loss.detach()


class RateByRank(Sound):
    """Each rank has a different learning rate."""

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01 * (1 + int(os.environ["RANK"])))


class ScheduleByRank(Sound):
    """The learning rate falls on one rank only."""

    def optimizer(self, parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.01)
        return optimizer, torch.optim.lr_scheduler.StepLR(
            optimizer, 1, 0.5 if os.environ["RANK"] == "0" else 1
        )


class ScalesByRank(Sound):
    """Multiplies gradients by the rank's number once they are averaged."""

    def before_update(self, model: nn.Module) -> None:
        for each in model.parameters():
            if each.grad is not None:
                each.grad.mul_(1 + int(os.environ["RANK"]))


class ScalesInStepByRank(StepsPlainly):
    """Does so in a step."""

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        def scale(model: Any) -> None:
            for each in model.parameters():
                each.grad.mul_(1 + int(os.environ["RANK"]))

        return plain_step(model, batch, optimizer, scale)


class SumsAgain(Sound):
    """Sums over ranks what is averaged already."""

    group: Any = None

    def before_update(self, model: nn.Module) -> None:
        if dist.is_initialized():
            for each in model.parameters():
                dist.all_reduce(each.grad, group=self.group)


class SumsInGroup(SumsAgain):
    """Does so in another group than the default one."""

    def optimizer(self, parameters: Any) -> Any:
        self.group = dist.new_group() if dist.is_initialized() else None
        return super().optimizer(parameters)


class MeansAgain(SumsAgain):
    """Averages over ranks what is the same on all; its rate follows the number of ranks."""

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01 * int(os.environ["WORLD_SIZE"]))

    def before_update(self, model: nn.Module) -> None:
        super().before_update(model)
        for each in model.parameters():
            assert each.grad is not None
            each.grad /= dist.get_world_size() if dist.is_initialized() else 1


class SharesUpdates(torch.optim.SGD):
    """Updates each parameter on one rank, which sends it to the others."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        together = dist.is_initialized()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        for group in self.param_groups:
            for number, each in enumerate(group["params"]):
                if number % ranks == rank:
                    each.sub_(each.grad, alpha=group["lr"])
                if together:
                    dist.broadcast(each, number % ranks)


class Shares(Sound):
    def optimizer(self, parameters: Any) -> Any:
        return SharesUpdates(parameters, lr=0.01)


class Branches(nn.Module):
    """Adds a second head if a batch holds a negative target."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.more = nn.Linear(8, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(x)
        out: torch.Tensor = self.head(hidden)
        return out + self.more(hidden) if bool((y < 0).any()) else out


class BranchesByData(Sound):
    """Only the first rank's samples take a branch."""

    dataset = None  # type: ignore[assignment]
    model = Branches

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        x, y = data().tensors
        return DataLoader(TensorDataset(x, -y.abs() if rank == 0 else y.abs()), batch_size=batch)

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(*batch), batch[1])


class BranchesInStep(BranchesByData):
    """Does so in a step."""

    loss = None  # type: ignore[assignment]

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(*batch), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()


class DetachesByRank(Sound):
    """The second rank's loss does not reach the first layer."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        hidden = model[0](batch[0])
        hidden = hidden.detach() if os.environ["RANK"] == "1" else hidden
        return nn.functional.mse_loss(model[2](model[1](hidden)), batch[1])


class SpoiledSamples(Sound):
    """Only the second rank's samples hold NaN."""

    dataset = None  # type: ignore[assignment]

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        x, y = data().tensors
        return DataLoader(TensorDataset(x * float("nan") if rank == 1 else x, y), batch_size=batch)


class SpoiledInStep(SpoiledSamples):
    """Makes its steps itself."""

    loss = None  # type: ignore[assignment]

    def step(self, model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        return plain_step(model, batch, optimizer)


class SpoiledBehind(SpoiledSamples):
    """Only the second half of a batch holds NaN."""

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        x, y = data().tensors
        x = torch.stack(
            [one if number % batch < batch // 2 else one * float("nan") for number, one in enumerate(x)]
        )
        return DataLoader(TensorDataset(x, y), batch_size=batch)


class InfiniteByRank(Sound):
    """The second rank's loss is NaN."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return Sound.loss(self, model, batch) * (float("nan") if os.environ["RANK"] == "1" else 1.0)
