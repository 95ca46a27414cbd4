"""Unusual users' models, each a small class in variations, with the promised outcome of every strategy.

A model is launched, and its run directory is compared with the promise: each case's status, the words of its
cause, the rank that is to blame, and the types and threads that the class itself finds in a timed launch,
which it prints. The ranks must record the same values.
"""

from __future__ import annotations

import csv
import json
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

STRANGE = Path(__file__).parents[1] / "worker/strange_models.py"
UPDATES = STRANGE.with_name("update_models.py")
STRATEGIES = ("ddp", "zero1", "fsdp", "master", "data_parallel")
SEEN = "campaign saw: "
"""Beginning of a line in which a class prints what it trains with."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Promised outcome of a case."""

    status: str = "ok"
    said: tuple[str, ...] = ()
    """Words of the cause, all of which the case must have."""
    rank: int | None = None
    """The rank that is to blame."""
    types: tuple[str, ...] = ("float32",)
    """Types of the parameters that the class finds when it trains; empty if it does not print them."""
    threads: int = 1
    """Threads of torch that the class finds when it trains."""
    notes: tuple[str, ...] = ()
    """Words of what the proof leaves out, each in some comparison's note; without them, no note may mention
    any.
    """
    flagged: str = ""
    """Words of `noise_flag`."""


OK = Promise()
_ABOUT_MODEL = (
    "gives different",
    "writes into its own parameters",
    "different parameters under the same seeds",
)
"""Sentence on models that differ each time."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A class with its promised outcomes."""

    text: str
    promises: Mapping[str, Promise] = field(default_factory=dict)
    """Promise for each strategy; empty if the class is refused."""
    refused: tuple[str, ...] = ()
    """Words of the reason for the refusal."""
    perhaps: tuple[str, ...] = ()
    """Words of the cause, if it may be refused, fail or be measured."""
    said: tuple[str, ...] = ()
    """Words that the command says with any outcome."""
    page: tuple[str, ...] = ()
    """Words that the report contains."""
    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)

    @property
    def codes(self) -> tuple[int, ...]:
        """Return the exit code that follows from the promises."""
        if self.perhaps:
            return (0, 1, 2)
        if not self.promises:
            return (2,)
        return (int(any(each.status not in ("ok", "skipped") for each in self.promises.values())),)

    @property
    def named(self) -> tuple[str, ...]:
        """Return words of the causes of failures."""
        failed = [each for each in self.promises.values() if each.status not in ("ok", "skipped")]
        return (*self.refused, *self.perhaps, *dict.fromkeys(word for each in failed for word in each.said))


_TEXT = '''import json, os, random, time, warnings
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset, get_worker_info

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SAID = []
{head}

def numbers(count=64, dtype=None):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(count, 16, generator=draws, dtype=dtype)
    return TensorDataset(x, torch.randint(4, (count,), generator=draws))


def words(count=64):
    draws = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(50, (count, 4), generator=draws), torch.randint(4, (count,), generator=draws))


def say(model):
    """Print once what this process trains with."""
    if not SAID:
        SAID.append(1)
        types = sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()})
        print("{seen}" + json.dumps({"types": types, "threads": torch.get_num_threads()}), flush=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 8), nn.Linear(8, 4)
        {layers}

    def forward(self, x):
        {forward}


class Measured:
    def __init__(self):
        {init}

    def model(self):
        {model}

    def dataset(self):
        {dataset}

    def loss(self, model, batch):
        say(model)
        {loss}

    def optimizer(self, parameters):
        {optimizer}
'''
_PARTS = {
    "head": "",
    "layers": "",
    "forward": "return self.leave(torch.tanh(self.enter(x)))",
    "init": "pass",
    "model": "return Net()",
    "dataset": "return numbers()",
    "loss": "return nn.functional.cross_entropy(model(batch[0]), batch[1])",
    "optimizer": "return torch.optim.SGD([each for each in parameters if each.requires_grad], lr=0.1)",
}


def script(**parts: str) -> str:
    """Return a class with some unusual parts; the lines of a part are indented like its first."""

    def part(found: re.Match[str]) -> str:
        lines = {**_PARTS, "seen": SEEN, **parts}[found[2]].split("\n")
        return f"\n{found[1]}".join([found[1] + lines[0], *lines[1:]])

    text = re.sub(r"()\{(seen)\}", part, _TEXT)
    return re.sub(r"^( *)\{(\w+)\}", part, text, flags=re.MULTILINE)


