"""First-order MAML and Reptile: the inner loop trains a deep copy; its gradients are copied to the meta model by hand."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def make_task(gen):
    w = torch.randn(3, 1, generator=gen)

    def draw(n):
        x = torch.randn(n, 3, generator=gen)
        return x, x @ w

    return draw


def fomaml(meta, meta_opt, tasks, inner_lr=0.05):
    meta_opt.zero_grad()
    total = 0.0
    for draw in tasks:
        learner = copy.deepcopy(meta)
        inner = torch.optim.SGD(learner.parameters(), lr=inner_lr)
        for _ in range(3):
            x, y = draw(16)
            inner.zero_grad()
            F.mse_loss(learner(x), y).backward()
            inner.step()
        x, y = draw(16)
        learner.zero_grad()
        loss = F.mse_loss(learner(x), y)
        loss.backward()
        total += loss.item()
        for p, q in zip(meta.parameters(), learner.parameters()):
            p.grad = q.grad.clone() / len(tasks) if p.grad is None else p.grad + q.grad / len(tasks)
    meta_opt.step()
    return total / len(tasks)


def reptile(meta, draw, inner_lr=0.05, eps=0.1):
    learner = copy.deepcopy(meta)
    inner = torch.optim.SGD(learner.parameters(), lr=inner_lr)
    for _ in range(4):
        x, y = draw(16)
        inner.zero_grad()
        loss = F.mse_loss(learner(x), y)
        loss.backward()
        inner.step()
    with torch.no_grad():
        for p, q in zip(meta.parameters(), learner.parameters()):
            p.lerp_(q, eps)
    return loss.item()


gen = torch.Generator().manual_seed(2)
torch.manual_seed(2)
meta = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
meta_opt = torch.optim.Adam(meta.parameters(), lr=1e-2)
for _ in range(8):
    a = fomaml(meta, meta_opt, [make_task(gen) for _ in range(3)])
for _ in range(8):
    b = reptile(meta, make_task(gen))
print(a, b)
