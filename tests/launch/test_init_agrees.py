"""A class that `ddpbench init` writes has the losses of its script, or is unfinished and names the line at fault."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ddpbench.launch.own_class import Script, Written, can_guard, inserted, read_script, written_class

STEPS = 12
FRAME = """
import argparse, contextlib, copy, itertools, math, os, random
from collections import Counter, ChainMap, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from types import SimpleNamespace
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.linspace(-1, 1, 256).reshape(64, 4)
Y = X.sum(1, keepdim=True)
TOP

def main(TAKEN):
    BEFORE
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    MID
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=BATCH):
        FIRST
        loss = F.mse_loss(model(x), y) * SCALE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AFTER

if __name__ == "__main__":
    GUARD
    main(GIVEN)
"""
PLAIN = {
    "TOP": "",
    "BEFORE": "pass",
    "RATE": "0.1",
    "MID": "pass",
    "BATCH": "8",
    "FIRST": "pass",
    "SCALE": "1.0",
    "AFTER": "pass",
    "GUARD": "pass",
    "TAKEN": "",
    "GIVEN": "",
}
OPTIONS = """parser = argparse.ArgumentParser()
parser.add_argument('--lr', type=float, default=0.1)
parser.add_argument('--wd', type=float, default=0.3)
parser.add_argument('--bs', type=int, default=16)
args = parser.parse_args()
"""
PARSE = "def parse():\n" + textwrap.indent(OPTIONS, "    ")
SETTINGS = """@dataclass
class Config:
    lr: float = 0.1
    bs: int = 16
    betas: list = field(default_factory=lambda: [0.1, 0.2])
    def double(self):
        self.lr *= 2
    def with_lr(self, lr):
        return replace(self, lr=lr)