def _all(promise: Promise, *strategies: str) -> dict[str, Promise]:
    return dict.fromkeys(strategies or ("single", "ddp"), promise)


def _skipped(*said: str) -> Promise:
    return Promise(status="skipped", said=said)


def _failed(*said: str, rank: int | None = None, status: str = "failed") -> Promise:
    return Promise(status=status, said=said, rank=rank)


_COMPLEX = """self.weight = nn.Parameter(torch.randn(9, dtype=torch.{0}))
self.enter, self.leave = nn.Identity(), nn.Linear(16, 4)"""
_SPECTRAL = "return self.leave(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16))"
_ADAPTED = "self.enter = nn.Linear(16, 8).{0}{1}"
_ADAPT = "return self.leave(self.enter(x.to(self.enter.weight.dtype)).to(self.leave.weight.dtype))"


def _types() -> dict[str, Model]:
    """Return models with types other than float32 alone: kept unless `dtype` is set."""
    found: dict[str, Model] = {}

    def add(name: str, types: tuple[str, ...], others: Mapping[str, Promise], **parts: str) -> None:
        kept = Promise(types=types)
        text = script(**parts)
        found[f"types-{name}"] = Model(text=text, promises={**_all(kept), **others})

    for half, whole in (("complex64", "float32"), ("complex128", "float64")):
        default = "" if whole == "float32" else "torch.set_default_dtype(torch.float64)"
        mixed = f"{half} and {whole}"
        parts = {"head": default, "layers": _COMPLEX.format(half), "forward": _SPECTRAL}
        others = {
            "master": Promise(types=(half, whole)),
            "zero1": _skipped("parameters of one type", mixed),
            "fsdp": _skipped("parameters of one type", mixed),
        }
        add(half, (half, whole), others, **parts)
    as_other = Promise(types=("complex128", "float64"))
    found["types-complex-set-to-float64"] = Model(
        text=script(layers=_COMPLEX.format("complex64"), forward=_SPECTRAL),
        promises=_all(as_other),
        settings={"base.dtype": "float64"},
        said=("casts the model's parameters from complex64 to complex128 and float32 to float64",),
        page=("from complex64 to complex128",),
    )
    double = Promise(types=("float64",))
    every = _all(double, *STRATEGIES[:3])
    add("float64-by-default", ("float64",), every, head="torch.set_default_dtype(torch.float64)")
    add(
        "float64-by-default-in-init",
        ("float64",),
        {},
        init="torch.set_default_dtype(torch.float64)",
    )
    add(
        "float64-by-hand",
        ("float64",),
        {"master": double},
        model="return Net().double()",
        dataset="return numbers(dtype=torch.float64)",
    )
    for narrow, method in (("bfloat16", "bfloat16()"), ("float16", "half()")):
        parts = {"layers": _ADAPTED.format(method, ""), "forward": _ADAPT}
        mixed = f"{narrow} and float32"
        others = {
            "zero1": _skipped("parameters of one type", mixed),
            "fsdp": _skipped("parameters of one type", mixed),
        }
        add(f"{narrow}-backbone", (narrow, "float32"), others, **parts)
        parts["layers"] = _ADAPTED.format(method, ".requires_grad_(False)")
        add(
            f"{narrow}-backbone-frozen",
            (narrow, "float32"),
            _all(Promise(types=(narrow, "float32")), "zero1"),
            **parts,
        )
    found["types-backbone-set-to-float32"] = Model(
        text=script(layers=_ADAPTED.format("bfloat16()", ""), forward=_ADAPT),
        promises=_all(OK),
        settings={"base.dtype": "float32"},
        said=("casts the model's parameters from bfloat16 to float32",),
        page=("from bfloat16 to float32",),
    )
    add(
        "bfloat16-alone",
        ("bfloat16",),
        {},
        model="return Net().bfloat16()",
        dataset="return numbers(dtype=torch.bfloat16)",
        loss="return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])",
    )
    return found


