"""A physics-informed network: u'' = -u with two nested autograd.grad calls, trained with Adam and then with LBFGS."""

import torch
from torch import nn

torch.manual_seed(0)
u = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
t = torch.linspace(0, 3.14, 40).unsqueeze(1).requires_grad_(True)
t0 = torch.zeros(1, 1, requires_grad=True)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def residuals():
    y = u(t)
    d2 = derivative(derivative(y, t), t)
    y0 = u(t0)
    return (d2 + y).pow(2).mean() + 10 * y0.pow(2).mean() + 10 * (derivative(y0, t0) - 1).pow(2).mean()


adam = torch.optim.Adam(u.parameters(), lr=5e-3)
for _ in range(40):
    adam.zero_grad()
    loss = residuals()
    loss.backward()
    adam.step()
lbfgs = torch.optim.LBFGS(u.parameters(), max_iter=10, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = residuals()
    loss.backward()
    return loss


for _ in range(3):
    loss = lbfgs.step(closure)
print(loss.item())
