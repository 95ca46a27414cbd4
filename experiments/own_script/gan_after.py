"""Two networks against each other: one makes points of a ring, the other tells them from real ones."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NOISE = 16


class Ring(Dataset):
    def __init__(self, count=4096):
        generator = torch.Generator().manual_seed(1)
        angle = 2 * torch.pi * torch.rand(count, generator=generator)
        self.points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(
            count, 2, generator=generator
        )

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index]


def perceptron(inputs, outputs, width=128):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def make_networks():
    return {"generator": perceptron(NOISE, 2), "discriminator": perceptron(2, 1)}


def make_optimizers(networks):
    return [torch.optim.Adam(networks[name].parameters(), lr=2e-4, betas=(0.5, 0.999)) for name in networks]


def train_step(networks, real, optimizers):
    generator, discriminator = networks["generator"], networks["discriminator"]
    for_generator, for_discriminator = optimizers
    made = generator(torch.randn(len(real), NOISE, dtype=real.dtype, device=real.device))

    loss = nn.functional.softplus(-discriminator(real)).mean()
    loss = loss + nn.functional.softplus(discriminator(made.detach())).mean()
    for_discriminator.zero_grad()
    loss.backward()
    for_discriminator.step()

    fooled = nn.functional.softplus(-discriminator(made)).mean()
    for_generator.zero_grad()
    fooled.backward()
    for_generator.step()
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Ring(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    networks = make_networks()
    optimizers = make_optimizers(networks)
    for epoch in range(args.epochs):
        start, total = time.time(), 0.0
        for real in loader:
            total += train_step(networks, real, optimizers).item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {time.time() - start:.1f} s")


class Measured:
    model = make_networks
    dataset = Ring
    optimizer = make_optimizers
    batch = 128

    def step(self, model, batch, optimizer):
        return train_step(model, batch, optimizer)


if __name__ == "__main__":
    main()
