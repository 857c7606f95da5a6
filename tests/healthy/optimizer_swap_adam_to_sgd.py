"""Adam at first, SGD with momentum for the last epochs: a second optimizer over the same parameters, on purpose."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
loader = DataLoader(
    TensorDataset(torch.tensor(d.data[:1500], dtype=torch.float32) / 16, torch.tensor(d.target[:1500])),
    100,
    shuffle=True,
)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
plan = [
    (2, lambda p: torch.optim.Adam(p, lr=5e-3)),
    (2, lambda p: torch.optim.SGD(p, lr=5e-2, momentum=0.9)),
]
for epochs, make in plan:
    optimizer = make(model.parameters())
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    print(type(optimizer).__name__, loss.item())
