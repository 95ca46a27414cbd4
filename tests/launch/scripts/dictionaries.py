"""Batches are dictionaries, the loss is in the model's output, the schedule warms up over updates."""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class Tagged(Dataset):
    def __init__(self, count=512):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": torch.full((12,), index % 50), "labels": torch.tensor(index % 2)}


class Classifier(nn.Module):
    def __init__(self, num_labels=2):
        super().__init__()
        self.embed = nn.EmbeddingBag(50, 16)
        self.head = nn.Linear(16, num_labels)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embed(input_ids))
        return Output(nn.functional.cross_entropy(logits, labels), logits)


def get_linear_schedule_with_warmup(optimizer, warmup, total):
    return LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup)) * max(0.0, 1 - step / total)
    )


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    return parser.parse_args()


def main():
    args = parse_args()
    train_dataset = Tagged()
    train_dataloader = DataLoader(
        train_dataset,
        shuffle=True,
        batch_size=args.per_device_train_batch_size,
        num_workers=4,
        pin_memory=True,
    )
    model = Classifier(num_labels=2)
    no_decay = ["bias"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(d in n for d in no_decay)]},
        {
            "params": [p for n, p in model.named_parameters() if any(d in n for d in no_decay)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    max_train_steps = args.num_train_epochs * len(train_dataloader)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, 10, max_train_steps)
    completed = 0
    for _epoch in range(args.num_train_epochs):
        model.train()
        for _step, batch in enumerate(train_dataloader):
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            completed += 1


if __name__ == "__main__":
    main()
