"""A flat script: settings are globals, batches are drawn by a function into X and Y, distributed if RANK is set."""

import math
import os

import torch
from torch import nn

steps, warm, peak, floor = 300, 20, 3e-3, 3e-4
micro, pieces, context, clip = 16, 4, 32, 1.0

many = "RANK" in os.environ
if many:
    torch.distributed.init_process_group("gloo")
    pieces //= torch.distributed.get_world_size()
chief = not many or torch.distributed.get_rank() == 0
torch.manual_seed(100 + (torch.distributed.get_rank() if many else 0))

text = torch.tensor(list(open(__file__, "rb").read() * 20))


def draw():
    starts = torch.randint(len(text) - context - 1, (micro,))
    return (
        torch.stack([text[s : s + context] for s in starts]),
        torch.stack([text[s + 1 : s + 1 + context] for s in starts]),
    )


class Model(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.mix = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens, targets):
        hidden, _ = self.mix(self.embed(tokens))
        scores = self.head(hidden)
        return scores, nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95))
if many:
    model = nn.parallel.DistributedDataParallel(model)


def rate(step):
    if step < warm:
        return peak * (step + 1) / warm
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


X, Y = draw()
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    for piece in range(pieces):
        if many:
            model.require_backward_grad_sync = piece == pieces - 1
        _, loss = model(X, Y)
        X, Y = draw()
        (loss / pieces).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if chief and step % 50 == 0:
        print(step, f"{loss.item():.3f}", flush=True)
if many:
    torch.distributed.destroy_process_group()
