"""Predicts ratings of films from who rates, what is rated and a few features of both."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS, FILMS, FEATURES = 2000, 1000, 32


class Ratings(Dataset):
    def __init__(self, count=16384):
        generator = torch.Generator().manual_seed(1)
        self.user = torch.randint(USERS, (count,), generator=generator)
        self.film = torch.randint(FILMS, (count,), generator=generator)
        self.features = torch.randn(count, FEATURES, generator=generator)
        taste = torch.randn(USERS, generator=generator)
        self.rating = 3 + taste[self.user] + self.features.mean(1)

    def __len__(self):
        return len(self.rating)

    def __getitem__(self, index):
        return {
            "user": self.user[index],
            "film": self.film[index],
            "features": self.features[index],
            "rating": self.rating[index],
        }


class Recommender(nn.Module):
    def __init__(self, width=64, hidden=512):
        super().__init__()
        self.users = nn.Embedding(USERS, width)
        self.films = nn.Embedding(FILMS, width)
        self.layers = nn.Sequential(
            nn.Linear(2 * width + FEATURES, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, user, film, features):
        x = torch.cat([self.users(user), self.films(film), features], dim=1)
        return self.layers(x).squeeze(1)


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        predicted = model(batch["user"], batch["film"], batch["features"])
        loss = criterion(predicted, batch["rating"])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Ratings(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.MSELoss()
    for epoch in range(args.epochs):
        start = time.time()
        loss = train_epoch(model, loader, optimizer, criterion)
        print(f"epoch {epoch}: loss {loss:.4f}, {time.time() - start:.1f} s")


class Measured:
    model = Recommender
    dataset = Ratings

    def loss(self, model, batch):
        predicted = model(batch["user"], batch["film"], batch["features"])
        return nn.functional.mse_loss(predicted, batch["rating"])

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=1e-3)


if __name__ == "__main__":
    main()
