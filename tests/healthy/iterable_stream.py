"""An endless stream through IterableDataset; steps are counted, evaluation every n steps inside the loop."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            x = torch.randn(4, generator=g)
            yield x, (x[0] * x[1] + x[2]).unsqueeze(0)


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    value = torch.stack([nn.functional.mse_loss(model(x), y) for x, y in batches]).mean().item()
    model.train()
    return value


torch.manual_seed(0)
held_out = list(itertools.islice(DataLoader(Stream(seed=999), batch_size=64), 3))
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step, (x, y) in enumerate(DataLoader(Stream(seed=1), batch_size=32)):
    if step == 60:
        break
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 19:
        print(step, loss.item(), evaluate(model, held_out))
