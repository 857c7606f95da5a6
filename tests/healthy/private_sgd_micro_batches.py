"""Differentially private SGD: the clipped gradient of each micro-batch is stored, and the step uses their noisy sum."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MICRO_BATCHES, LIMIT, NOISE = 4, 1.0, 0.3


class PrivateOptimizer:
    """Steps another optimizer, once per MICRO_BATCHES calls."""

    def __init__(self, inner):
        self.inner = inner
        self.parameters = [p for group in inner.param_groups for p in group["params"]]
        self.summed = [torch.zeros_like(p) for p in self.parameters]
        self.calls = 0

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        for total, p in zip(self.summed, self.parameters):
            total += p.grad * (LIMIT / (norm + 1e-6)).clamp(max=1.0)
        self.calls += 1
        if self.calls % MICRO_BATCHES:
            return
        for k, p in enumerate(self.parameters):
            p.grad = (self.summed[k] + NOISE * LIMIT * torch.randn_like(p)) / MICRO_BATCHES
            self.summed[k] = torch.zeros_like(p)
        self.inner.step()


torch.manual_seed(0)
x = torch.randn(320, 6)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = PrivateOptimizer(torch.optim.SGD(model.parameters(), lr=0.2))
for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
