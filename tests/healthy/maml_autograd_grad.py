"""Second-order MAML on sinusoids, inner steps by autograd.grad with create_graph and functional_call."""

import math

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
meta_opt = torch.optim.Adam(model.parameters(), lr=1e-3)


def task():
    amplitude, phase = 0.5 + 4 * torch.rand(()), math.pi * torch.rand(())

    def sample(n):
        x = 10 * torch.rand(n, 1) - 5
        return x, amplitude * torch.sin(x + phase)

    return sample


def adapt(params, x, y, lr=0.01, steps=2):
    for _ in range(steps):
        loss = nn.functional.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {name: p - lr * g for (name, p), g in zip(params.items(), grads)}
    return params


for it in range(12):
    meta_opt.zero_grad()
    meta_loss = 0.0
    for _ in range(4):
        sample = task()
        fast = adapt(dict(model.named_parameters()), *sample(10))
        x, y = sample(10)
        meta_loss = meta_loss + nn.functional.mse_loss(functional_call(model, fast, (x,)), y)
    (meta_loss / 4).backward()
    meta_opt.step()
print(meta_loss.item())