def _threads() -> dict[str, Model]:
    """Return models that set threads: overridden by the experiment when training, or flagged."""
    back = "the class's code asks torch for {0} threads: set back to threads_per_rank = {1}"
    found: dict[str, Model] = {}
    for asked, own in ((1, 2), (1, 3), (2, 3)):
        line = f"torch.set_num_threads({own})"
        places = {
            "at-import": script(head=line),
            "in-init": script(init=line),
            "in-model": script(model=f"{line}\nreturn Net()"),
        }
        for place, text in places.items():
            found[f"threads-{own}-{place}-not-{asked}"] = Model(
                text=text,
                promises=_all(Promise(threads=asked)),
                settings={"base.threads_per_rank": str(asked)},
                said=(back.format(own, asked),),
                page=(f"set back to threads_per_rank = {asked}",),
            )
    for place in ("head", "init"):
        found[f"threads-by-variable-in-{place}"] = Model(
            text=script(**{place: "os.environ['OMP_NUM_THREADS'] = '2'\ntorch.set_num_threads(2)"}),
            promises=_all(OK),
            said=("OMP_NUM_THREADS = 2: put back to 1", "set back to threads_per_rank = 1"),
        )
    for place in ("forward", "loss"):
        late = f"torch.set_num_threads(2)\n{_PARTS[place]}"
        found[f"threads-late-in-{place}"] = Model(
            text=script(**{place: late}),
            promises=_all(Promise(threads=0, flagged="threads_per_rank 2, not 1")),
            page=("threads_per_rank 2, not 1",),
        )
    return found


_SOURCES = {
    "random": "[random.random() for _ in range(8)]",
    "numpy": "np.random.rand(8)",
    "torch": "torch.rand(8)",
}
_FACTOR = "return self.leave(self.enter(x) * torch.as_tensor({0}).to(x.dtype))"
_UNSEEDED = {
    "the-clock": "[time.time_ns() % 1000 / 1000] * 8",
    "os-urandom": "[each / 255 for each in os.urandom(8)]",
    "its-own-generator": "np.random.default_rng().random(8)",
    "its-own-random": "[random.SystemRandom().random()] * 8",
}


def _randomness() -> dict[str, Model]:
    """Return models with random numbers: proved if a seed reaches them; else measured, and the model is
    named.
    """
    found: dict[str, Model] = {}
    for name, source in _SOURCES.items():
        for place in ("forward", "loss"):
            factor = f"return {_PARTS['loss'].removeprefix('return ')} * torch.as_tensor({source}).mean()"
            text = script(**{place: _FACTOR.format(source) if place == "forward" else factor})
            others = _all(OK, "fsdp") if place == "forward" else {}
            found[f"random-{name}-in-{place}"] = Model(text=text, promises={**_all(OK), **others})
    initial = "made = Net()\nmade.leave.weight.data.copy_(torch.as_tensor({0}).expand(4, 8))\nreturn made"
    for name, source in _SOURCES.items():
        found[f"random-{name}-in-model"] = Model(text=script(model=initial.format(source)), promises=_all(OK))
    other = "the model gives different gradients from the same state, batch and seeds"
    for name, source in _UNSEEDED.items():
        found[f"unseeded-{name}-in-forward"] = Model(
            text=script(forward=_FACTOR.format(source)),
            promises=_all(Promise(notes=(other,)), "single", "ddp", "master"),
            page=(other,),
        )
    fault = "two calls of model() give different parameters under the same seeds"
    found["unseeded-initial-weights"] = Model(
        text=script(model=initial.format(_UNSEEDED["its-own-generator"])),
        promises={
            "ddp": Promise(status="diverged", said=(fault,), notes=(fault,)),
        },
    )
    return found


def _writes() -> dict[str, Model]:
    """Return models whose forward writes weights: named, and differing replicas are not the strategy's fault."""
    lookup = "self.words = nn.Embedding(50, 4, max_norm={0})\nself.enter = nn.Linear(16, 8)"
    through = "return self.leave(torch.tanh(self.enter(self.words(x).flatten(1))))"
    bags = "self.words = nn.EmbeddingBag(50, 16, max_norm=1.0)"
    own = "self.leave = nn.Linear(8, 4)"
    clipped = "self.leave.weight.data.clamp_(-0.05, 0.05)\nreturn self.leave(torch.tanh(self.enter(x)))"
    named = "the model's forward writes into its own parameters"
    alone = Promise(notes=(named,))
    apart = Promise(status="diverged", said=(named, "words.weight"), notes=(named,))
    found: dict[str, Model] = {}
    for name, layers in (("half", lookup.format(0.5)), ("one", lookup.format(1.0)), ("bag", bags)):
        forward = through if name != "bag" else "return self.leave(torch.tanh(self.enter(self.words(x))))"
        found[f"writes-max-norm-{name}"] = Model(
            text=script(layers=layers, forward=forward, dataset="return words()"),
            promises={"single": alone, "ddp": apart},
            said=("its forward writes into words.weight",),
        )
    found["writes-clipped-weights"] = Model(
        text=script(layers=own, forward=clipped),
        promises={"single": alone, "ddp": alone},
        said=("its forward writes into leave.weight",),
    )
    return found


