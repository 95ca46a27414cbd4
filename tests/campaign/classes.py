"""Users' classes that go wrong, each a script; the trial before any launch should find most of them."""

from __future__ import annotations

_HEAD = """import os, signal, sys, threading, time
import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", "0"))


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def data(count=256):
    return TensorDataset(torch.randn(count, 16), torch.zeros(count, dtype=torch.int64))

"""
_PARTS = {
    "head": "",
    "init": "def __init__(self): pass",
    "model": "def model(self): return build()",
    "dataset": "def dataset(self): return data()",
    "loss": "def loss(self, model, batch): return nn.functional.cross_entropy(model(batch[0]), batch[1])",
    "optimizer": "def optimizer(self, parameters): return torch.optim.SGD(parameters, lr=0.01)",
    "batch": "batch = 4",
}

_RAISES = "raise RuntimeError('broken \\x1b[31mhere\\x07')"
_BODIES = {
    "raises": _RAISES,
    "exits": "sys.exit(3)",
    "exits-zero": "sys.exit(0)",
    "ends-the-process": "os._exit(0)",
    "kills-itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "returns-nothing": "return None",
    "returns-text": "return 'text'",
    "interrupts": "raise KeyboardInterrupt",
    "recurses": "return self.{hook}(*a)",
    "prints-much": "print('x' * 5_000_000); return {sound}",
    "floods-standard-error": "sys.stderr.write('\\x1b[2J' * 100_000); return {sound}",
    "closes-standard-output": "os.close(1); return {sound}",
    "forks": "os.fork(); return {sound}",
    "leaves-a-child": "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); return {sound}",
    "leaves-a-thread": "threading.Thread(target=time.sleep, args=(1000,)).start(); return {sound}",
    "changes-folder": "os.chdir('/'); return {sound}",
    "clears-the-environment": "os.environ.clear(); return {sound}",
    "ignores-signals": "signal.signal(signal.SIGTERM, signal.SIG_IGN); return {sound}",
    "sleeps": "time.sleep(1000)",
    "sleeps-on-rank-1": "time.sleep(1000 * RANK); return {sound}",
    "raises-on-rank-1": "1 / (1 - RANK); return {sound}",
    "needs-a-gpu": "torch.zeros(1, device='cuda'); return {sound}",
    "asks-for-a-tebibyte": "torch.empty(1 << 38); return {sound}",
}
_SOUND = {
    "__init__": "None",
    "model": "build()",
    "dataset": "data()",
    "loss": "nn.functional.cross_entropy(a[0](a[1][0]), a[1][1])",
    "optimizer": "torch.optim.SGD(a[0], lr=0.01)",
}
_GOES_ON = {
    "prints-much",
    "floods-standard-error",
    "closes-standard-output",
    "forks",
    "leaves-a-child",
    "leaves-a-thread",
    "changes-folder",
    "clears-the-environment",
    "ignores-signals",
}
"""Bodies after which a class may train like any other."""

_OTHERS = {
    "no-samples": {"dataset": "def dataset(self): return data(0)"},
    "few-samples": {"dataset": "def dataset(self): return data(5)"},
    "few-samples-on-rank-1": {"dataset": "def dataset(self): return data(256 if RANK == 0 else 3)"},
    "not-a-number": {"loss": "def loss(self, model, batch): return model(batch[0]).sum() * float('nan')"},
    "no-gradient": {"loss": "def loss(self, model, batch): return model(batch[0]).sum().detach()"},
    "loss-of-many": {"loss": "def loss(self, model, batch): return model(batch[0])"},
    "loss-is-a-float": {"loss": "def loss(self, model, batch): return 1.0"},
    "wrong-parameters": {
        "optimizer": "def optimizer(self, p): return torch.optim.SGD(build().parameters(), lr=0.01)"
    },
    "no-parameters": {"model": "def model(self): return nn.Identity()"},
    "one-model-for-all": {"head": "MODEL = build()", "model": "def model(self): return MODEL"},
    "rank-in-the-model": {
        "model": "def model(self):\n        m = build(); m[0].weight.data += RANK; return m"
    },
    "takes-an-argument": {"init": "def __init__(self, needed): pass"},
    "batch-of-zero": {"batch": "batch = 0"},
    "batch-below-zero": {"batch": "batch = -4"},
    "batch-is-text": {"batch": "batch = 'four'"},
    "batch-is-huge": {"batch": "batch = 10 ** 400"},
    "no-model": {"model": ""},
    "no-dataset": {"dataset": ""},
    "syntax-error": {"head": "def ("},
    "raises-at-import": {"head": _RAISES},
    "exits-at-import": {"head": "sys.exit(0)"},
    "sleeps-at-import": {"head": "time.sleep(1000)"},
    "a-null-byte": {"head": "x = '\0'"},
    "parses-flags": {"head": "import argparse\nargparse.ArgumentParser().parse_args()"},
    "starts-to-train-at-import": {"head": "import torch.distributed as d\nd.init_process_group('gloo')"},
    "no-class": {"head": "Measured = 5\nclass Other: pass\nraise SystemExit"},
}


def _script(parts: dict[str, str]) -> str:
    own = {**_PARTS, **parts}
    body = "\n".join(
        f"    {own[name]}" for name in ("init", "model", "dataset", "loss", "optimizer", "batch")
    )
    return f"{_HEAD}{own['head']}\n\n\nclass Measured:\n{body}\n"


SOUND = _script({})


def names() -> list[str]:
    """Return the names of all of them."""
    return [f"{hook}-{body}" for hook in _SOUND for body in _BODIES] + list(_OTHERS)


def _divided(name: str) -> tuple[str, str]:
    hook = next(hook for hook in _SOUND if name.startswith(f"{hook}-"))
    return hook, name.removeprefix(f"{hook}-")


def source(name: str) -> str:
    """Return the script of a name."""
    if name in _OTHERS:
        return _script(_OTHERS[name])
    hook, body = _divided(name)
    text = _BODIES[body].replace("{hook}", hook).replace("{sound}", _SOUND[hook])
    return _script({hook if hook != "__init__" else "init": f"def {hook}(self, *a): {text}"})


def codes(name: str) -> tuple[int, ...]:
    """Return the exit codes that a sweep of it may end with."""
    if name in ("starts-to-train-at-import", "parses-flags"):
        return (0,)
    if name not in _OTHERS:
        hook, body = _divided(name)
        if body in _GOES_ON or body == "needs-a-gpu" or (hook, body) == ("__init__", "returns-nothing"):
            return (0, 1, 2)
    return (1, 2)
