"""Trains a small network on handwritten digits: DistributedDataParallel, in processes that this script starts."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which defaults of its functions would hold
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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


def main(rank, args):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=rank, world_size=args.ranks)
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    train_set, test_set = read_digits()
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch // args.ranks, sampler=sampler)
    model = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # without it every epoch takes the digits in the first one's order
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(labels)
        dist.all_reduce(total)
        mean = total.item() / len(train_set)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean:.5f}, accuracy {accuracy(model.module, test_set, device):.4f}")
    if rank == 0:
        print(f"accuracy {accuracy(model.module, test_set, device):.4f}")
    del model  # it holds the group too, and gloo's threads would outlive the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    args = parser.parse_args()
    mp.spawn(main, args=(args,), nprocs=args.ranks)