def _parameters() -> dict[str, Model]:
    """Return models with parameters that a step does not use, or that a strategy cannot divide."""
    spare = "self.spare = nn.Linear(3, 3)"
    frozen = f"{spare}.requires_grad_(False)"
    way = "set options.ddp.find_unused_parameters = true"
    found = {
        "unused-head": Model(
            text=script(layers=spare),
            promises={
                "single": OK,
                "ddp": _failed("spare.weight", way),
                "zero1": _failed("spare.weight", "set options.zero1.find_unused_parameters = true"),
                "master": OK,
            },
        ),
        "unused-one": Model(
            text=script(layers="self.gain = nn.Parameter(torch.ones(3))"),
            promises={"single": OK, "ddp": _failed("gain", way)},
        ),
        "unused-and-searched": Model(
            text=script(layers=spare),
            promises=_all(OK),
            settings={"options.ddp.find_unused_parameters": "true"},
        ),
        "unused-and-frozen": Model(text=script(layers=frozen), promises=_all(OK, "single", "ddp", "zero1")),
    }
    scalar = "self.gain = nn.Parameter(torch.tensor(2.0))"
    used = "return self.leave(torch.tanh(self.enter(x))) * self.gain"
    for name, layers in (("one", scalar), ("two", f"{scalar}\nself.other = nn.Parameter(torch.tensor(0.0))")):
        forward = used if name == "one" else f"{used} + self.other"
        found[f"zero-dim-{name}"] = Model(
            text=script(layers=layers, forward=forward),
            promises={
                **_all(OK, "single", "ddp", "zero1"),
                "fsdp": _skipped("doesn't support scalar parameters", "gain"),
            },
        )
    batch = "self.norm = nn.SyncBatchNorm(8)"
    sync = _skipped("SyncBatchNorm expected input tensor to be on GPU")
    found["sync-batch-norm"] = Model(
        text=script(layers=batch, forward="return self.leave(self.norm(self.enter(x)))"),
        promises={"single": OK, "ddp": sync, "master": sync},
    )
    converted = "return nn.SyncBatchNorm.convert_sync_batchnorm(made)"
    found["sync-batch-norm-converted"] = Model(
        text=script(
            model=f"made = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))\n{converted}"
        ),
        promises={"single": OK, "ddp": sync},
    )
    refused = _skipped("torch.nn.DataParallel cannot replicate it")
    compiled = {
        "whole": "return torch.compile(Net(), backend='eager')",
        "in-place": "made = Net()\nmade.compile(backend='eager')\nreturn made",
        "a-layer": "made = Net()\nmade.enter = torch.compile(made.enter, backend='eager')\nreturn made",
        "scripted": "return torch.jit.script(Net())",
    }
    for name, model in compiled.items():
        found[f"compiled-{name}"] = Model(
            text=script(model=model), promises={"single": OK, "ddp": OK, "data_parallel": refused}
        )
    return found


_GATHERED = """own = nn.functional.normalize(model(batch[0]), dim=-1)
every = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
dist.all_gather(every, own.detach())
every[dist.get_rank()] = own
own_place = torch.arange(len(own)) + dist.get_rank() * len(own)
return nn.functional.cross_entropy(5 * own @ torch.cat(every).t(), own_place)"""


