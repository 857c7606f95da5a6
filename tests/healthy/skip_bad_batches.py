"""Broken samples sometimes make the loss NaN; the loop checks, counts and skips them. Missing labels are masked."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(400, 5)
y = x @ torch.randn(5, 2)
x[37], x[202] = float("inf"), float("nan")
y[::7, 1] = float("nan")  # not measured
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
model = nn.Linear(5, 2)
opt = torch.optim.Adam(model.parameters(), lr=2e-2)


def masked_mse(pred, target):
    known = ~torch.isnan(target)
    return (pred[known] - target[known]).pow(2).mean()


skipped = 0
for epoch in range(3):
    for xb, yb in loader:
        loss = masked_mse(model(xb), yb)
        if not math.isfinite(loss.item()):
            skipped += 1
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
assert skipped
print(skipped, loss.item())
