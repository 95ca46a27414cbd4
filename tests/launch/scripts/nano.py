"""Settings as globals, batches from a function, autocast and a scaler, accumulation, a rate per step; no guard."""

import math
import os
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size, block_size, gradient_accumulation_steps = 8, 16, 2
learning_rate, min_lr, warmup_iters, max_iters, grad_clip = 1e-3, 1e-4, 5, 20, 1.0
eval_interval, eval_iters, dtype = 10, 2, "bfloat16"

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    torch.distributed.init_process_group("gloo")
device = "cpu"
torch.manual_seed(1337)
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
ctx = nullcontext() if device == "cpu" else torch.autocast(device, ptdtype)
data = {name: torch.randint(64, (4096,)) for name in ("train", "val")}


def get_batch(split):
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([data[split][i : i + block_size] for i in ix])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class Net(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, idx, targets):
        logits = self.head(self.embed(idx))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, rate):
        return torch.optim.AdamW(self.parameters(), lr=rate)


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {}
    for split in ("train", "val"):
        out[split] = sum(model(*get_batch(split))[1].item() for _ in range(eval_iters)) / eval_iters
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    return min_lr + 0.5 * (learning_rate - min_lr) * (1 + math.cos(math.pi * it / max_iters))


model = Net().to(device)
scaler = torch.amp.GradScaler(device, enabled=(dtype == "float16"))
optimizer = model.configure_optimizers(learning_rate)
if ddp:
    model = DDP(model)
X, Y = get_batch("train")
t0 = time.time()
iter_num = 0
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}")
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