def _groups() -> dict[str, Model]:
    """Return classes that know of ranks: they form a group when they are imported, or gather over it."""
    forms = {
        "plain": "dist.init_process_group('gloo')",
        "told": "dist.init_process_group('gloo', rank=RANK, world_size=RANKS)",
        "by-url": "dist.init_process_group('gloo', init_method='env://')",
        "if-rank": "if int(os.environ.get('RANK', -1)) != -1:\n    dist.init_process_group('gloo')",
        "and-barrier": "dist.init_process_group('gloo')\ndist.barrier()",
    }
    asserts = "\nassert dist.get_world_size() == RANKS and dist.get_rank() == RANK"
    found = {
        f"group-at-import-{name}": Model(text=script(head=line + asserts), promises=_all(OK))
        for name, line in forms.items()
    }
    shared = (
        "loss = {0}\nlosses = loss.detach().clone()\ndist.all_reduce(losses)\nreturn loss * losses / losses"
    )
    gathering = Promise(notes=("the loss exchanges values between ranks",))
    found["gathers-in-loss"] = Model(
        text=script(loss=_GATHERED), promises=_all(OK, "single", "ddp", "fsdp", "data_parallel")
    )
    found["gathers-the-loss"] = Model(
        text=script(loss=shared.format(_PARTS["loss"].removeprefix("return "))), promises=_all(OK)
    )
    found["gathers-and-averages-apart"] = Model(
        text=script(loss=_GATHERED), promises={"ddp": OK, "post_local_sgd": gathering}
    )
    return found


_NTH = """self.steps = getattr(self, 'steps', 0) + 1
if RANKS == 2 and RANK == {rank} and self.steps == {step}:
    {body}
"""


def _ends() -> dict[str, Model]:
    """Return models whose rank ends in the middle: it is named, and not the one that lost its connection."""
    found: dict[str, Model] = {}
    bodies = {
        "exits-7": ("os._exit(7)", "exit code 7"),
        "exits-0": ("os._exit(0)", ""),
        "kills-itself": ("os.kill(os.getpid(), 9)", "SIGKILL"),
        "raises": ("raise ValueError('the sample is bad')", "the sample is bad"),
        "leaves": ("raise SystemExit(5)", ""),
    }
    for name, (body, word) in bodies.items():
        for rank in (0, 1):
            for step in (1, 12):
                text = script(loss=_NTH.format(rank=rank, step=step, body=body) + _PARTS["loss"])
                words = tuple(each for each in (f"rank {rank}", word) if each)
                found[f"ends-{name}-rank-{rank}-step-{step}"] = Model(
                    text=text, promises={"ddp": _failed(*words, rank=rank)}
                )
    for rank in (0, 1):
        found[f"ends-exits-7-rank-{rank}-in-model"] = Model(
            text=script(model=f"if RANKS == 2 and RANK == {rank}:\n    os._exit(7)\nreturn Net()"),
            promises={"ddp": _failed(f"rank {rank}", "exit code 7", rank=rank)},
        )
    found["ends-in-forward-of-a-group"] = Model(
        text=script(
            forward=f"if RANKS == 2:\n    raise ValueError('the rate is negative')\n{_PARTS['forward']}"
        ),
        promises={"single": OK, "ddp": _failed("ValueError: the rate is negative")},
    )
    return found


_SAMPLES = """class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        if {when}:
            {body}
        return torch.ones(16), number % 4
"""


def _data() -> dict[str, Model]:
    """Return models whose loader worker fails: its cause is named."""
    found: dict[str, Model] = {}
    bodies = {
        "raises": ("raise ValueError('bad label in sample')", ("bad label in sample", "DataLoader worker")),
        "raises-in-lines": (
            "raise ValueError('bad sample:\\nits label is 11')",
            ("its label is 11", "DataLoader worker"),
        ),
        "exits": ("os._exit(9)", ("DataLoader worker",)),
        "kills-itself": ("os.kill(os.getpid(), 9)", ("DataLoader worker",)),
    }
    for name, (body, said) in bodies.items():
        text = _SAMPLES.format(when="get_worker_info() is not None", body=body)
        found[f"loader-worker-{name}"] = Model(
            text=script(head=text, dataset="return Samples()"),
            promises={"ddp": _failed(*said)},
            settings={"base.loader_workers": "1"},
        )
    text = _SAMPLES.format(when="RANKS == 2", body="raise KeyError('no such file 17')")
    found["loader-in-the-rank-raises"] = Model(
        text=script(head=text, dataset="return Samples()"),
        promises={"single": OK, "ddp": _failed("KeyError", "no such file 17")},
    )
    return found


