"""A trainer class whose model, data and optimizer come from one function; resumes from a checkpoint; torchrun."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def prepare(width):
    torch.manual_seed(7)
    points = torch.randn(4096, 24)
    rows = TensorDataset(points, points.sum(dim=1, keepdim=True).sin())
    net = nn.Sequential(
        nn.Linear(24, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
    )
    return net, rows, torch.optim.AdamW(net.parameters(), lr=2e-3)


class Fit:
    def __init__(self, net, rows, optimizer, batch, every, path):
        self.rank = int(os.environ.get("RANK", "0"))
        self.net, self.optimizer, self.every, self.path = net, optimizer, every, path
        self.start = 0
        if path and os.path.exists(path):
            state = torch.load(path, weights_only=True)
            self.net.load_state_dict(state["net"])
            self.start = state["epoch"] + 1
        self.net = DistributedDataParallel(self.net)
        self.loader = DataLoader(rows, batch_size=batch, sampler=DistributedSampler(rows), drop_last=True)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, epochs):
        for epoch in range(self.start, epochs):
            self.loader.sampler.set_epoch(epoch)
            total = sum(self.step(x, y) for x, y in self.loader)
            if self.rank == 0:
                print(f"epoch {epoch}: {total / len(self.loader):.4f}", flush=True)
                if self.path and epoch % self.every == 0:
                    torch.save({"net": self.net.module.state_dict(), "epoch": epoch}, self.path)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("epochs", type=int)
    parse.add_argument("every", type=int)
    parse.add_argument("--batch", type=int, default=64)
    parse.add_argument("--width", type=int, default=256)
    parse.add_argument("--path", default="")
    given = parse.parse_args()
    dist.init_process_group("gloo")
    net, rows, optimizer = prepare(given.width)
    Fit(net, rows, optimizer, given.batch, given.every, given.path).run(given.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