"""

CHANGED: dict[str, dict[str, str]] = {
    "tune top": {
        "TOP": "CFG = {'lr': 0.1}\ndef tune(cfg):\n    cfg['lr'] = 0.5",
        "BEFORE": "tune(CFG)",
        "RATE": "CFG['lr']",
    },
    "tune local": {
        "TOP": "def tune(cfg):\n    cfg['lr'] = 0.5",
        "BEFORE": "cfg = {'lr': 0.1}\ntune(cfg)",
        "RATE": "cfg['lr']",
    },
    "tune guard": {
        "TOP": "CFG = {'lr': 0.1}\ndef tune(cfg):\n    cfg['lr'] = 0.5",
        "GUARD": "tune(CFG)",
        "RATE": "CFG['lr']",
    },
    "tune alias": {"TOP": "CFG = {'lr': 0.1}", "BEFORE": "mine = CFG\nmine['lr'] = 0.5", "RATE": "CFG['lr']"},
    "tune lambda": {
        "TOP": "CFG = {'lr': 0.1}",
        "BEFORE": "f = lambda c: c.update(lr=0.5)\nf(CFG)",
        "RATE": "CFG['lr']",
    },
    "tune update": {"TOP": "CFG = {'lr': 0.1}", "BEFORE": "CFG.update(lr=0.5)", "RATE": "CFG['lr']"},
    "tune update guard": {"TOP": "CFG = {'lr': 0.1}", "GUARD": "CFG.update(lr=0.5)", "RATE": "CFG['lr']"},
    "set guard": {"TOP": "CFG = {'lr': 0.1}", "GUARD": "CFG['lr'] = 0.5", "RATE": "CFG['lr']"},
    "set in main": {"TOP": "CFG = {'lr': 0.1}", "BEFORE": "CFG['lr'] = 0.5", "RATE": "CFG['lr']"},
    "nested before": {
        "BEFORE": "cfg = {'opt': {'lr': 0.1}}\ncfg['opt']['lr'] = 0.5",
        "RATE": "cfg['opt']['lr']",
    },
    "nested top": {
        "TOP": "CFG = {'opt': {'lr': 0.1}}",
        "BEFORE": "CFG['opt']['lr'] = 0.5",
        "RATE": "CFG['opt']['lr']",
    },
    "nested alias": {
        "BEFORE": "cfg = {'opt': {'lr': 0.1}}\no = cfg['opt']\no['lr'] = 0.5",
        "RATE": "cfg['opt']['lr']",
    },
    "nested param": {
        "TOP": "def tune(o):\n    o['lr'] = 0.5",
        "BEFORE": "cfg = {'opt': {'lr': 0.1}}\ntune(cfg['opt'])",
        "RATE": "cfg['opt']['lr']",
    },
    "nested setdefault": {
        "BEFORE": "cfg = {'opt': {}}\ncfg.setdefault('opt', {})['lr'] = 0.5",
        "RATE": "cfg['opt']['lr']",
    },
    "pop mid": {"BEFORE": "vals = [0.1, 0.5]\nlr = vals.pop()", "RATE": "lr", "SCALE": "vals[-1]"},
    "pop two": {"BEFORE": "vals = [0.1, 0.5]\na = vals.pop()\nb = vals.pop()", "RATE": "a", "SCALE": "b"},
    "pop index": {"BEFORE": "vals = [0.1, 0.5]\nvals.pop(0)", "RATE": "vals[0]"},
    "popleft": {"BEFORE": "vals = deque([0.1, 0.5])\na = vals.popleft()", "RATE": "vals[0]", "SCALE": "a"},
    "next it": {"BEFORE": "it = iter([0.1, 0.5])\nnext(it)", "RATE": "next(it)"},
    "next two": {"BEFORE": "it = iter([0.1, 0.5])\na = next(it)\nb = next(it)", "RATE": "b", "SCALE": "a"},
    "extend param": {
        "TOP": "def more(v):\n    v.append(0.5)",
        "BEFORE": "vals = [0.1]\nmore(vals)",
        "RATE": "vals[-1]",
    },
    "plus eq alias": {"BEFORE": "vals = [0.1]\nv = vals\nv += [0.5]", "RATE": "vals[-1]"},
    "sort": {"BEFORE": "vals = [0.5, 0.1]\nvals.sort()", "RATE": "vals[0]"},
    "reverse": {"BEFORE": "vals = [0.5, 0.1]\nvals.reverse()", "RATE": "vals[0]"},
    "del entry": {"BEFORE": "vals = [0.5, 0.1]\ndel vals[0]", "RATE": "vals[0]"},
    "heap": {"BEFORE": "import heapq\nvals = [0.5, 0.1]\nheapq.heapify(vals)", "RATE": "vals[0]"},
    "shuffle fn": {"BEFORE": "vals = [0.5, 0.1, 0.3]\nrandom.Random(1).shuffle(vals)", "RATE": "vals[0]"},
    "cond": {
        "BEFORE": "big = os.cpu_count() > 10000\nif big:\n    lr = 0.5\nelse:\n    lr = 0.1",
        "RATE": "lr",
    },
    "cond2": {"BEFORE": "lr = 0.5\nif len(X) < 100:\n    lr = 0.1", "RATE": "lr"},
    "globals": {"TOP": "LR = 0.1", "BEFORE": "globals()['LR'] = 0.5", "RATE": "LR"},
    "global guard": {"TOP": "LR = 0.1", "GUARD": "LR = 0.5", "RATE": "LR"},
    "nonlocal": {"BEFORE": "lr = 0.1\ndef tune():\n    nonlocal lr\n    lr = 0.5\ntune()", "RATE": "lr"},
    "closure cell": {"BEFORE": "lr = 0.1\nget = lambda: lr\nlr = 0.5", "RATE": "get()"},
    "closure counter": {
        "TOP": (
            "def make():\n    n = [0.1]\n    def f():\n        n[0] += 0.1\n        return n[0]\n    return f"
        ),
        "BEFORE": "f = make()\nf()",
        "RATE": "f()",
    },
    "default mutable": {
        "TOP": "def rate(seen=[]):\n    seen.append(1)\n    return 0.1 * len(seen)",
        "BEFORE": "rate()",
        "RATE": "rate()",
    },
    "func attr": {
        "TOP": "def rate():\n    return rate.value\nrate.value = 0.1",
        "BEFORE": "rate.value = 0.5",
        "RATE": "rate.value",
    },
    "func attr call": {
        "TOP": "def rate():\n    return rate.value\nrate.value = 0.1",
        "BEFORE": "rate.value = 0.5",
        "RATE": "rate()",
    },
    "args aug": {"BEFORE": OPTIONS + "args.lr *= 2", "RATE": "args.lr"},
    "args setattr": {"BEFORE": OPTIONS + "setattr(args, 'lr', 0.5)", "RATE": "args.lr"},
    "args vars": {"BEFORE": OPTIONS + "vars(args)['lr'] = 0.5", "RATE": "args.lr"},
    "args vars alias": {"BEFORE": OPTIONS + "v = vars(args)\nv['lr'] = 0.5", "RATE": "args.lr"},
    "args dict": {"BEFORE": OPTIONS + "args.__dict__.update(lr=0.5)", "RATE": "args.lr"},
    "args param": {
        "TOP": "def tune(a):\n    a.lr = 0.5",
        "BEFORE": OPTIONS + "tune(args)",
        "RATE": "args.lr",
    },
    "args scale": {"BEFORE": OPTIONS + "args.lr = args.lr * args.bs / 16", "RATE": "args.lr"},
    "args loop": {
        "BEFORE": OPTIONS + "for k, v in {'lr': 0.5}.items():\n    setattr(args, k, v)",
        "RATE": "args.lr",
    },
    "args in fn post": {
        "TOP": PARSE + "    return args",
        "BEFORE": "args = parse()\nargs.lr *= 3",
        "RATE": "args.lr",
    },
    "args namespace": {
        "BEFORE": (
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', type=float, default=0.1)\n"
            "parser.add_argument('--wd', type=float, default=0.3)\n"
            "parser.add_argument('--bs', type=int, default=16)\n"
            "args = parser.parse_args(namespace=argparse.Namespace(lr=0.5))"
        ),
        "RATE": "args.lr",
    },
    "args known": {
        "BEFORE": (
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', type=float, default=0.1)\n"
            "parser.add_argument('--wd', type=float, default=0.3)\n"
            "parser.add_argument('--bs', type=int, default=16)\n"
            "args, _ = parser.parse_known_args()"
        ),
        "RATE": "args.lr",
    },
    "args twice": {
        "BEFORE": OPTIONS
        + "other = argparse.ArgumentParser()\nother.add_argument('--lr', type=float, default=0.7)\n"
        "o = other.parse_args([])",
        "RATE": "o.lr",
        "SCALE": "args.lr",
    },
    "ns alias": {"BEFORE": "cfg = SimpleNamespace(lr=0.1)\nc = cfg\nc.lr = 0.5", "RATE": "cfg.lr"},
    "ns top param": {
        "TOP": "CFG = SimpleNamespace(lr=0.1)\ndef tune(c):\n    c.lr = 0.5",
        "BEFORE": "tune(CFG)",
        "RATE": "CFG.lr",
    },
    "dc method": {"TOP": SETTINGS, "BEFORE": "cfg = Config()\ncfg.double()", "RATE": "cfg.lr"},
    "dc list": {"TOP": SETTINGS, "BEFORE": "cfg = Config()\ncfg.betas.append(0.7)", "RATE": "cfg.betas[-1]"},
    "dc class set": {"TOP": SETTINGS, "BEFORE": "Config.lr = 0.5\ncfg = Config()", "RATE": "Config.lr"},
    "dc param": {
        "TOP": SETTINGS + "def tune(c):\n    c.lr = 0.5",
        "BEFORE": "cfg = Config()\ntune(cfg)",
        "RATE": "cfg.lr",
    },
    "dc top param": {
        "TOP": SETTINGS + "CFG = Config()\ndef tune(c):\n    c.lr = 0.5",
        "BEFORE": "tune(CFG)",
        "RATE": "CFG.lr",
    },
    "dc top method": {"TOP": SETTINGS + "CFG = Config()", "BEFORE": "CFG.double()", "RATE": "CFG.lr"},
    "dc top guard": {"TOP": SETTINGS + "CFG = Config()", "GUARD": "CFG.lr = 0.4", "RATE": "CFG.lr"},
    "dc setattr": {
        "TOP": SETTINGS + "CFG = Config()",
        "BEFORE": "for k in ('lr',):\n    setattr(CFG, k, 0.5)",
        "RATE": "CFG.lr",
    },
    "updated dictionary": {
        "TOP": "class C:\n    def __init__(self):\n        self.lr = 0.1\n"
        "    def update(self, **kw):\n        self.__dict__.update(kw)",
        "BEFORE": "c = C()\nc.update(lr=0.5)",
        "RATE": "c.lr",
    },
    "cls attr set": {"TOP": "class C:\n    lr = 0.1", "BEFORE": "C.lr = 0.5", "RATE": "C.lr"},
    "cls attr guard": {"TOP": "class C:\n    lr = 0.1", "GUARD": "C.lr = 0.5", "RATE": "C.lr"},
    "cls attr setattr": {"TOP": "class C:\n    lr = 0.1", "BEFORE": "setattr(C, 'lr', 0.5)", "RATE": "C.lr"},
    "cls attr alias": {"TOP": "class C:\n    lr = 0.1\nD = C", "BEFORE": "D.lr = 0.5", "RATE": "C.lr"},
    "cls attr type": {"TOP": "class C:\n    lr = 0.1", "BEFORE": "c = C()\ntype(c).lr = 0.5", "RATE": "C.lr"},
    "cls inherit": {
        "TOP": "class B:\n    lr = 0.1\nclass C(B):\n    pass",
        "BEFORE": "B.lr = 0.5",
        "RATE": "C.lr",
    },
    "cls param": {
        "TOP": "class C:\n    lr = 0.1\ndef tune(k):\n    k.lr = 0.5",
        "BEFORE": "tune(C)",
        "RATE": "C.lr",
    },
    "cls descr": {
        "TOP": (
            "class D:\n"
            "    n = 0.0\n"
            "    def __get__(self, o, t=None):\n"
            "        D.n += 0.1\n"
            "        return D.n\n"
            "class C:\n"
            "    lr = D()"
        ),
        "BEFORE": "c = C()\nc.lr",
        "RATE": "c.lr",
    },
    "chainmap": {
        "BEFORE": "over = {}\ncfg = ChainMap(over, {'lr': 0.1})\nover['lr'] = 0.5",
        "RATE": "cfg['lr']",
    },
    "gen": {
        "TOP": "def rates():\n    yield 0.1\n    yield 0.5",
        "BEFORE": "g = rates()\nnext(g)",
        "RATE": "next(g)",
    },
    "gen exp": {"BEFORE": "g = (v for v in (0.1, 0.5))\nnext(g)", "RATE": "list(g)[0]"},
    "gen list twice": {
        "BEFORE": "g = (v for v in (0.1, 0.5))\na = sum(g)\nb = sum(g)",
        "RATE": "a",
        "SCALE": "(1.0 + b)",
    },
    "map twice": {
        "BEFORE": "m = map(float, ['0.1', '0.5'])\na = max(m)\nb = len(list(m))",
        "RATE": "a",
        "SCALE": "(1.0 + b)",
    },
    "cycle": {"BEFORE": "cy = itertools.cycle([0.1, 0.5])\nnext(cy)", "SCALE": "next(cy)"},
    "prop count": {
        "TOP": (
            "class R:\n"
            "    n = 0\n"
            "    @property\n"
            "    def lr(self):\n"
            "        self.n += 1\n"
            "        return 0.1 * self.n"
        ),
        "BEFORE": "r = R()\nr.lr",
        "RATE": "r.lr",
    },
    "call count": {
        "TOP": (
            "class R:\n"
            "    def __init__(self):\n"
            "        self.n = 0\n"
            "    def __call__(self):\n"
            "        self.n += 1\n"
            "        return 0.1 * self.n"
        ),
        "BEFORE": "r = R()\nr()",
        "RATE": "r()",
    },
    "monkey cls": {
        "TOP": "class Net(nn.Linear):\n    pass",
        "BEFORE": "Net.forward = lambda self, x: x.sum(1, keepdim=True) * self.weight.sum()",
        "SCALE": "Net(4, 1)(x).mean().detach()",
    },
    "partial up": {
        "BEFORE": "make = partial(dict, lr=0.1)\nmake.keywords['lr'] = 0.5\ncfg = make()",
        "RATE": "cfg['lr']",
    },
    "copy shallow": {
        "BEFORE": "base = {'o': {'lr': 0.1}}\ncfg = dict(base)\ncfg['o']['lr'] = 0.5",
        "RATE": "base['o']['lr']",
    },
    "ops attr": {
        "TOP": "import operator",
        "BEFORE": "cfg = {'lr': 0.1}\noperator.setitem(cfg, 'lr', 0.5)",
        "RATE": "cfg['lr']",
    },
    "container in": {"BEFORE": "cfg = {'lr': 0.1}\nall_ = [cfg]\nall_[0]['lr'] = 0.5", "RATE": "cfg['lr']"},
    "container loop": {
        "BEFORE": "a = {'lr': 0.1}\nb = {'lr': 0.2}\nfor d in (a, b):\n    d['lr'] *= 3",
        "RATE": "a['lr']",
    },
    "obj holds": {
        "TOP": (
            "class T:\n"
            "    def __init__(self, cfg):\n"
            "        self.cfg = cfg\n"
            "    def go(self):\n"
            "        self.cfg['lr'] = 0.5"
        ),
        "BEFORE": "cfg = {'lr': 0.1}\nt = T(cfg)\nt.go()",
        "RATE": "cfg['lr']",
    },
    "ret alias": {
        "TOP": "def same(c):\n    return c",
        "BEFORE": "cfg = {'lr': 0.1}\nd = same(cfg)\nd['lr'] = 0.5",
        "RATE": "cfg['lr']",
    },
    "tensor slice": {"TOP": "W = torch.ones(2)", "BEFORE": "W[0] = 0.5", "SCALE": "W[0]"},
    "tensor out": {"TOP": "W = torch.ones(1)", "BEFORE": "torch.mul(W, 0.5, out=W)", "SCALE": "W"},
    "data inplace": {"BEFORE": "X.mul_(0.5)"},
    "data set": {"BEFORE": "Y[:, 0] = 1.0"},
    "data norm": {"BEFORE": "global X\nX = (X - X.mean()) / X.std()"},
    "data guard": {"GUARD": "X = X * 2"},
    "data fn": {"TOP": "def norm(x):\n    x -= 0.3", "BEFORE": "norm(X)"},
    "np inplace": {
        "TOP": "import numpy as np\nA = np.ones(2)",
        "BEFORE": "A[0] = 0.5",
        "SCALE": "float(A[0])",
    },
    "pg before": {"MID": "optimizer.param_groups[0]['lr'] = 0.5"},
    "pg before loop": {"MID": "for g in optimizer.param_groups:\n    g['lr'] = 0.5"},
    "pg mom": {"MID": "optimizer.param_groups[0]['momentum'] = 0.9"},
    "pg update": {"MID": "optimizer.param_groups[0].update(lr=0.5)"},
    "pg alias": {"MID": "g = optimizer.param_groups[0]\ng['lr'] = 0.5"},
    "pg aug": {"MID": "optimizer.param_groups[0]['lr'] *= 3"},
    "pg fn": {
        "TOP": "def warm(o, lr):\n    for g in o.param_groups:\n        g['lr'] = lr",
        "MID": "warm(optimizer, 0.5)",
    },
    "pg defaults": {"MID": "optimizer.defaults['lr'] = 0.5"},
    "pg load": {
        "MID": (
            "st = optimizer.state_dict()\nst['param_groups'][0]['lr'] = 0.5\noptimizer.load_state_dict(st)"
        )
    },
    "pg add": {"MID": "optimizer.add_param_group({'params': [nn.Parameter(torch.ones(1))], 'lr': 0.3})"},
    "bs list": {"BEFORE": "sizes = [8, 16]\nsizes.reverse()", "BATCH": "sizes[0]"},
    "bs dict param": {
        "TOP": "def tune(c):\n    c['bs'] = 16",
        "BEFORE": "cfg = {'bs': 8}\ntune(cfg)",
        "BATCH": "cfg['bs']",
    },
    "given by stars": {"TAKEN": "lr=0.5", "GIVEN": "**{'lr': 0.1}", "RATE": "lr"},
    "given by a star": {"TAKEN": "lr=0.5", "GIVEN": "*[0.1]", "RATE": "lr"},
    "given by itself": {
        "TAKEN": "lr=0.4",
        "BEFORE": "if lr > 0.1:\n    return main(lr / 8)",
        "RATE": "lr",
    },
}
"""Changes in a script that a class could miss."""

TUNED = """def given(**more):
    def decorator(function):
        def inner(*args, **kwargs):
            return function(*args, **{**kwargs, **more})
        return inner
    return decorator

