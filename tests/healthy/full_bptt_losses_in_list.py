"""Losses of a long rollout are collected in a list, and one backward uses all of them at the end of the episode."""

import torch
from torch import nn

torch.manual_seed(0)
controller = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(controller.parameters(), lr=1e-2)
history = []
for episode in range(12):
    state = torch.randn(16, 2)
    costs, trajectory = [], []
    for t in range(25):
        u = controller(torch.cat([state, torch.full((16, 1), t / 25)], dim=1))
        velocity = state[:, 1:] + 0.1 * u
        state = torch.cat([state[:, :1] + 0.1 * velocity, velocity], dim=1)
        costs.append(state.pow(2).sum(1).mean() + 0.01 * u.pow(2).mean())
        trajectory.append(state)
    loss = torch.stack(costs).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append((loss.detach(), torch.stack(trajectory).detach()))
print(history[0][0].item(), history[-1][0].item(), history[-1][1].sum().item())
