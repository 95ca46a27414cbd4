"""Trains a small network on handwritten digits: Lightning Fabric, around a loop that stays ours."""

import argparse

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


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
    fabric = L.Fabric(strategy="ddp", devices=args.devices, num_nodes=args.nodes)
    fabric.launch()
    fabric.seed_everything(0)
    train_set, test_set = read_digits()
    loader = DataLoader(train_set, args.batch // fabric.world_size, shuffle=True)
    loader = fabric.setup_dataloaders(loader)  # gives it a DistributedSampler, and sets its epochs
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)

    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=fabric.device)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            fabric.backward(loss)
            optimizer.step()
            total += loss.detach() * len(labels)
        mean = fabric.all_reduce(total, reduce_op="sum").item() / len(train_set)
        fabric.print(
            f"epoch {epoch}: loss {mean:.5f}, accuracy {accuracy(model, test_set, fabric.device):.4f}"
        )
    fabric.print(f"accuracy {accuracy(model, test_set, fabric.device):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--devices", type=int, default=1, help="of each node")
    parser.add_argument("--nodes", type=int, default=1)
    main(parser.parse_args())
