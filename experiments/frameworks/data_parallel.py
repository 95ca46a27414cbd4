"""Trains a small network on handwritten digits: one process, all its GPUs, by DataParallel."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def read_digits():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    held_out = 297
    return TensorDataset(images[:-held_out], labels[:-held_out]), (images[-held_out:], labels[-held_out:])


def accuracy(model, test_set, device):
    images, labels = (tensor.to(device) for tensor in test_set)
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train_set, test_set = read_digits()
    sampler = RandomSampler(train_set, generator=torch.Generator())
    loader = DataLoader(train_set, args.batch, sampler=sampler)
    model = Net().to(device)
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)
    else:
        print("fewer than two GPUs here: this trains on a single device, as single.py does")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.generator.manual_seed(epoch)  # all scripts of this folder take the digits in the same order
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(labels)
        mean = total.item() / len(train_set)
        print(f"epoch {epoch}: loss {mean:.5f}, accuracy {accuracy(model, test_set, device):.4f}")
    print(f"accuracy {accuracy(model, test_set, device):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    main(parser.parse_args())
