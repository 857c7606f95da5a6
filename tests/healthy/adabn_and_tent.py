"""Adapt to a shifted domain: BatchNorm statistics from a pass in train mode (AdaBN), then TENT on its affine parameters."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def shifted(n, shift, scale):
    x = torch.randn(n, 5)
    return TensorDataset(x * scale + shift, (x[:, 0] + x[:, 1] > 0).long())


torch.manual_seed(0)
source, target = shifted(500, 0.0, 1.0), shifted(300, 2.0, 1.5)
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in DataLoader(source, batch_size=50, shuffle=True):
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()


def accuracy(data):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=100)) / len(data)


before = accuracy(target)
model.train()
with torch.no_grad():
    for x, _ in DataLoader(target, batch_size=100):
        model(x)
adapted = accuracy(target)

model.train()
model.requires_grad_(False)
affine = list(model[1].parameters())
for p in affine:
    p.requires_grad_(True)
tent = torch.optim.SGD(affine, lr=1e-2, momentum=0.9)
right = 0
for x, y in DataLoader(target, batch_size=100):
    out = model(x)
    entropy = -(out.softmax(1) * out.log_softmax(1)).sum(1).mean()
    tent.zero_grad()
    entropy.backward()
    tent.step()
    right += (out.argmax(1) == y).sum().item()
print(before, adapted, right / 300)
