"""A batch that does not fit raises an error; the loop clears the gradients and accumulates over its two halves."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        h = self.net(x)
        if len(x) > 48:
            raise MemoryError("not enough")
        return h


def step(model, opt, x, y, parts=1):
    opt.zero_grad()
    try:
        total = 0.0
        for xb, yb in zip(x.chunk(parts), y.chunk(parts)):
            loss = nn.functional.cross_entropy(model(xb), yb, reduction="sum") / len(x)
            loss.backward()
            total += loss.item()
    except MemoryError:
        if parts >= 8:
            raise
        return step(model, opt, x, y, parts * 2)
    opt.step()
    return total


x = torch.randn(384, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > x[:, 1]).long()), batch_size=96, shuffle=True)
model = Fragile()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = [step(model, opt, xb, yb) for _ in range(4) for xb, yb in loader]
print(losses[0], losses[-1])
