"""A toy repository whose training step sleeps, and for longer from a commit on, for comparisons of commits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TRAIN = """
import time
import torch
from torch import nn

class Measured:
    def model(self):
        return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def dataset(self):
        generator = torch.Generator().manual_seed(0)
        return torch.utils.data.TensorDataset(
            torch.randn(512, 16, generator=generator), torch.randint(0, 4, (512,), generator=generator)
        )

    def loss(self, model, batch):
        time.sleep({sleep})
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1)
"""
EXPERIMENT = """
question = "Did it become slower?"
[base]
workload = "train.py:Measured"
strategy = "single"
world_size = 1
local_batch = 8
[budget]
measured_s = "100 ms"
"""
_AUTHOR = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(folder: Path, *words: str) -> str:
    """Return git's output in this folder."""
    done = subprocess.run(
        ["git", "-C", folder, *words], env=os.environ | _AUTHOR, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def begin_repository(folder: Path, *, sleep: float, experiment: str = EXPERIMENT) -> None:
    """Make a repository of one commit, tagged `fast`: an experiment in `bench`, and the training next to it."""
    (folder / "bench").mkdir(parents=True)
    (folder / "bench" / "step.toml").write_text(experiment)
    (folder / "bench" / "train.py").write_text(TRAIN.format(sleep=sleep))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "fast")
    git(folder, "tag", "fast")


def commit_training(folder: Path, message: str, *, sleep: float, remark: object = "") -> str:
    """Commit a step that sleeps for that long, with a comment that makes it distinct; return the commit."""
    (folder / "bench" / "train.py").write_text(f"{TRAIN.format(sleep=sleep)}\n# {remark}\n")
    git(folder, "commit", "-qam", message)
    return git(folder, "rev-parse", "HEAD")
