"""Warm restarts and triangular cycles go up again by design; stepped per update, also with fractions of an epoch."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR
from torch.utils.data import DataLoader, TensorDataset


def data():
    x = torch.randn(320, 6)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True).tanh()), batch_size=32, shuffle=True)


def train(schedule):
    torch.manual_seed(0)
    loader = data()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if schedule == "restarts":
        sched = CosineAnnealingWarmRestarts(opt, T_0=1, T_mult=2, eta_min=1e-4)
    else:
        sched = CyclicLR(opt, base_lr=1e-3, max_lr=0.1, step_size_up=8, mode="triangular2")
    rates = []
    for epoch in range(4):
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if schedule == "restarts":
                sched.step(epoch + (i + 1) / len(loader))
            else:
                sched.step()
            rates.append(opt.param_groups[0]["lr"])
    return loss.item(), max(rates), min(rates)


for name in ("restarts", "cyclic"):
    print(name, train(name))