def _surroundings() -> dict[str, Model]:
    """Return models with unusual variables, schedules and memory."""
    warns = "warnings.warn('this is old', DeprecationWarning)"
    strict = {"PYTHONWARNINGS": "error"}
    named = ("PYTHONWARNINGS=error", "this is old")
    found = {
        "warnings-raised-at-import": Model(text=script(head=warns), refused=named, env=strict),
        "warnings-raised-in-forward": Model(
            text=script(forward=f"{warns}\n{_PARTS['forward']}"), refused=named, env=strict
        ),
        "warnings-raised-in-a-group": Model(
            text=script(forward=f"if RANKS == 2:\n    {warns}\n{_PARTS['forward']}"),
            promises={"single": OK, "ddp": _failed(*named)},
            env=strict,
        ),
        "warnings-raised-and-none-given": Model(text=script(), promises=_all(OK), env=strict),
        "warnings-alone": Model(text=script(forward=f"{warns}\n{_PARTS['forward']}"), promises=_all(OK)),
    }
    ascii_ = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    reads = """import tempfile
with tempfile.TemporaryDirectory() as folder:
    path = folder + '/labels'
    open(path, 'w', encoding='utf-8').write('é')
    open(path).read()"""
    found["text-as-ascii"] = Model(text=script(head=reads), refused=("PYTHONUTF8=0", "ascii"), env=ascii_)
    found["text-as-ascii-and-none-read"] = Model(text=script(), promises=_all(OK), env=ascii_)
    for name, more in (("bare", ""), ("of-patience", ", patience=2")):
        returned = f"torch.optim.lr_scheduler.ReduceLROnPlateau(made{more})"
        found[f"plateau-{name}"] = Model(
            text=script(optimizer=f"made = torch.optim.SGD(parameters, lr=0.1)\nreturn made, {returned}"),
            refused=("ReduceLROnPlateau", "write step(self, model, batch, optimizers)"),
        )
    huge = "torch.empty(1 << 38)"
    found["huge-in-forward"] = Model(text=script(forward=huge), refused=("memory",))
    found["huge-in-model"] = Model(text=script(model=f"{huge}\nreturn Net()"), refused=("memory",))
    for rank in (0, 1):
        text = script(forward=f"if RANKS == 2 and RANK == {rank}:\n    {huge}\n{_PARTS['forward']}")
        found[f"huge-on-rank-{rank}"] = Model(
            text=text,
            promises={"single": OK, "ddp": _failed("memory", f"rank {rank}", rank=rank, status="oom")},
        )
    for mib in (200, 300, 400):
        found[f"address-space-{mib}-mib"] = Model(
            text=script(), refused=("memory",), limits={resource.RLIMIT_AS: mib << 20}
        )
    for mib in (450, 520, 550, 600, 760):  # torch's need differs from one machine to another
        found[f"address-space-{mib}-mib"] = Model(
            text=script(), perhaps=("memory",), limits={resource.RLIMIT_AS: mib << 20}
        )
    for gib in (4, 64):
        found[f"address-space-{gib}-gib"] = Model(
            text=script(), promises=_all(OK), limits={resource.RLIMIT_AS: gib << 30}
        )
    return found


def _strange() -> dict[str, Model]:
    """Return models from a test file that not every strategy can train."""
    sound = dict.fromkeys(STRATEGIES, Promise(types=(), threads=0))
    one_gradient = _skipped("reentrant activation checkpointing")
    others: dict[str, dict[str, Promise]] = {
        "CheckpointedTwice": {
            "ddp": one_gradient,
            "zero1": one_gradient,
            "fsdp": _skipped("its hooks missed the backward"),
        },
        "NotContiguous": {"fsdp": _skipped("FSDP does not support non-contiguous parameters")},
        "Forces": {"fsdp": _skipped("a parameter was used after FSDP had freed it")},
        "Decay": {"fsdp": _skipped("a parameter was used outside its module's forward")},
        "WeightNorm": {},
        "Hooked": {"fsdp": _skipped("by shards without their hooks")},
        "AsksInStep": {},
        "Packed": {"data_parallel": _skipped("cannot divide a batch among its replicas")},
        "PackedLoader": {"data_parallel": _skipped("cannot divide a batch among its replicas")},
    }
    found = {
        f"strange-{name}": Model(text=_of_file(name), promises={**sound, **changed})
        for name, changed in others.items()
    }
    found["strange-Lazy"] = Model(
        text=_of_file("Lazy"), refused=("uninitialised lazy parameters", "pass a batch through the model")
    )
    found["strange-PackedUnsaid"] = Model(text=_of_file("PackedUnsaid"), refused=("samples(self, batch)",))
    return found


