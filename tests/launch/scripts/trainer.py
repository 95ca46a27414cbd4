"""A trainer class that is given its model, data and optimizer; a snapshot from which it resumes; DDP with arguments."""

import os
import time

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, size):
        self.rows = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)
        self.model = DistributedDataParallel(
            self.model, bucket_cap_mb=1, find_unused_parameters=True, broadcast_buffers=False
        )

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path, weights_only=True)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = nn.functional.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()
        torch.distributed.barrier()
        time.sleep(0.001)

    def _run_epoch(self, epoch):
        print(f"[{self.gpu_id}] epoch {epoch}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.gpu_id == 0 and epoch % self.save_every == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict()}, self.snapshot_path)


def load_train_objs():
    train_set = Pairs(2048)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return train_set, model, optimizer


def main(save_every, total_epochs, batch_size, snapshot_path="snapshot.pt"):
    init_process_group("gloo")
    torch.set_num_threads(8)
    dataset, model, optimizer = load_train_objs()
    train_data = DataLoader(
        dataset, batch_size=batch_size, num_workers=2, sampler=DistributedSampler(dataset)
    )
    trainer = Trainer(model, train_data, optimizer, save_every, snapshot_path)
    trainer.train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    main(10, 2, 32)
