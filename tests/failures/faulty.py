"""Workloads that go wrong in one way each; experiments name them by this file's path."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from ddpbench.spec import Case
from ddpbench.workloads import NoOptions, Workload

RANK = int(os.environ.get("RANK", "0"))


class Net(nn.Module):
    """A small classifier that calls `trouble` in its forward once it has run a few steps."""

    def __init__(self, trouble: Any = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.trouble = trouble
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs: torch.Tensor = self.layers(inputs)
        if self.trouble is not None and self.calls > 40:
            outputs = self.trouble(outputs)
        return outputs


class Sound(Workload[NoOptions]):
    """A sound workload."""

    name = "sound"
    options = NoOptions

    def trouble(self) -> Any:
        return None

    def model(self, options: NoOptions) -> nn.Module:
        return Net(self.trouble())

    def dataset(self, options: NoOptions) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(512, 16, generator=generator)
        return TensorDataset(inputs, torch.randint(0, 4, (512,), generator=generator))

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)


class RaisesInForward(Sound):
    """Every rank raises."""

    def trouble(self) -> Any:
        def fail(_: torch.Tensor) -> torch.Tensor:
            raise ValueError("the forward pass is broken")

        return fail


class RaisesOnRank1(Sound):
    """Rank 1 raises; rank 0 is left in a collective."""

    def trouble(self) -> Any:
        return RaisesInForward.trouble(self) if RANK == 1 else None  # type: ignore[arg-type]


class RaisesAfterTheFailure(Sound):
    """Every rank that an agent of torchrun has restarted raises."""

    def trouble(self) -> Any:
        def fail(_: torch.Tensor) -> torch.Tensor:
            raise ValueError("this model has had enough")

        return fail if "DDPBENCH_AGENT_NOTICED_NS" in os.environ else None


class Dropping(Sound):
    """Half of its values are dropped at random, so that its losses show the generator."""

    def model(self, options: NoOptions) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 4))


class UntimedTransfers(Sound):
    """Transfers are untimed, as over a backend that doesn't report when they end."""

    def trouble(self) -> Any:
        Case.times_transfers = property(lambda _: False)  # type: ignore[method-assign,assignment]
        return None


class GivesNan(Sound):
    """The loss becomes NaN."""

    def trouble(self) -> Any:
        return lambda outputs: outputs * float("nan")


class KilledOnRank1(Sound):
    """Rank 1 is killed as by the kernel."""

    def trouble(self) -> Any:
        return (lambda _: os.kill(os.getpid(), signal.SIGKILL)) if RANK == 1 else None


class StopsOnRank1(Sound):
    """Rank 1 is stopped; the others wait for it."""

    def trouble(self) -> Any:
        def stop(outputs: torch.Tensor) -> torch.Tensor:
            os.kill(os.getpid(), signal.SIGSTOP)
            return outputs

        return stop if RANK == 1 else None


class KilledInTurn(Sound):
    """Rank 1 is killed if its launch alternates with others."""

    def trouble(self) -> Any:
        return KilledOnRank1.trouble(self) if "DDPBENCH_TURN" in os.environ else None  # type: ignore[arg-type]


class StopsInTurn(Sound):
    """Rank 1 is stopped if its launch alternates with others."""

    def trouble(self) -> Any:
        return StopsOnRank1.trouble(self) if "DDPBENCH_TURN" in os.environ else None  # type: ignore[arg-type]


class SleepsInTurn(Sound):
    """Rank 1 sleeps without end if its launch alternates with others."""

    def trouble(self) -> Any:
        asleep = RANK == 1 and "DDPBENCH_TURN" in os.environ
        return (lambda _: time.sleep(600)) if asleep else None


class ExitsInTurn(Sound):
    """Rank 1 leaves as if all were well if its launch alternates with others."""

    def trouble(self) -> Any:
        return ExitsOnRank1.trouble(self) if "DDPBENCH_TURN" in os.environ else None  # type: ignore[arg-type]


class RaisesInTurn(Sound):
    """Rank 1 raises if its launch alternates with others."""

    def trouble(self) -> Any:
        return RaisesOnRank1.trouble(self) if "DDPBENCH_TURN" in os.environ else None  # type: ignore[arg-type]