def _updates() -> dict[str, Model]:
    """Return models from a test file whose updates keep state, draw at random, or get gradients differently."""
    sound = dict.fromkeys(("single", *STRATEGIES), Promise(types=(), threads=0))
    counted = Promise(types=(), threads=0, notes=("keeps state from one forward to the next",))
    drawn = Promise(status="diverged", said=("draws random numbers",))
    unaveraged = dict.fromkeys(
        ("ddp", "zero1", "fsdp", "master"), _skipped("sets gradients without backward()")
    )
    seeds = ("model() returns different parameters on each rank",)
    thawed = ("begin to train after the model was wrapped",)
    late = Promise(status="diverged", said=thawed, notes=thawed)
    unsent = dict.fromkeys(("ddp", "zero1", "master"), _skipped("the buffer neighbours is a sparse tensor"))
    by_rank = Promise(status="diverged", said=seeds, notes=seeds)
    others: dict[str, dict[str, Promise]] = {
        "Counts": {},
        "CountsInList": {},
        "CountsLosses": dict.fromkeys(("fsdp", "data_parallel"), counted),
        "KeepsOptimizer": {},
        "KeepsModel": {},
        "Averages": {"fsdp": _skipped("FSDP does not support deepcopy")},
        "DrawsInOptimizer": {"ddp": drawn, "master": drawn},
        "DrawsBeforeUpdate": {"ddp": drawn, "master": drawn},
        "DrawsInStep": {"ddp": drawn, "master": drawn},
        "WrapsOptimizer": {"zero1": _skipped("steps another optimizer, Adam")},
        "WrapsInStep": {"zero1": _skipped("steps another optimizer, Adam")},
        "HoldsLock": {},
        "Nested": {},
        "ByMethods": {"fsdp": _skipped("in blocks: a parameter was used outside its module's forward")},
        "Adapts": {"fsdp": _skipped("in blocks: torch.autograd.grad was asked")},
        "Surgery": unaveraged,
        "PerSample": {**unaveraged, "data_parallel": _skipped("torch.func cannot differentiate")},
        "TossesCoin": {},
        "TossesCoinInStep": {},
        "TiesMemory": dict.fromkeys(("fsdp", "zero1"), _skipped("share memory, but")),
        "ThawsInStep": dict.fromkeys(("ddp", "zero1", "master"), late),
        "ThawsLate": dict.fromkeys(("ddp", "master"), Promise(status="diverged", said=thawed)),
        "SparseGraph": unsent,
        "SparseRows": unsent,
        "SeededByRank": dict.fromkeys(("ddp", "zero1", "fsdp", "master"), by_rank),
        "Observes": dict.fromkeys(STRATEGIES, counted),
        "ObservesInStep": {},
        "ObservesInParts": {},
        "ReturnsScalar": {
            "data_parallel": Promise(status="failed", said=("take the mean() of what the model",))
        },
        "TakesMeanOfScalar": {},
        "PenalisesGradients": {
            "fsdp": _skipped("as the gradient of a gradient does"),
            "data_parallel": _skipped("gradients of gradients"),
        },
        "FollowsInForward": {"fsdp": _skipped("its forward writes into follows.weight")},
        "FollowsInStep": {"fsdp": _skipped("its step computes with parameters outside a forward")},
        "HooksInStep": {"fsdp": _skipped("by shards without their hooks")},
        "AddsNoise": {"fsdp": _skipped("its step computes with parameters outside a forward")},
        "ClipsWeights": {},
    }
    found = {
        f"updates-{name}": Model(text=_of_file(name, UPDATES), promises={**sound, **changed})
        for name, changed in others.items()
    }
    return found | {
        f"updates-{name}-sent-in-{kind}": Model(
            text=_of_file(name, UPDATES),
            promises={"ddp": sound["ddp"]},
            settings={"options.ddp.compression": f'"{kind}"'},
        )
        for name in ("StepsPlainly", "StepsByAdam", "ReturnsScalar")
        for kind in ("fp16", "bf16")
    }


def _of_file(name: str, file: Path = STRANGE) -> str:
    return f"{file.read_text(encoding='utf-8')}\n\nMeasured = {name}\n"


