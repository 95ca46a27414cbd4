"""Trains a small network on handwritten digits: DeepSpeed, with ZeRO."""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
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


def main(args):
    deepspeed.init_distributed()
    torch.manual_seed(0)
    train_set, test_set = read_digits()
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch // dist.get_world_size(), sampler=sampler)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    config = {
        "train_batch_size": args.batch,
        "gradient_clipping": 0.0,  # by default gradients are clipped, at a norm of 1
        "zero_optimization": {"stage": args.stage},
        "zero_allow_untested_optimizer": True,  # those tested with ZeRO are of the family of Adam
    }
    model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    device = model.device

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # without it every epoch takes the digits in the first one's order
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = functional.cross_entropy(model(images), labels)
            model.backward(loss)
            model.step()
            total += loss.detach() * len(labels)
        dist.all_reduce(total)
        mean = total.item() / len(train_set)
        correct = accuracy(model, test_set, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean:.5f}, accuracy {correct:.4f}")
    correct = accuracy(model, test_set, device)
    if dist.get_rank() == 0:
        print(f"accuracy {correct:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO: 1, 2 or 3")
    parser.add_argument("--local_rank", type=int, help="given by the launcher deepspeed")
    main(parser.parse_args())
