"""Momentum is stored in the gradients themselves: they are decayed in place after each step and never cleared."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.randn(256, 4)
y = x[:, :1] - x[:, 1:2] ** 2
for step in range(40):
    i = torch.randint(0, 256, (32,))
    loss = nn.functional.mse_loss(model(x[i]), y[i])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.mul_(0.8)
print(loss.item())