def doubled(function):
    return lambda lr=0.1: function(lr * 2)

def twice(function):
    def inner(*args, **kwargs):
        function(*args, **kwargs)
        return function(*args, **kwargs)
    return inner

def launch(function, *args):
    function(*args)

"""
OTHERWISE: dict[str, tuple[str, str]] = {
    "decorator with values": ("@given(lr=0.5)\n", "main()"),
    "decorator that replaces": ("@doubled\n", "main()"),
    "decorator of an argument": ("@doubled\n", "main(0.2)"),
    "two decorators": ("@torch.enable_grad()\n@doubled\n", "main(0.2)"),
    "decorator as a call": ("", "main = doubled(main)\n    main()"),
    "partial": ("", "run = partial(main, lr=0.5)\n    run()"),
    "other name": ("", "run = main\n    run(0.5)"),
    "passed on": ("", "launch(main, 0.5)"),
    "passed on and called": ("", "launch(main, 0.5)\n    main()"),
    "in a list": ("", "for run in [main]:\n        run(0.5)"),
    "map": ("", "list(map(main, [0.5]))"),
    "lambda": ("", "run = lambda: main(0.5)\n    run()"),
    "defaults": ("", "main.__defaults__ = (0.5,)\n    main()"),
    "thread": (
        "",
        "import threading\n    run = threading.Thread(target=main, args=(0.5,))\n    run.start()\n    run.join()",
    ),
}
"""Decorators and calls by which `main(lr=0.1)` gets another learning rate than a call of it shows."""
AS_SHOWN = {
    "no decorator": ("", "main(0.2)"),
    "of torch": ("@torch.enable_grad()\n", "main(0.2)"),
    "that passes on": (
        (
            "def timed(function):\n    def inner(*args, **kwargs):\n        print(function.__name__)\n"
            "        made = function(*args, **kwargs)\n        return made\n    return inner\n\n@timed\n"
        ),
        "main(0.2)",
    ),
    "with arguments that passes on": (
        (
            "import functools\ndef timed(label):\n    def decorator(function):\n        @functools.wraps(function)\n"
            "        def inner(*args, **kwargs):\n            return function(*args, **kwargs)\n"
            "        return inner\n    return decorator\n\n@timed('x')\n"
        ),
        "main(0.2)",
    ),
    "that registers": (
        (
            "KNOWN = {}\ndef register(function):\n    KNOWN[function.__name__] = function\n    return function\n\n"
            "@register\n"
        ),
        "main(0.2)",
    ),
}

REPLACED = [
    "lr *= 2",
    "lr = lr * 2",
    "lr: float = lr * 2",
    "bs, lr = bs * 2, lr / 4",
    "*_, lr = bs, lr * 2",
    "[lr] = [0.5]",
    "lr = other = 0.5",
    "lr = max(lr, 0.4)",
    "lr = lr * 2 if len(X) > 8 else lr",
    "lr = lr or 0.3\nlr += 0.1",
    "lr = scaled(lr)",
    "lr = 0.5 if len(X) > 8 else lr",
    "lr = bs / 16",
    "if len(X) > 8:\n    lr = 0.5",
    "if len(X) > 8:\n    lr = 0.5\nelse:\n    lr = 0.3",
    "while lr < 0.3:\n    lr *= 2",
    "for lr in (0.3, 0.5):\n    pass",
    "for _ in range(2):\n    lr += 0.1",
    "with contextlib.nullcontext(0.5) as lr:\n    pass",
    "try:\n    lr = [0.5][0]\nexcept IndexError:\n    pass",
    "try:\n    [][0]\nexcept IndexError:\n    lr = 0.5",
    "try:\n    pass\nfinally:\n    lr = 0.5",
    "del lr\nlr = 0.5",
    "(lr := 0.5)",
    "if (lr := 0.5) > 0:\n    pass",
    "assert (lr := 0.5)",
    "[lr := each for each in (0.3, 0.5)]",
    "while (lr := lr + 0.1) < 0.4:\n    pass",
    "match bs:\n    case 8:\n        lr = 0.5",
    "match 0.5:\n    case lr:\n        pass",
    "match [0.3, 0.5]:\n    case [_, *rest]:\n        lr = rest[0]",
    "match {'lr': 0.5}:\n    case {'lr': lr}:\n        pass",
    "def tune():\n    nonlocal lr\n    lr = 0.5\ntune()",
    "def tune():\n    nonlocal lr\n    lr *= 2\ntune()",
    "def tune():\n    nonlocal lr\n    for lr in (0.3, 0.5):\n        pass\ntune()",
    "def tune():\n    nonlocal lr\n    lr, rest = 0.5, 1\ntune()",
    "def tune():\n    nonlocal lr\n    return (lr := 0.5)\ntune()",
    "tune = lambda: [0.5]\n[lr] = tune()",
]
"""Statements after which a function's parameter `lr` is not the number that the function was called with."""

