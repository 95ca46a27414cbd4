"""Trains a small network on handwritten digits: Hugging Face Accelerate."""

import argparse

import torch
import torch.distributed.nn  # before there is a group, which defaults of its functions would hold
from accelerate import Accelerator, DataLoaderConfiguration
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
    # Otherwise `batch` would be each rank's, and the order would depend on what else drew random numbers.
    data = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
    accelerator = Accelerator(dataloader_config=data, cpu=not torch.cuda.is_available())
    device = accelerator.device
    torch.manual_seed(0)
    train_set, test_set = read_digits()
    loader = DataLoader(train_set, args.batch, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach() * len(labels)
        mean = accelerator.reduce(total).item() / len(train_set)
        correct = accuracy(model, test_set, device)
        if accelerator.is_main_process:  # accelerator.print would print on each node
            print(f"epoch {epoch}: loss {mean:.5f}, accuracy {correct:.4f}")
    correct = accuracy(model, test_set, device)
    if accelerator.is_main_process:
        print(f"accuracy {correct:.4f}")
    # A model holds the group too, and gloo's threads would outlive the last line.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    main(parser.parse_args())
