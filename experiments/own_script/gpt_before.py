"""A small character-level language model with a trainer class, in the manner of minGPT."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEXT = "To be, or not to be, that is the question. " * 50
LETTERS = sorted(set(TEXT))


class TrainConfig:
    learning_rate = 3e-3
    betas = (0.9, 0.95)
    weight_decay = 0.1
    grad_norm_clip = 1.0
    batch_size = 32
    epochs = 2


class Characters(Dataset):
    def __init__(self, block=32):
        number = {letter: index for index, letter in enumerate(LETTERS)}
        self.data = torch.tensor([number[letter] for letter in TEXT])
        self.block = block

    def __len__(self):
        return len(self.data) - self.block

    def __getitem__(self, index):
        chunk = self.data[index : index + self.block + 1]
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    def __init__(self, width=64, heads=4, depth=2, block=32):
        super().__init__()
        self.tokens = nn.Embedding(len(LETTERS), width)
        self.places = nn.Parameter(torch.zeros(1, block, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS), bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block), persistent=False)

    def configure_optimizers(self, config):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        no_decay = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": config.weight_decay},
            {"params": no_decay, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas)

    def forward(self, tokens, targets=None):
        hidden = self.tokens(tokens) + self.places[:, : tokens.shape[1]]
        logits = self.head(self.blocks(hidden, mask=self.mask))
        loss = (
            None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        )
        return logits, loss


class Trainer:
    def __init__(self, config, model, dataset):
        self.config, self.model, self.dataset = config, model, dataset
        self.optimizer = model.configure_optimizers(config)

    def run(self):
        loader = DataLoader(self.dataset, batch_size=self.config.batch_size, shuffle=True, drop_last=True)
        for epoch in range(self.config.epochs):
            start, total = time.time(), 0.0
            for tokens, targets in loader:
                _, loss = self.model(tokens, targets)
                self.model.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
                self.optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: loss {total / len(loader):.4f}, {time.time() - start:.1f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=TrainConfig.epochs)
    config = TrainConfig()
    config.epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    Trainer(config, GPT(), Characters()).run()


if __name__ == "__main__":
    main()
