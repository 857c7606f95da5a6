"""Train, save all states, build all objects again, load the states, and continue."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Experiment:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=6)
        self.epoch = 0

    def run(self, loader, until):
        while self.epoch < until:
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1
        return loss.item()

    def save(self, path):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "epoch": self.epoch,
                "rng": torch.get_rng_state(),
            },
            path,
        )

    def load(self, path):
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]
        torch.set_rng_state(state["rng"])


torch.manual_seed(0)
x = torch.randn(240, 6)
y = (x[:, 0] > x[:, 1]).long()
loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.pt")
    first = Experiment()
    first.run(loader, 3)
    first.save(path)
    straight = first.run(loader, 6)
    second = Experiment()
    second.load(path)
    resumed = second.run(loader, 6)
assert straight == resumed
print(straight, resumed)