REFILLED = [
    "cfg = {**cfg, 'lr': 0.5}",
    "cfg = {**cfg, **{'lr': 0.5}}",
    "cfg = dict(cfg, lr=0.5)",
    "cfg = cfg | {'lr': 0.5}",
    "cfg |= {'lr': 0.5}",
    "cfg['lr'] = 0.5",
    "cfg['lr'] *= 2",
    "cfg.update(lr=0.5)",
    "cfg = copy.deepcopy(cfg)\ncfg['lr'] = 0.5",
    "mine = cfg\nmine['lr'] = 0.5",
    "cfg = raised(cfg)",
    "cfg = cfg.copy()\ncfg.update(lr=0.5)",
    "cfg = {key: value * 2 for key, value in cfg.items()}",
    "if len(X) > 8:\n    cfg = {'lr': 0.5}",
    "for cfg in (cfg, {'lr': 0.5}):\n    pass",
    "setter = cfg.__setitem__\nsetter('lr', 0.5)",
    "for key in cfg:\n    cfg[key] = 0.5",
    "def tune():\n    cfg['lr'] = 0.5\ntune()",
    "CFG['lr'] = 0.5",
    "cfg, other = {'lr': 0.5}, cfg",
]
"""Statements after which the entry `lr` of a function's parameter `cfg` is another one."""

SAME: dict[str, dict[str, str]] = {
    "tune import": {
        "TOP": "CFG = {'lr': 0.1}\ndef tune(cfg):\n    cfg['lr'] = 0.5\ntune(CFG)",
        "RATE": "CFG['lr']",
    },
    "nested after": {
        "TOP": "CFG = {'opt': {'lr': 0.1}}",
        "MID": "CFG['opt']['lr'] = 0.5",
        "RATE": "CFG['opt']['lr']",
    },
    "pop": {"BEFORE": "vals = [0.1, 0.5]", "RATE": "vals.pop()"},
    "next count": {"BEFORE": "it = itertools.count(1)", "SCALE": "next(it)"},
    "swap": {"BEFORE": "a, b = 0.1, 0.5\na, b = b, a", "RATE": "a"},
    "rebind after": {"BEFORE": "lr = 0.1", "MID": "lr = 0.5", "RATE": "lr", "SCALE": "lr"},
    "rebind expr": {"BEFORE": "base = 0.1\nlr = base * 2\nbase = 5.0", "RATE": "lr"},
    "chain rebind": {"BEFORE": "a = 0.1\nb = a\na = 0.5", "RATE": "b", "SCALE": "a"},
    "del": {"BEFORE": "lr = 0.5\ndel lr\nlr = 0.1", "RATE": "lr"},
    "parameter": {"TAKEN": "lr=0.5, bs=16", "GIVEN": "0.1, bs=8", "RATE": "lr", "BATCH": "bs"},
    "parameter set after": {"TAKEN": "lr=0.1", "MID": "lr = 0.5", "RATE": "lr"},
    "parameter scaled after": {"TAKEN": "lr=0.1", "MID": "lr *= 2", "RATE": "lr"},
    "parameter set after if": {"TAKEN": "lr=0.1", "MID": "if len(X) > 8:\n    lr = 0.5", "RATE": "lr"},
    "parameter as item after": {"TAKEN": "lr=0.1", "MID": "for lr in (0.3, 0.5):\n    pass", "RATE": "lr"},
    "parameter set in step": {"TAKEN": "bs=8", "AFTER": "bs = 16", "BATCH": "bs"},
    "parameter set before": {"TAKEN": "lr=0.1", "BEFORE": "lr = 0.5", "RATE": "lr"},
    "parameter None": {"TAKEN": "lr=None", "BEFORE": "if lr is None:\n    lr = 0.5", "RATE": "lr"},
    "parameter of another": {
        "TOP": "def shown(lr):\n    lr = lr * 100\n    return lr",
        "TAKEN": "lr=0.1",
        "BEFORE": "print(shown(lr))",
        "RATE": "lr",
    },
    "parameter under another name": {
        "TAKEN": "lr=0.1, bs=8",
        "BEFORE": "scaled = lr * bs / 16",
        "RATE": "scaled",
        "BATCH": "bs",
    },
    "global main": {"TOP": "LR = 0.1", "BEFORE": "global LR\nLR = 0.5", "RATE": "LR"},
    "global guard only": {"GUARD": "LR = 0.5", "RATE": "LR"},
    "args": {"BEFORE": OPTIONS, "RATE": "args.lr", "BATCH": "args.bs"},
    "args set": {"BEFORE": OPTIONS + "args.lr = 0.5", "RATE": "args.lr"},
    "args vars read": {"BEFORE": OPTIONS + "v = vars(args)\nprint(v)", "RATE": "args.lr"},
    "args cond": {"BEFORE": OPTIONS + "if args.bs > 8:\n    args.lr = 0.5", "RATE": "args.lr"},
    "args print": {
        "BEFORE": OPTIONS + "print(args)\nprint(f'{args}', vars(args))",
        "RATE": "args.lr",
        "BATCH": "args.bs",
    },
    "args in fn": {"TOP": PARSE + "    return args", "BEFORE": "args = parse()", "RATE": "args.lr"},
    "args action": {
        "BEFORE": (
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', type=float, default=0.1)\n"
            "parser.add_argument('--wd', type=float, default=0.3)\n"
            "parser.add_argument('--bs', type=int, default=16)\n"
            "parser.set_defaults(lr=0.5)\n"
            "args = parser.parse_args()"
        ),
        "RATE": "args.lr",
    },
    "args const": {
        "BEFORE": (
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', type=float, nargs='?', const=0.5, default=0.1)\n"
            "parser.add_argument('--wd', type=float, default=0.3)\n"
            "parser.add_argument('--bs', type=int, default=16)\n"
            "args = parser.parse_args()"
        ),
        "RATE": "args.lr",
    },
    "args type float": {
        "BEFORE": (
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', type=float, default='0.1')\n"
            "parser.add_argument('--wd', type=float, default=0.3)\n"
            "parser.add_argument('--bs', type=int, default=16)\n"
            "args = parser.parse_args()"
        ),
        "RATE": "args.lr",
    },
    "registered": {
        "TOP": "MADE = {}\ndef register(f):\n    MADE[f.__name__] = f\n    return f\n"
        "@register\ndef rate():\n    return 0.1",
        "RATE": "MADE['rate']()",
    },
    "dc": {"TOP": SETTINGS, "BEFORE": "cfg = Config()", "RATE": "cfg.lr", "BATCH": "cfg.bs"},
    "dc arg": {"TOP": SETTINGS, "BEFORE": "cfg = Config(lr=0.3)", "RATE": "cfg.lr", "BATCH": "cfg.bs"},
    "dc pos": {"TOP": SETTINGS, "BEFORE": "cfg = Config(0.3)", "RATE": "cfg.lr", "BATCH": "cfg.bs"},
    "dc set": {"TOP": SETTINGS, "BEFORE": "cfg = Config()\ncfg.lr = 0.5", "RATE": "cfg.lr"},
    "dc replace": {"TOP": SETTINGS, "BEFORE": "cfg = replace(Config(), lr=0.5)", "RATE": "cfg.lr"},
    "dc with": {"TOP": SETTINGS, "BEFORE": "cfg = Config().with_lr(0.5)", "RATE": "cfg.lr"},
    "dc post": {
        "TOP": (
            "@dataclass\n"
            "class Config:\n"
            "    lr: float = 0.1\n"
            "    def __post_init__(self):\n"
            "        self.lr = self.lr * 2"
        ),
        "BEFORE": "cfg = Config()",
        "RATE": "cfg.lr",
    },
    "dc prop": {
        "TOP": (
            "@dataclass\n"
            "class Config:\n"
            "    base: float = 0.1\n"
            "    @property\n"
            "    def lr(self):\n"
            "        return self.base * 2"
        ),
        "BEFORE": "cfg = Config()",
        "RATE": "cfg.lr",
    },
    "dc prop set": {
        "TOP": (
            "@dataclass\n"
            "class Config:\n"
            "    base: float = 0.1\n"
            "    @property\n"
            "    def lr(self):\n"
            "        return self.base * 2"
        ),
        "BEFORE": "cfg = Config()\ncfg.base = 0.3",
        "RATE": "cfg.lr",
    },
    "cls attr": {"TOP": "class C:\n    lr = 0.1", "RATE": "C.lr"},
    "cls getattr": {
        "TOP": "class C:\n    def __getattr__(self, n):\n        return 0.1",
        "BEFORE": "c = C()",
        "RATE": "c.lr",
    },
    "env": {"BEFORE": "lr = float(os.environ.get('INITW_LR', '0.1'))", "RATE": "lr"},
    "env top": {"TOP": "LR = float(os.environ.get('INITW_LR', '0.1'))", "RATE": "LR"},
    "dd read": {"BEFORE": "cfg = defaultdict(lambda: 0.1)", "RATE": "cfg['lr']"},
    "counter": {"BEFORE": "n = Counter('abca')", "RATE": "0.1 * n['a']"},
    "nt": {
        "TOP": "P = namedtuple('P', 'lr bs')",
        "BEFORE": "p = P(0.1, 16)._replace(lr=0.5)",
        "RATE": "p.lr",
    },
    "nt plain": {
        "TOP": "P = namedtuple('P', 'lr bs')",
        "BEFORE": "p = P(0.1, 16)",
        "RATE": "p.lr",
        "BATCH": "p.bs",
    },
    "partial": {"BEFORE": "make = partial(dict, lr=0.1)\ncfg = make()", "RATE": "cfg['lr']"},
    "reduce": {"BEFORE": "lr = reduce(lambda a, b: a * b, [0.5, 0.2])", "RATE": "lr"},
    "copy": {"BEFORE": "base = {'lr': 0.1}\ncfg = dict(base)\nbase['lr'] = 0.5", "RATE": "cfg['lr']"},
    "copy deep": {
        "BEFORE": "base = {'o': {'lr': 0.1}}\ncfg = copy.deepcopy(base)\ncfg['o']['lr'] = 0.5",
        "RATE": "base['o']['lr']",
    },
    "merge": {"BEFORE": "base = {'lr': 0.1}\ncfg = {**base, 'lr': 0.5}", "RATE": "cfg['lr']"},
    "merge or": {"BEFORE": "base = {'lr': 0.1}\ncfg = base | {'lr': 0.5}", "RATE": "cfg['lr']"},
    "dup key": {"BEFORE": "cfg = {'lr': 0.1, 'lr': 0.5}", "RATE": "cfg['lr']"},
    "star over": {"BEFORE": "over = {'lr': 0.5}\ncfg = {'lr': 0.1, **over}", "RATE": "cfg['lr']"},
    "dict kw star": {"BEFORE": "over = {'lr': 0.5}\ncfg = dict({'lr': 0.1}, **over)", "RATE": "cfg['lr']"},
    "dict get": {"BEFORE": "cfg = {'lr': 0.1}", "RATE": "cfg.get('lr', 0.5)"},
    "opt star plain": {"BEFORE": "kw = dict(momentum=0.9)", "RATE": "0.1, **kw"},
    "json plain": {"TOP": "import json", "BEFORE": "cfg = json.loads('{\"lr\": 0.1}')", "RATE": "cfg['lr']"},
    "ret dict": {
        "TOP": "def make():\n    cfg = {'lr': 0.1}\n    cfg['lr'] = 0.5\n    return cfg",
        "BEFORE": "cfg = make()",
        "RATE": "cfg['lr']",
    },
    "ret cond": {
        "TOP": "def rate(n):\n    if n > 10:\n        return 0.1\n    return 0.5",
        "BEFORE": "lr = rate(64)",
        "RATE": "lr",
    },
    "ret fn": {"TOP": "def rate():\n    return 0.1", "RATE": "rate()"},
    "w apply": {"TOP": "def init(m):\n    nn.init.zeros_(m.weight)", "MID": "model.apply(init)"},
    "sched": {"MID": "s = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)", "AFTER": "s.step()"},
    "sched lambda": {
        "MID": "k = 0.5\ns = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: k ** e)",
        "AFTER": "s.step()",
    },
    "state step": {"BEFORE": "n = 0", "FIRST": "n += 1", "SCALE": "(1.0 + 0.1 * n)"},
    "hist": {"BEFORE": "hist = []", "SCALE": "(1.0 + len(hist))", "AFTER": "hist.append(loss.item())"},
    "hist dict": {"BEFORE": "st = {'n': 0}", "SCALE": "(1.0 + st['n'])", "AFTER": "st['n'] += 1"},
    "hist deque": {"BEFORE": "q = deque(maxlen=3)", "SCALE": "(1.0 + len(q))", "AFTER": "q.append(1)"},
    "plain dict": {"TOP": "CFG = {'lr': 0.1, 'bs': 16}", "RATE": "CFG['lr']", "BATCH": "CFG['bs']"},
    "plain dict local": {
        "BEFORE": (
            "cfg = {'lr': 0.1, 'bs': 16}\nprint(cfg, len(cfg))\nfor k, v in cfg.items():\n    print(k, v)"
        ),
        "RATE": "cfg['lr']",
        "BATCH": "cfg['bs']",
    },
    "plain nested": {
        "BEFORE": "cfg = {'opt': {'lr': 0.1}, 'bs': 16}\nprint(cfg['opt'])",
        "RATE": "cfg['opt']['lr']",
        "BATCH": "cfg['bs']",
    },
    "plain param": {
        "TOP": "def show(c):\n    for k in c:\n        print(k, c[k])",
        "BEFORE": "cfg = {'lr': 0.1}\nshow(cfg)",
        "RATE": "cfg['lr']",
    },
    "plain list": {"BEFORE": "vals = [0.1, 0.5]", "RATE": "vals[1]"},
    "plain unpack": {"BEFORE": "lr, bs = 0.1, 16", "RATE": "lr", "BATCH": "bs"},
    "plain const": {"TOP": "LR = 0.1\nBS = 16", "RATE": "LR", "BATCH": "BS"},
    "plain math": {"BEFORE": "lr = math.sqrt(0.01) * 2", "RATE": "lr"},
    "plain seed": {"BEFORE": "torch.manual_seed(0)\nrandom.seed(0)"},
}
"""Values that a class takes from the script unchanged."""

