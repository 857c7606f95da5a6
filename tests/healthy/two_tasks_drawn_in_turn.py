"""Two tasks with their own loaders; in every update each task runs a backward on one batch, and one step uses the sum."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"colour": nn.Linear(32, 3), "shape": nn.Linear(32, 4)})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


def forever(loader):
    while True:
        yield from loader


def make(classes):
    x = torch.randn(320, 6)
    return DataLoader(TensorDataset(x, (x @ torch.randn(6, classes)).argmax(1)), batch_size=32, shuffle=True)


torch.manual_seed(0)
streams = {"colour": forever(make(3)), "shape": forever(make(4))}
model = Shared()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(30):
    optimizer.zero_grad()
    losses = {}
    for task, stream in streams.items():
        x, y = next(stream)
        loss = nn.functional.cross_entropy(model(x, task), y)
        loss.backward()
        losses[task] = loss.item()
    optimizer.step()
print(losses)
