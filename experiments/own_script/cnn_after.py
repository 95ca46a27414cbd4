"""Classifies small pictures: autocast, a gradient scaler, clipped gradients and a learning rate that falls."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, SIZE = 8, 16


class Stripes(Dataset):
    """Pictures with stripes at one of eight angles, in noise."""

    def __init__(self, count=1024):
        generator = torch.Generator().manual_seed(1)
        self.label = torch.randint(CLASSES, (count,), generator=generator)
        angle = self.label * torch.pi / CLASSES
        y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        wave = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
        self.picture = torch.sin(wave).unsqueeze(1) + 0.5 * torch.randn(
            count, 1, SIZE, SIZE, generator=generator
        )

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        return self.picture[index], self.label[index]


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


def make_optimizer(model, lr=0.05, steps=1000):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def train_step(model, picture, label, optimizer, schedule, scaler):
    optimizer.zero_grad()
    with torch.autocast(picture.device.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(picture), label)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Stripes(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = build_model()
    optimizer, schedule = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for epoch in range(args.epochs):
        start, total = time.time(), 0.0
        for picture, label in loader:
            total += train_step(model, picture, label, optimizer, schedule, scaler).item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {time.time() - start:.1f} s")


class Measured:
    model = build_model
    dataset = Stripes
    optimizer = make_optimizer
    batch = 64

    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(self, model, batch, optimizer):
        return train_step(model, *batch, *optimizer, self.scaler)


if __name__ == "__main__":
    main()
