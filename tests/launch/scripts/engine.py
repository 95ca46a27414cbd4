"""A class that makes everything itself, with a method for the loss, a compiled model and a validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

CFG = {"lr": 1e-2, "bs": 32, "epochs": 2, "hidden": 16}


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, d), nn.ReLU(), nn.Linear(d, 3))

    def forward(self, x):
        return self.net(x)

    def training_loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)


class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        full = TensorDataset(torch.randn(400, 4), torch.randint(0, 3, (400,)))
        self.train_set, self.val_set = random_split(full, [320, 80])
        self.model = MLP(cfg["hidden"])
        self.model = torch.compile(self.model)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 1)

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def fit(self):
        dl = DataLoader(self.train_set, batch_size=self.cfg["bs"], shuffle=True)
        for e in range(self.cfg["epochs"]):
            for batch in dl:
                loss = self.loss(batch)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            self.sched.step()
            self.validate()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            for x, y in DataLoader(self.val_set, batch_size=80):
                print(self.model(x).argmax(1).eq(y).float().mean())


if __name__ == "__main__":
    Engine(CFG).fit()
