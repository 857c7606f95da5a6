"""A small search whose trials train in parallel threads, each with its own generators, model and optimizer."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(320, 5, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] * X[:, 1] > 0).long()


def make_model(seed):
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 2))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=g) * 0.4
    return model


def trial(seed, lr, accumulate):
    model = make_model(seed)
    loader = DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(seed))
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(15):
        opt.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
            loss.backward()
            if (i + 1) % accumulate == 0:
                opt.step()
                opt.zero_grad()
        with torch.no_grad():
            acc = (model(X[:100]).argmax(1) == Y[:100]).float().mean().item()
    return seed, lr, acc, loss.item()


with ThreadPoolExecutor(max_workers=4) as pool:
    jobs = [pool.submit(trial, seed, lr, k) for seed, lr, k in [(0, 1e-2, 1), (1, 3e-2, 2), (2, 1e-2, 4), (3, 1e-3, 2)]]
    for job in jobs:
        print(*job.result())
torch.manual_seed(0)  # the models' first values were drawn from the common generator, in any order
