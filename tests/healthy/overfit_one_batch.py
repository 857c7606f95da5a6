"""Sanity check before the real run: one batch, again and again, until the loss is almost zero."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
ds = TensorDataset(torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(d.target))
loader = DataLoader(ds, batch_size=16, shuffle=False)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = next(iter(loader))
for i in range(60):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
assert loss.item() < 0.05
print(loss.item())