class KillsItsServer(Sound):
    """Rank 1 kills its parent, the fork server."""

    def trouble(self) -> Any:
        return (lambda _: os.kill(os.getppid(), signal.SIGKILL)) if RANK == 1 else None


class Spins(Sound):
    """A thread of rank 1 computes without end, without Python's lock."""

    def trouble(self) -> Any:
        return self.spun if RANK == 1 else None

    def spun(self, outputs: torch.Tensor) -> torch.Tensor:
        if not any(thread.name == "spins" for thread in threading.enumerate()):
            threading.Thread(target=_spin, name="spins", daemon=True).start()
        return outputs


def _spin() -> None:
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)


class OutOfMemoryInTurn(Sound):
    """Rank 1 has the trouble of `OutOfMemory` if its launch alternates with others."""

    def trouble(self) -> Any:
        return OutOfMemory.trouble(self) if RANK == 1 and "DDPBENCH_TURN" in os.environ else None  # type: ignore[arg-type]


class OutOfMemory(Sound):
    """A rank's data memory is limited, and it asks for 4 GiB."""

    def trouble(self) -> Any:
        def allocate(outputs: torch.Tensor) -> torch.Tensor:
            limit = 1 << 30
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            return outputs + torch.ones(1 << 30).sum()

        return allocate


class DropsGradients(Sound):
    """Trains differently in each rank: the proof must catch it."""

    def model(self, options: NoOptions) -> nn.Module:
        model = Net()
        with torch.no_grad():
            model.layers[0].weight.add_(RANK)
        return model


class NoParameters(Sound):
    """A model with nothing to train."""

    def model(self, options: NoOptions) -> nn.Module:
        return nn.Identity()


class TooLittleData(Sound):
    """Fewer samples than one step of the job needs."""

    def dataset(self, options: NoOptions) -> TensorDataset:
        return TensorDataset(torch.randn(5, 16), torch.zeros(5, dtype=torch.int64))


class Dropout(Sound):
    """Draws random numbers in its forward, as many sound models do."""

    def model(self, options: NoOptions) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 4))


class BatchNorm(Sound):
    """Has statistics of the batch, and refuses a single sample."""

    def model(self, options: NoOptions) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))


class Exits(Sound):
    """Ends the process without the harness's knowledge, as if all were well."""

    def trouble(self) -> Any:
        return lambda _: os._exit(0)


class ExitsOnRank1(Sound):
    """Rank 1 leaves as if all were well; rank 0 loses its connection to it."""

    def trouble(self) -> Any:
        return Exits.trouble(self) if RANK == 1 else None  # type: ignore[arg-type]


class HangsInDataOnRank1(Sound):
    """Rank 1 gets no batch; rank 0 waits for it in a collective."""

    def dataset(self, options: NoOptions) -> TensorDataset:
        return Stuck(*super().dataset(options).tensors)


class Stuck(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        while RANK == 1:
            time.sleep(1)  # this line is named
        return super().__getitem__(index)


class RaisesUntilMarked(Sound):
    """Rank 1 raises as long as a file is missing."""

    def trouble(self) -> Any:
        fixed = Path(os.environ.get("DDPBENCH_TEST_MARK", "/nonexistent/mark")).exists()
        return None if fixed else RaisesOnRank1.trouble(self)  # type: ignore[arg-type]


class KillsTheServer(Sound):
    """The first rank 1 that gets far enough kills its parent, the fork server; later ones do not."""

    number = signal.SIGKILL

    def trouble(self) -> Any:
        mark = Path(os.environ.get("DDPBENCH_TEST_MARK", "/nonexistent/mark")).with_suffix(f".{self.number}")

        def kill(outputs: torch.Tensor) -> torch.Tensor:
            if RANK == 1 and not mark.exists():  # never in the base case, which has one rank
                mark.touch()
                os.kill(os.getppid(), self.number)
            return outputs

        return kill


class StopsTheServer(KillsTheServer):
    """Like `KillsTheServer`, but the server is stopped."""

    number = signal.SIGSTOP


class WaitsWhileMarked(Sound):
    """Every rank waits as long as a file exists."""

    def trouble(self) -> Any:
        while Path(os.environ.get("DDPBENCH_TEST_MARK", "/nonexistent/mark")).exists():
            time.sleep(0.2)
