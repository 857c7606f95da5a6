"""PCGrad: one backward per task, gradients are copied out, projected, and put back before the step."""

import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
shared = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
heads = nn.ModuleList([nn.Linear(16, 1) for _ in range(2)])
params = list(shared.parameters())
optimizer = torch.optim.Adam(list(shared.parameters()) + list(heads.parameters()), lr=1e-2)


def flat_grads():
    return torch.cat([p.grad.flatten() for p in params])


def project(grads):
    out = []
    for i, g in enumerate(grads):
        g = g.clone()
        others = [j for j in range(len(grads)) if j != i]
        random.shuffle(others)
        for j in others:
            dot = g @ grads[j]
            if dot < 0:
                g -= dot / grads[j].norm().square() * grads[j]
        out.append(g)
    return sum(out)


def put_back(flat):
    at = 0
    for p in params:
        p.grad = flat[at : at + p.numel()].view_as(p).clone()
        at += p.numel()


x = torch.randn(256, 4)
targets = [x[:, :1] * 2 - x[:, 1:2], -x[:, :1] + x[:, 2:3].abs()]
for step in range(25):
    idx = torch.randint(0, 256, (64,))
    features = shared(x[idx])
    per_task, head_grads = [], {}
    for k, (head, target) in enumerate(zip(heads, targets)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(features), target[idx])
        loss.backward(retain_graph=k == 0)
        per_task.append(flat_grads())
        head_grads.update({p: p.grad for p in head.parameters()})
    optimizer.zero_grad()
    put_back(project(per_task))
    for p, g in head_grads.items():
        p.grad = g
    optimizer.step()
print(loss.item())
