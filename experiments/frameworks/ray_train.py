"""Trains a small network on handwritten digits: Ray Train, in its own workers."""

import argparse

import ray.train.torch
import torch
import torch.distributed as dist
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


def train(args):
    device = ray.train.torch.get_device()
    workers = ray.train.get_context().get_world_size()
    torch.manual_seed(0)
    train_set, test_set = read_digits()
    sampler = RandomSampler(train_set, generator=torch.Generator())
    loader = DataLoader(train_set, args.batch // workers, sampler=sampler)
    loader = ray.train.torch.prepare_data_loader(loader)  # of several workers each gets a DistributedSampler
    model = ray.train.torch.prepare_model(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.generator.manual_seed(epoch)  # all scripts of this folder take the digits in the same order
        if workers > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(labels)
        dist.all_reduce(total)
        mean = total.item() / len(train_set)
        correct = accuracy(model, test_set, device)
        ray.train.report({"loss": mean, "accuracy": correct})
        if ray.train.get_context().get_world_rank() == 0:
            print(f"epoch {epoch}: loss {mean:.5f}, accuracy {correct:.4f}")
    return accuracy(model, test_set, device)


def main(args):
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=args,
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=torch.cuda.is_available()),
    )
    print(f"accuracy {trainer.fit().return_value:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--workers", type=int, default=2)
    main(parser.parse_args())
