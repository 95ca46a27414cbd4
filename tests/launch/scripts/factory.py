"""A function of the script computes the loss, another one makes model, criterion and data from a configuration."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    width: int = 48
    depth: int = 2
    lr: float = 3e-3
    batch_size: int = 24
    epochs: int = 2


class Waves(Dataset):
    def __init__(self, count=480):
        self.x = torch.linspace(0, 6, count).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index].sin()


def build_model(cfg):
    layers = [nn.Linear(1, cfg.width), nn.Tanh()]
    for _ in range(cfg.depth - 1):
        layers += [nn.Linear(cfg.width, cfg.width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(cfg.width, 1))


def compute_loss(model, batch):
    x, y = batch
    return (model(x) - y).pow(2).mean()


def train(cfg):
    model = build_model(cfg)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loader = DataLoader(Waves(), batch_size=cfg.batch_size, shuffle=True)
    losses = []
    for _ in range(cfg.epochs):
        for batch in loader:
            loss = compute_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step(losses[-1])
    return losses


if __name__ == "__main__":
    train(Config())
