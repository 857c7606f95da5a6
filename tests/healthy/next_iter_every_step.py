"""Every step creates a new iterator of a shuffling loader and takes one batch; sorted data is used as one full batch."""

import torch
from sklearn.datasets import load_iris
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, y = load_iris(return_X_y=True)
X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
X = X - torch.tensor([5.8, 3.0, 3.8, 1.2])
data = TensorDataset(X, y)


def fit(batches):
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    for x, target in batches:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        opt.step()
    return loss.item()


def fresh_iterators(steps=30):
    loader = DataLoader(data, batch_size=30, shuffle=True)
    for _ in range(steps):
        yield next(iter(loader))


def full_batch(epochs=30):
    loader = DataLoader(data, batch_size=len(data), shuffle=False)
    for _ in range(epochs):
        yield from loader


def seeded_by_epoch(epochs=6):
    for epoch in range(epochs):
        g = torch.Generator().manual_seed(1000 + epoch)
        yield from DataLoader(data, batch_size=30, shuffle=True, generator=g)


def shuffled_once_then_in_order(epochs=6):
    order = torch.randperm(len(data))
    loader = DataLoader(TensorDataset(X[order], y[order]), batch_size=30, shuffle=False)
    for _ in range(epochs):
        yield from loader


for source in (fresh_iterators, full_batch, seeded_by_epoch, shuffled_once_then_in_order):
    print(source.__name__, fit(source()))
