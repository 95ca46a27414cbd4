"""Two networks, two optimizers, updates in turn."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

latent = 8


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, z):
        return self.layers(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, x):
        return self.layers(x)


def main(epochs=2, batch_size=64):
    generator, discriminator = Generator(), Discriminator()
    loss_of = nn.BCELoss()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loader = DataLoader(TensorDataset(torch.randn(512, 2)), batch_size=batch_size, shuffle=True)
    for epoch in range(epochs):
        for i, (points,) in enumerate(loader):
            valid = torch.ones(points.size(0), 1)
            fake = torch.zeros(points.size(0), 1)
            optimizer_g.zero_grad()
            made = generator(torch.randn(points.size(0), latent))
            g_loss = loss_of(discriminator(made), valid)
            g_loss.backward()
            optimizer_g.step()
            optimizer_d.zero_grad()
            d_loss = (loss_of(discriminator(points), valid) + loss_of(discriminator(made.detach()), fake)) / 2
            d_loss.backward()
            optimizer_d.step()
            if i % 4 == 0:
                print(epoch, i, d_loss.item(), g_loss.item())


if __name__ == "__main__":
    main()