DATA = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.linspace(-1, 1, 256).reshape(64, 4)
Y = X.sum(1, keepdim=True)
VX = torch.linspace(2, 3, 256).reshape(64, 4)
VY = -VX.sum(1, keepdim=True)
"""
EVALUATED = {
    "first": """
def run_epoch(model, loader, optimizer=None):
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    val = DataLoader(TensorDataset(VX, VY), batch_size=16)
    train = DataLoader(TensorDataset(X, Y), batch_size=8)
    run_epoch(model, val)
    for epoch in range(2):
        run_epoch(model, train, optimizer)
        run_epoch(model, val)

if __name__ == "__main__":
    main()
""",
    "flag": """
def run_epoch(model, loader, optimizer, training):
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    val = DataLoader(TensorDataset(VX, VY), batch_size=16)
    train = DataLoader(TensorDataset(X, Y), batch_size=8)
    run_epoch(model, val, optimizer, False)
    for epoch in range(2):
        run_epoch(model, train, optimizer, True)
        run_epoch(model, val, optimizer, False)

if __name__ == "__main__":
    main()
""",
    "grad": """
def run_epoch(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if torch.is_grad_enabled():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    val = DataLoader(TensorDataset(VX, VY), batch_size=16)
    train = DataLoader(TensorDataset(X, Y), batch_size=8)
    with torch.no_grad():
        run_epoch(model, val, optimizer)
    for epoch in range(2):
        run_epoch(model, train, optimizer)
        with torch.no_grad():
            run_epoch(model, val, optimizer)

if __name__ == "__main__":
    main()
""",
    "train mode": """
def run_epoch(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if model.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    val = DataLoader(TensorDataset(VX, VY), batch_size=16)
    train = DataLoader(TensorDataset(X, Y), batch_size=8)
    model.eval()
    run_epoch(model, val, optimizer)
    for epoch in range(2):
        model.train()
        run_epoch(model, train, optimizer)
        model.eval()
        run_epoch(model, val, optimizer)

if __name__ == "__main__":
    main()
""",
    "rebind": """
def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loader = DataLoader(TensorDataset(X, Y), batch_size=8)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loader = DataLoader(TensorDataset(VX, VY), batch_size=16)
        with torch.no_grad():
            for x, y in loader:
                F.mse_loss(model(x), y)

if __name__ == "__main__":
    main()
""",
    "rebind first": """
def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loader = DataLoader(TensorDataset(VX, VY), batch_size=16)
        with torch.no_grad():
            for x, y in loader:
                F.mse_loss(model(x), y)
        loader = DataLoader(TensorDataset(X, Y), batch_size=8)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    main()
""",
    "names": """
def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        data = TensorDataset(X, Y)
        for batch in DataLoader(data, batch_size=8):
            x, y = batch
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        data = TensorDataset(VX, VY)
        for batch in DataLoader(data, batch_size=16):
            x, y = batch
            with torch.no_grad():
                F.mse_loss(model(x), y)

if __name__ == "__main__":
    main()
""",
    "make": """
def make(train):
    if train:
        return DataLoader(TensorDataset(X, Y), batch_size=8)
    return DataLoader(TensorDataset(VX, VY), batch_size=16)

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    val = make(False)
    for x, y in val:
        F.mse_loss(model(x), y)
    for x, y in make(True):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
""",
    "loader kw": """
def run_epoch(model, loader, optimizer=None):
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    val = DataLoader(TensorDataset(VX, VY), batch_size=16)
    train = DataLoader(TensorDataset(X, Y), batch_size=8)
    run_epoch(model=model, loader=val)
    for epoch in range(2):
        run_epoch(loader=train, model=model, optimizer=optimizer)
        run_epoch(model=model, loader=val)

if __name__ == "__main__":
    main()
""",
    "dataset class": """
class Rows(torch.utils.data.Dataset):
    def __init__(self, split):
        self.x, self.y = (X, Y) if split == "train" else (VX, VY)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]

class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.val = DataLoader(Rows("val"), batch_size=16)
        self.train = DataLoader(Rows("train"), batch_size=8)
    def epoch(self, loader, training):
        for x, y in loader:
            loss = F.mse_loss(self.model(x), y)
            if training:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
    def fit(self):
        self.epoch(self.val, False)
        self.epoch(self.train, True)

if __name__ == "__main__":
    Trainer().fit()
""",
}
"""Scripts that iterate over data for an evaluation, too."""

ROWS = """class Rows(torch.utils.data.Dataset):
    def __init__(self, given):
        self.given = given
    def __len__(self):
        return 64
    def __getitem__(self, place):
        return X[place] * self.given['scale'], Y[place]
"""
MADE = "model = nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
PARTS = {
    "another model": MADE.replace("\n", "\nif len(X) < 100:\n    model = nn.Linear(4, 1, bias=False)\n", 1),
    "either model": (
        "if len(X) > 100:\n    model = nn.Linear(4, 1, bias=False)\nelse:\n    model = nn.Linear(4, 1)"
        + MADE.removeprefix("model = nn.Linear(4, 1)")
    ),
    "another optimizer": MADE
    + "\nif len(X) < 100:\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)",
    "other data": MADE + "\nif len(X) < 100:\n    data = TensorDataset(X * 2, Y)",
    "what the data holds": MADE + "\ngiven = {'scale': 1.0}\ndata = Rows(given)\ngiven['scale'] = 3.0",
}

TRAINED = """
def train(model, data, optimizer):
    BODY
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    net = nn.Linear(4, 1)
    train(net, TensorDataset(X, Y), torch.optim.SGD(net.parameters(), lr=0.1))
"""
OTHER_PARTS = [
    "model = nn.Sequential(model, nn.Linear(1, 1)).to('cpu')",
    "model = nn.Sequential(model, nn.Linear(1, 1))",
    "if len(X) > 8:\n    model = nn.Sequential(model, nn.Linear(1, 1))",
    "model, data = nn.Sequential(model, nn.Linear(1, 1)), data",
    "data = TensorDataset(data.tensors[0] * 2, Y)",
    "data = torch.utils.data.Subset(data, range(16))",
    "optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.3)",
]
"""Statements after which a function trains with other parts than the given ones."""
LATE = [
    "model = copy.deepcopy(model)",
    "model = copy.deepcopy(model).to('cpu')",
    "model = nn.DataParallel(copy.deepcopy(model))",
    "if len(X) > 8:\n    model = copy.deepcopy(model)",
    "model = copy.copy(model)",
    "model = nn.Sequential(model)",
    "model = nn.Sequential(model, nn.Linear(1, 1))",
    "model = nn.Sequential(model, nn.Linear(1, 1)).to('cpu')",
    "model = nn.Linear(4, 1)",
    "other = model\nmodel = copy.deepcopy(other)",
]
"""Statements after which a script trains another model than the one whose parameters its optimizer updates."""
IN_METHODS = {
    each.replace("model = ", "self.model = ").replace("(model", "(self.model")
    for each in LATE
    if "other" not in each
} | {"self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)"}
TRAINER = """
class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        AT_FIRST
    def fit(self):
        LATER
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            loss = F.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

if __name__ == "__main__":
    Trainer().fit()
"""
SET_OUTSIDE = [
    "trainer.lr = 0.5",
    "trainer.lr *= 3",
    "trainer.bs, trainer.lr = 16, 0.5",
    "setattr(trainer, 'lr', 0.5)",
    "tune(trainer)",
    "trainer.__dict__.update(lr=0.5)",
    "vars(trainer)['lr'] = 0.5",
    "other = trainer\n    other.lr = 0.5",
    "[trainer][0].lr = 0.5",
    "for name in ('lr',):\n        setattr(trainer, name, 0.5)",
    "Trainer.lr = 0.5\n    del trainer.lr",
]
OUTSIDE = """
class Trainer:
    def __init__(self, lr=0.1, bs=8):
        self.lr, self.bs = lr, bs
    def fit(self):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr)
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
TUNE
if __name__ == "__main__":
    trainer = Trainer()
    DOES
    trainer.fit()
