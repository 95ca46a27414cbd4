"""Trains a small network on handwritten digits: Lightning's Trainer."""

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


class Digits(L.LightningModule):
    def __init__(self, test_set):
        super().__init__()
        self.model = Net()
        self.test_set = test_set

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def training_step(self, batch):
        images, labels = batch
        loss = functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        # A validation loader would be split among the ranks, and padded to equal lengths: 298 digits.
        epoch, mean = self.current_epoch, self.trainer.callback_metrics["loss"]
        self.print(
            f"epoch {epoch}: loss {mean:.5f}, accuracy {accuracy(self.model, self.test_set, self.device):.4f}"
        )


def main(args):
    L.seed_everything(0)
    train_set, test_set = read_digits()
    trainer = L.Trainer(
        strategy="ddp",
        devices=args.devices,
        num_nodes=args.nodes,
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(train_set, args.batch // trainer.world_size, shuffle=True)
    model = Digits(test_set)
    trainer.fit(model, loader)
    model.print(f"accuracy {accuracy(model.model, test_set, model.device):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--devices", type=int, default=1, help="of each node")
    parser.add_argument("--nodes", type=int, default=1)
    main(parser.parse_args())
