"""A model's class inside main(), accumulation without no_sync, a metric that is averaged in every step."""

import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler


def main():
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ds = TensorDataset(torch.randn(1000, 10), torch.randint(0, 2, (1000,)))
    sampler = DistributedSampler(ds)
    dl = DataLoader(ds, batch_size=20, sampler=sampler)
    net = nn.ModuleList([nn.Linear(10, 10) for _ in range(3)])

    class Wrap(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            for l in self.layers:
                x = l(x).relu()
            return x

    model = DDP(Wrap(net), find_unused_parameters=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    accum = 4
    opt.zero_grad()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(dl):
            loss = nn.CrossEntropyLoss()(model(x), y) / accum
            loss.backward()
            if (i + 1) % accum == 0:
                opt.step()
                opt.zero_grad()
            metric = loss.detach().clone()
            dist.all_reduce(metric)
            dist.barrier()
            if rank == 0:
                print(metric.item() / world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
