"""A function for an epoch inside main(), which sees main's model and loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    xs = torch.randn(256, 8)
    ys = xs.sum(1, keepdim=True)
    model = nn.Linear(8, 1).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(xs, ys), batch_size=16)

    def train_one_epoch():
        model.train()
        total = 0
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            opt.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            total += loss.item()
        return total

    for epoch in range(4):
        print(train_one_epoch())


if __name__ == "__main__":
    main()
