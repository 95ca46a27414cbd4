"""A loop with nested functions for forward and backward, accumulation, a schedule per update and a moving average."""

import argparse
import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build(name, classes):
    width = {"tiny": 16, "base": 32}[name]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def epoch_of(model, loader, optimizer, schedule, average, accumulate, loss_of):
    updates = 0

    def forward(images, labels):
        return loss_of(model(images), labels) / accumulate

    def backward(loss, update):
        loss.backward()
        if update:
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

    for index, (images, labels) in enumerate(loader):
        update = (index + 1) % accumulate == 0
        with contextlib.nullcontext() if update or not dist.is_initialized() else model.no_sync():
            loss = forward(images, labels)
            backward(loss, update)
        if update:
            updates += 1
            schedule.step()
            inner = model.module if dist.is_initialized() else model
            with torch.no_grad():
                for old, new in zip(average.parameters(), inner.parameters()):
                    old.lerp_(new, 0.01)
    return updates, loss.item() * accumulate


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--model", default="tiny")
    parse.add_argument("--classes", type=int, default=10)
    parse.add_argument("--epochs", type=int, default=2)
    parse.add_argument("--batch", type=int, default=32)
    parse.add_argument("--accumulate", type=int, default=2)
    given = parse.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.manual_seed(3)
    rows = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(given.classes, (2048,)))
    sampler = DistributedSampler(rows) if dist.is_initialized() else None
    loader = DataLoader(rows, batch_size=given.batch, sampler=sampler, shuffle=sampler is None)
    model = build(given.model, given.classes)
    average = copy.deepcopy(model)
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=given.epochs * (len(loader) // given.accumulate) + 1
    )
    for epoch in range(given.epochs):
        updates, loss = epoch_of(
            model, loader, optimizer, schedule, average, given.accumulate, nn.functional.cross_entropy
        )
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(epoch, updates, f"{loss:.3f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
