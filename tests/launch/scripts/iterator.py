"""A while loop that takes batches from an iterator, and trains an autoencoder on one tensor."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.full((10,), index / 400)


class AutoEncoder(nn.Module):
    def __init__(self, size, code):
        super().__init__()
        self.encode = nn.Linear(size, code)
        self.decode = nn.Linear(code, size)

    def forward(self, x):
        return self.decode(self.encode(x).relu())


def fit(model, dataset, steps, batch, rate):
    optimizer = optim.Adam(model.parameters(), lr=rate)
    loader = DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=True)
    iterator = iter(loader)
    step = 0
    while step < steps:
        try:
            rows = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            rows = next(iterator)
        noisy = rows + 0.1 * torch.randn_like(rows)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(noisy), rows)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            torch.cuda.synchronize() if torch.cuda.is_available() else None
            print(step, float(loss))


if __name__ == "__main__":
    fit(AutoEncoder(10, 4), Noise(), 50, 20, 1e-3)