"""
DERIVED = {
    "attribute of the class": "    lr = 0.5",
    "attribute": "    def __init__(self):\n        super().__init__()\n        self.bs = 16",
    "attribute set before": "    def __init__(self):\n        self.lr = 0.5\n        super().__init__()",
    "argument": "    def __init__(self):\n        super().__init__(0.5)",
    "method": "    def loss(self, x, y):\n        return 3 * super().loss(x, y)",
    "other method": "    def loss(self, x, y):\n        return F.l1_loss(self.model(x), y)",
    "optimizer": (
        "    def __init__(self):\n        super().__init__()\n"
        "        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)"
    ),
    "method that begins": "    def fit(self):\n        self.optimizer.defaults.clear()\n        super().fit()",
}
"""Bodies of a class derived from the one whose method has the training loop."""
BASE = """
class Base:
    lr = 0.1
    bs = 8
    def __init__(self, factor=1.0):
        self.model = nn.Linear(4, 1)
        self.factor = factor
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr * factor)
    def loss(self, x, y):
        return F.mse_loss(self.model(x), y)
    def fit(self):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=self.bs):
            loss = self.loss(x, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
class Derived(Base):
BODY
if __name__ == "__main__":
    Derived().fit()
"""
OTHER_BATCHES = [
    "zip(loader, other)",
    "zip(loader, itertools.cycle(other))",
    "((one, two) for one, two in zip(loader, other))",
    "itertools.product(other, loader)",
]
OTHER_ORDER = [
    "itertools.chain(other, loader)",
    "itertools.chain.from_iterable([other, loader])",
    "[*other, *loader]",
    "list(loader)[2:]",
    "reversed(list(loader))",
    "map(lambda batch: (batch[0] * 2, batch[1]), loader)",
    "filter(lambda batch: batch[0].mean() > 0, loader)",
    "doubled(loader)",
    "(batch for batch in loader)",
    "(loader if len(X) > 100 else other)",
]
"""Iterables of batches that are not those of one loader."""
SAME_PARTS = [
    "pass",
    "model = model.to('cpu')",
    "model = nn.DataParallel(model)",
    "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.02)",
]
"""Statements after which the class trains like the function."""


def source_of(**put: str) -> str:
    """Return the frame's source with these parts."""
    whole = {**PLAIN, **put}
    lines = []
    for line in FRAME.strip().splitlines():
        word = line.strip()
        if word in whole:
            lines.append(textwrap.indent(whole[word], line.partition(word)[0]))
            continue
        for each in ("RATE", "BATCH", "SCALE", "TAKEN", "GIVEN"):
            line = line.replace(each, whole[each])
        lines.append(line)
    return "\n".join(lines) + "\n"


def written(tmp_path: Path, source: str) -> tuple[Script, Written]:
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    script = read_script(path)
    return script, written_class(script)


class _EnoughError(Exception):
    """All compared steps are made."""


def losses_of(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch, most: int) -> list[float]:
    """Return the losses on which a run calls backward, with parameters that draw no random numbers."""
    losses: list[float] = []
    backward = torch.Tensor.backward

    def recorded(tensor: torch.Tensor, *given: Any, **named: Any) -> None:
        if len(losses) == most:
            raise _EnoughError
        losses.append(float(tensor.detach()))
        backward(tensor, *given, **named)

    def filled(module: nn.Module) -> None:
        with torch.no_grad():
            for each in module.parameters(recurse=False):
                each.copy_(torch.linspace(-0.5, 0.5, each.numel()).reshape(each.shape))

    with monkeypatch.context() as patched, contextlib.redirect_stdout(io.StringIO()):
        patched.setattr(torch.Tensor, "backward", recorded)
        patched.setattr(nn.Linear, "reset_parameters", filled)
        patched.setattr(sys, "argv", ["train.py"])
        patched.setenv("WORLD_SIZE", "1")
        torch.manual_seed(0)
        with contextlib.suppress(_EnoughError):
            run()
    return losses


@contextlib.contextmanager
def module(source: str, name: str, path: Path) -> Iterator[dict[str, Any]]:
    """Run a module of this source as an importable one, because dataclasses need one."""
    made = types.ModuleType(name)
    made.__file__ = str(path)
    kept = sys.modules.get(name)
    sys.modules[name] = made
    try:
        exec(compile(source, str(path), "exec"), made.__dict__)
        yield made.__dict__
    finally:
        sys.modules.pop(name)
        if kept is not None:
            sys.modules[name] = kept


def train(measured: Any, most: int) -> None:
    """Train with a class as one process would."""
    model = measured.model()
    optimizer: Any = None
    if hasattr(measured, "optimizer"):
        over_parameters = "parameters" in inspect.signature(measured.optimizer).parameters
        optimizer = measured.optimizer(model.parameters() if over_parameters else model)
    updates = list(optimizer) if isinstance(optimizer, tuple) else [optimizer]
    for _ in range(most):
        for batch in DataLoader(measured.dataset(), batch_size=measured.batch):
            if hasattr(measured, "step"):
                measured.step(model, batch, optimizer)
                continue
            loss = measured.loss(model, batch)
            updates[0].zero_grad()
            loss.backward()
            for each in updates:
                each.step()


def check_losses(script: Script, found: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a class has the losses of its script."""

    def run_script() -> None:
        with module(script.source, "__main__", script.path):
            pass

    def run_class() -> None:
        ends = found.ends if can_guard(script, found.ends) else []
        with module(inserted(script, found.text, ends), "train_with_class", script.path) as names:
            train(names["Measured"](), STEPS)

    mine = losses_of(run_class, monkeypatch, STEPS)
    wanted = losses_of(run_script, monkeypatch, STEPS)
    assert wanted
    assert mine[: len(wanted)] == pytest.approx(wanted), found.text


def check_agrees(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, named: str = r"\bline \d+|say what "
) -> None:
    """Check that a script's class has the losses of the script, or is unfinished and says `named` of the rest."""
    script, found = written(tmp_path, source)
    if not found.is_open:
        check_losses(script, found, monkeypatch)
    else:
        assert re.search(named, "\n".join(found.left)), found.left


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_script_changes_is_in_its_class_or_is_to_be_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_agrees(tmp_path, source_of(**CHANGED[name]), monkeypatch)


def called_by(decorators: str, call: str) -> str:
    """Return the frame's source with decorators on its function `main` and with another call of it."""
    source = source_of(TOP=TUNED, TAKEN="lr=0.1", RATE="lr", GIVEN="0.1")
    return source.replace("def main(", f"{decorators}def main(").replace("    main(0.1)", f"    {call}")


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_argument_that_other_code_may_pass_is_to_be_said(name: str, tmp_path: Path) -> None:
    _, found = written(tmp_path, called_by(*OTHERWISE[name]))
    assert "optimizer(): say what `lr` is (as in the script, in main())." in found.left, found.text


@pytest.mark.parametrize("name", AS_SHOWN)
def test_an_argument_of_a_call_is_in_the_class(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, called_by(*AS_SHOWN[name]))
    assert "lr=0.2" in found.text
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


def test_a_decorator_whose_doing_is_unknown_is_named(tmp_path: Path) -> None:
    _, found = written(tmp_path, called_by("@torch.autocast('cpu')\n", "main(0.1)"))
    wanted = "The script decorates main() with `@{}` (line {}); the class trains without it."
    assert [re.sub(r"line \d+", "line {}", each) for each in found.notes] == [
        wanted.format("torch.autocast('cpu')", "{}")
    ]
    _, found = written(tmp_path, called_by("@twice\n", "main(0.1)"))
    assert [re.sub(r"line \d+", "line {}", each) for each in found.notes] == [wanted.format("twice", "{}")]


@pytest.mark.parametrize(("taken", "given"), [("lr=0.1, bs=8", ""), ("lr, bs", "0.1, bs=8")])
@pytest.mark.parametrize("does", REPLACED)
def test_a_parameter_that_gets_another_value_is_not_the_one_that_was_given(
    does: str, taken: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = "def scaled(rate):\n    return rate * 2"
    source = source_of(TOP=top, TAKEN=taken, GIVEN=given, BEFORE=does, RATE="lr", BATCH="bs")
    script, found = written(tmp_path, source)
    if not found.is_open:
        check_losses(script, found, monkeypatch)
    else:
        assert re.search(r"optimizer\(\): .*\b(lr|value)\b", "\n".join(found.left)), found.left


@pytest.mark.parametrize(
    ("taken", "given"), [("cfg=CFG", ""), ("cfg", "CFG"), ("cfg", "cfg=CFG"), ("*, cfg=CFG", "")]
)
@pytest.mark.parametrize("does", REFILLED)
def test_a_dictionary_that_a_function_gets_and_changes_is_not_the_one_that_was_given(
    does: str, taken: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = "CFG = {'lr': 0.1}\ndef raised(of):\n    return {**of, 'lr': 0.5}"
    source = source_of(TOP=top, TAKEN=taken, GIVEN=given, BEFORE=does, RATE="cfg['lr']")
    script, found = written(tmp_path, source)
    if not found.is_open:
        check_losses(script, found, monkeypatch)
    else:
        assert "optimizer(): " in "\n".join(found.left), found.left


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_may_be_another_one_is_to_be_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(TOP=ROWS, BEFORE="data = TensorDataset(X, Y)").replace(
        "TensorDataset(X, Y), batch", "data, batch"
    )
    made = textwrap.indent(MADE, "    ")
    assert made in source
    script, found = written(tmp_path, source.replace(made, textwrap.indent(PARTS[name], "    ")))
    if not found.is_open:
        check_losses(script, found, monkeypatch)
    else:
        assert re.search(r"\bdo there what line \d+", "\n".join(found.left)), found.left


@pytest.mark.parametrize("does", OTHER_PARTS)
def test_a_part_that_a_function_gets_and_replaces_is_to_be_done(does: str, tmp_path: Path) -> None:
    _, found = written(tmp_path, DATA + TRAINED.replace("BODY", textwrap.indent(does, "    ").strip()))
    assert re.search(r"\bdo there what line \d+", "\n".join(found.left)), found.left


@pytest.mark.parametrize("does", SAME_PARTS)
def test_a_part_that_a_function_gets_and_wraps_is_in_the_class(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, DATA + TRAINED.replace("BODY", textwrap.indent(does, "    ").strip()))
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


@pytest.mark.parametrize("does", LATE)
def test_a_model_that_is_replaced_after_its_optimizer_is_to_be_done(does: str, tmp_path: Path) -> None:
    _, found = written(tmp_path, source_of(MID=does))
    assert found.is_open, found.text


@pytest.mark.parametrize("place", ["AT_FIRST", "LATER"])
@pytest.mark.parametrize("does", sorted(IN_METHODS))
def test_a_part_that_a_method_replaces_is_to_be_done(
    does: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TRAINER.replace(place, textwrap.indent(does, "        ").strip())
    script, found = written(tmp_path, DATA + re.sub("AT_FIRST|LATER", "pass", source))
    if not found.is_open:
        check_losses(script, found, monkeypatch)


@pytest.mark.parametrize(
    "does", ["pass", "self.model = self.model.to('cpu')", "self.model = nn.DataParallel(self.model)"]
)
def test_a_part_that_a_method_keeps_is_in_the_class(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, DATA + TRAINER.replace("AT_FIRST", "pass").replace("LATER", does))
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


@pytest.mark.parametrize("does", SET_OUTSIDE)
def test_an_attribute_that_is_set_from_outside_is_to_be_said(does: str, tmp_path: Path) -> None:
    tune = "def tune(given):\n    given.lr = 0.5\n" if "tune" in does else ""
    _, found = written(tmp_path, DATA + OUTSIDE.replace("TUNE", tune).replace("DOES", does))
    assert "optimizer(): " in "\n".join(found.left), found.text
    assert found.is_open


@pytest.mark.parametrize(
    "does",
    ["self.__dict__.update(given)", "for name in given:\n            setattr(self, name, given[name])"],
)
def test_attributes_from_a_dictionary_are_to_be_said(does: str, tmp_path: Path) -> None:
    source = OUTSIDE.replace("lr=0.1, bs=8", "**given").replace("self.lr, self.bs = lr, bs", does)
    source = source.replace("    def __init__", "    lr = 0.1\n    def __init__").replace("TUNE", "")
    _, found = written(
        tmp_path, DATA + source.replace("DOES", "pass").replace("= Trainer()", "= Trainer(lr=0.5)")
    )
    assert "optimizer(): say what `lr` is" in "\n".join(found.left), found.text


def test_an_attribute_of_another_object_that_is_set_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    does = "class Other:\n        lr = 0.3\n    other = Other()\n    other.lr = 0.5"
    script, found = written(tmp_path, DATA + OUTSIDE.replace("TUNE", "").replace("DOES", does))
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


@pytest.mark.parametrize("name", DERIVED)
def test_what_a_derived_class_has_of_its_own_is_to_be_said(name: str, tmp_path: Path) -> None:
    _, found = written(tmp_path, DATA + BASE.replace("BODY", DERIVED[name]))
    assert found.left or found.notes, found.text
    assert found.is_open or found.notes or "batch = " not in found.text


def test_a_derived_class_without_other_values_is_like_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "    def shown(self):\n        print(self.model)"
    script, found = written(tmp_path, DATA + BASE.replace("BODY", body))
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


def test_a_loop_that_ends_early_is_noted(tmp_path: Path) -> None:
    _, found = written(tmp_path, source_of(AFTER="if loss.item() < 0.5:\n    break"))
    assert "ends its loop over batches where `loss.item() < 0.5` " in found.notes[0]


def test_a_return_from_the_loop_over_batches_is_noted(tmp_path: Path) -> None:
    _, found = written(tmp_path, source_of(AFTER="if loss.item() < 0.5:\n    return"))
    wanted = (
        "The script ends its loop over batches, and main() with it, where `loss.item() < 0.5` (line 27); "
    )
    assert found.notes == [f"{wanted}the class goes through all."]
    inner = "for part in x:\n    if part.sum() > 9:\n        return"
    _, found = written(tmp_path, source_of(AFTER=inner))
    assert "where `part.sum() > 9` (line 28)" in found.notes[0]


STEPPED = """
def train_step(model, optimizer, x, y):
    FIRST
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    LAST
    return loss.item()

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
        train_step(model, optimizer, x, y)

if __name__ == "__main__":
    main()
"""


def test_a_return_before_the_update_of_a_step_is_noted(tmp_path: Path) -> None:
    ends = "if x.sum() > 9:\n        return None"
    _, found = written(tmp_path, DATA + STEPPED.replace("FIRST", ends).replace("LAST", "pass"))
    assert found.notes == ["The script skips a batch where `x.sum() > 9` (line 13); the class trains on all."]
    _, found = written(tmp_path, DATA + STEPPED.replace("FIRST", "pass").replace("LAST", ends))
    assert found.notes == []
    called = STEPPED.replace("FIRST", ends).replace("LAST", "pass").replace("loss.item()", "loss")
    owns = called.replace("    loss.backward()", "    loss.backward()\n    loss.backward()").replace(
        "None", "y"
    )
    _, found = written(tmp_path, DATA + owns)
    assert "return train_step(model, optimizer, *batch)" in found.text, "which has the return"
    assert found.notes == []


ONCE = (
    "The script takes its samples by `{}` (line 20); the class takes each sample once in an epoch, in another "
    "order."
)
SAMPLERS = {
    "sampler=torch.utils.data.WeightedRandomSampler([1.0] * 64, 64)": ONCE,
    "sampler=list(range(63, -1, -1))": ONCE,
    "batch_sampler=[[0, 1], [2]]": (
        "The script makes its batches by `{}` (line 20); the class has batches of equal size, in another order."
    ),
}


@pytest.mark.parametrize("given", SAMPLERS)
def test_a_sampler_is_noted(given: str, tmp_path: Path) -> None:
    given_with = given if given.startswith("batch") else f"batch_size=8, {given}"
    _, found = written(tmp_path, source_of().replace("batch_size=8", given_with))
    assert found.notes == [SAMPLERS[given].format(given)]
    assert found.left == (
        ["The batch size was not found: add `batch = N` to the class."] * ("batch_s" in given)
    )


@pytest.mark.parametrize(
    "given",
    [
        "sampler=None",
        "sampler=torch.utils.data.RandomSampler(X)",
        "sampler=torch.utils.data.SequentialSampler(X)",
        "sampler=torch.utils.data.DistributedSampler(X, 1, 0)",
        "shuffle=True",
    ],
)
def test_a_sampler_like_a_loaders_own_is_not_noted(given: str, tmp_path: Path) -> None:
    _, found = written(tmp_path, source_of().replace("batch_size=8", f"batch_size=8, {given}"))
    assert found.notes == []


def test_a_loader_without_a_batch_size_has_batches_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, source_of().replace(", batch_size=8", ""))
    assert "batch = 1\n" in found.text
    check_losses(script, found, monkeypatch)
    _, found = written(tmp_path, source_of().replace("batch_size=8", "batch_sampler=[[0, 1]]"))
    assert "batch = 1\n" not in found.text


@pytest.mark.parametrize("other", ["TensorDataset(X * 2, Y + 1)", "Rows({'scale': 2.0})"])
@pytest.mark.parametrize("batches", [*OTHER_BATCHES, *OTHER_ORDER])
def test_batches_of_other_than_one_loader_are_to_be_said(batches: str, other: str, tmp_path: Path) -> None:
    made = (
        f"loader = DataLoader(TensorDataset(X, Y), batch_size=8)\nother = DataLoader({other}, batch_size=4)"
    )
    top = ROWS + "def doubled(given):\n    for x, y in given:\n        yield x * 2, y\n"
    target = "(x, y), rest" if batches in OTHER_BATCHES else "x, y"
    source = source_of(TOP=top, MID=made).replace(
        "for x, y in DataLoader(TensorDataset(X, Y), batch_size=8)", f"for {target} in {batches}"
    )
    assert batches in source
    _, found = written(tmp_path, source)
    assert "dataset(): return the dataset" in "\n".join(found.left), found.text
    assert found.is_open


def test_the_number_of_a_batch_that_does_not_begin_at_zero_is_to_be_said(tmp_path: Path) -> None:
    source = source_of(SCALE="(1 + number)").replace("for x, y in ", "for number, (x, y) in enumerate(")
    _, found = written(tmp_path, source.replace("batch_size=8):", "batch_size=8), 1):"))
    assert "say what `number` is" in "\n".join(found.left), found.text


@pytest.mark.parametrize("name", SAME)
def test_what_a_script_only_reads_is_in_its_class(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, source_of(**SAME[name]))
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


@pytest.mark.parametrize("name", EVALUATED)
def test_a_class_has_the_data_of_the_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = written(tmp_path, DATA + EVALUATED[name])
    assert not found.is_open, found.whole
    check_losses(script, found, monkeypatch)


@pytest.mark.parametrize(
    ("put", "line", "does", "inner"),
    [
        (
            {"TOP": CHANGED["tune top"]["TOP"], "BEFORE": "tune(CFG)", "RATE": "CFG['lr']"},
            18,
            "tune(CFG)",
            " (line 15: `cfg['lr'] = 0.5`)",
        ),
        ({"MID": "optimizer.param_groups[0]['lr'] = 0.5"}, 19, "optimizer.param_groups[0]['lr'] = 0.5", ""),
        ({"TOP": "LR = 0.1", "GUARD": "LR = 0.5", "RATE": "LR"}, 29, "LR = 0.5", ""),
    ],
)
def test_what_changes_a_value_is_named_with_its_line(
    put: dict[str, str], line: int, does: str, inner: str, tmp_path: Path
) -> None:
    _, found = written(tmp_path, source_of(**put))
    assert f"...  # what line {line} does: {does}" in found.text
    assert found.left == [f"optimizer(): do there what line {line} does: `{does}`{inner}."]


def test_each_method_with_a_changed_value_is_to_be_filled_in(tmp_path: Path) -> None:
    does = "bs, lr = bs * 2, lr / 4"
    _, found = written(tmp_path, source_of(TAKEN="lr=0.1, bs=8", BEFORE=does, RATE="lr", BATCH="bs"))
    wanted = "line 16 {}: bs, lr = (bs * 2, lr / 4)"
    assert f"batch = ...  # what {wanted.format('makes it')}" in found.text
    assert f"...  # what {wanted.format('does')}\n        return torch.optim.SGD" in found.text
    assert len(found.left) == 2


def test_a_clipping_by_a_counter_is_to_be_filled_in(tmp_path: Path) -> None:
    source = source_of(MID="count = 0", FIRST="count += 1").replace(
        "optimizer.step()",
        "nn.utils.clip_grad_norm_(model.parameters(), 0.05 * count)\n        optimizer.step()",
    )
    _, found = written(tmp_path, source)
    assert found.left == ["before_update(): do there what line 21 does: `count += 1`."]


def test_a_batch_size_that_is_changed_is_to_be_filled_in(tmp_path: Path) -> None:
    put = {"TOP": "def tune(given):\n    given['bs'] = 16", "BEFORE": "cfg = {'bs': 8}\ntune(cfg)"}
    _, found = written(tmp_path, source_of(**put, BATCH="cfg['bs']"))
    assert "batch = ...  # what line 18 makes it: tune(cfg)" in found.text
    assert found.left == ["batch: say what it is after line 18: `tune(cfg)`."]
    assert found.is_open