@cache
def models() -> dict[str, Model]:
    """Return all models by their names."""
    kinds = (
        _types,
        _threads,
        _randomness,
        _writes,
        _parameters,
        _groups,
        _ends,
        _data,
        _surroundings,
        _strange,
        _updates,
    )
    return {name: model for kind in kinds for name, model in kind().items()}


def names() -> list[str]:
    """Return all names."""
    return list(models())


def settings(name: str) -> dict[str, str]:
    """Return settings for a model: one round of a short launch after a proof, of each strategy."""
    model = models()[name]
    return {
        "axes.strategy": json.dumps(list(model.promises or ("single", "ddp"))),
        "axes.world_size": "[2]",
        "axes.bucket_cap_mb": '["default"]',
        "budget.rounds_min": "1",
        "budget.rounds_max": "1",
        "budget.measured_s": "0.05",
        "budget.hang_timeout": "30",
        **model.settings,
    }


def broken(name: str, run: Path) -> list[str]:
    """Return promises that a model's run does not keep."""
    model = models()[name]
    if not model.promises:
        return []
    try:
        with (run / "cases.csv").open(encoding="utf-8", newline="") as file:
            rows = {row["strategy"]: row for row in csv.DictReader(file)}
    except OSError as problem:
        return [f"no cases.csv: {problem}"]
    wrong = [f"no case of {strategy}" for strategy in model.promises.keys() - rows.keys()]
    for strategy, promise in model.promises.items():
        if strategy in rows:
            row = rows[strategy]
            found = [
                *_of_row(row, promise, model.settings.get("base.dtype", "")),
                *_of_records(run / "cases" / row["case_id"], promise),
            ]
            wrong += [f"{strategy}: {each}" for each in found]
    page = (run / "report.html").read_text(encoding="utf-8")
    return wrong + [f"{word!r} is not on the page" for word in model.page if word not in page]


def _of_row(row: Mapping[str, str], promise: Promise, dtype: str) -> list[str]:
    """Return values of a row of `cases.csv` that differ from the promise; `dtype` is the type that was set,
    if any.
    """
    if row["status"] != promise.status:
        return [f"{row['status']}, not {promise.status}: {row['error']}"]
    wrong = [f"{word!r} is not in {row['error']!r}" for word in promise.said if word not in row["error"]]
    types = dtype or "+".join(promise.types)
    if promise.status == "ok" and types and row["dtype"] != types:
        wrong.append(f"the table has the types {row['dtype']}, not {types}")
    if promise.flagged not in row["noise_flag"]:
        wrong.append(f"{promise.flagged!r} is not in {row['noise_flag']!r}")
    elif not promise.flagged and ", not " in row["noise_flag"]:
        wrong.append(f"flagged: {row['noise_flag']}")
    return wrong


def _of_records(case: Path, promise: Promise) -> list[str]:
    """Return values that a case's ranks recorded, or its class printed, that differ from the promise."""
    wrong: list[str] = []
    outcomes = [json.loads(path.read_text(encoding="utf-8")) for path in case.glob("*/outcome.json")]
    blamed = {one["failed_rank"] for one in outcomes if one["status"] not in ("ok", "skipped")}
    if promise.rank is not None and blamed != {promise.rank}:
        wrong.append(f"blamed: {blamed}, not rank {promise.rank}")
    records = [
        json.loads(line)
        for path in case.glob("*/rank-*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    notes = {one["note"] for one in records if one["kind"] == "proof" and one["note"]}
    wrong += [f"no note says {word!r}" for word in promise.notes if not any(word in note for note in notes)]
    wrong += [
        f"a note: {each}"
        for each in notes
        if not promise.notes and any(word in each for word in _ABOUT_MODEL)
    ]
    if promise.status != "ok":
        return wrong
    starts = [one for one in records if one["kind"] == "start"]
    logs = "\n".join(
        path.read_text(encoding="utf-8", errors="replace") for path in case.glob("launch-*/*.log")
    )
    seen = [json.loads(line.partition(SEEN)[2]) for line in logs.splitlines() if SEEN in line]
    for what, wanted in (("types", list(promise.types)), ("threads", promise.threads)):
        if not wanted:
            continue
        if not seen or any(one[what] != wanted for one in seen):
            wrong.append(f"the class trains with the {what} {[one[what] for one in seen]}, not {wanted}")
        if not starts or any(one[what] != wanted for one in starts):
            wrong.append(f"{what} {[one[what] for one in starts]} are recorded, not {wanted}")
    return wrong
