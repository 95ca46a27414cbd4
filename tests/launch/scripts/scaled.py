"""Autocast and a gradient scaler, accumulation over batches, resuming from a checkpoint, started by spawn."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD = 2
ACCUMULATE = 4


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    os.environ["OMP_NUM_THREADS"] = "4"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def make_data():
    return TensorDataset(torch.randn(1024, 16), torch.randint(0, 4, (1024,)))


def run(rank, world_size):
    setup(rank, world_size)
    data = make_data()
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    net = DDP(net, gradient_as_bucket_view=True, static_graph=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    start = 0
    if os.path.exists("scaled.pt"):
        state = torch.load("scaled.pt", weights_only=True)
        net.module.load_state_dict(state["net"])
        opt.load_state_dict(state["opt"])
        start = state["epoch"]
    for epoch in range(start, 3):
        sampler.set_epoch(epoch)
        for i, (inputs, labels) in enumerate(loader):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = net(inputs)
                loss = nn.functional.cross_entropy(outputs, labels) / ACCUMULATE
            scaler.scale(loss).backward()
            if (i + 1) % ACCUMULATE == 0:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(epoch, i, total.item())
        if rank == 0:
            torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, "scaled.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(WORLD,), nprocs=WORLD)
