"""Parametrised layers: spectral norm on the critic, weight norm on a regressor."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

torch.manual_seed(0)
critic = nn.Sequential(spectral_norm(nn.Linear(2, 16)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(16, 1)))
regressor = nn.Sequential(weight_norm(nn.Linear(2, 16)), nn.Tanh(), weight_norm(nn.Linear(16, 1)))
opt = torch.optim.Adam([{"params": critic.parameters()}, {"params": regressor.parameters(), "lr": 1e-2}], lr=2e-3)
for step in range(30):
    a, b = torch.randn(64, 2), torch.randn(64, 2) * 0.5 + 1
    hinge = torch.relu(1 - critic(a)).mean() + torch.relu(1 + critic(b)).mean()
    fit = nn.functional.huber_loss(regressor(a), (a[:, :1] * a[:, 1:]).clone())
    opt.zero_grad()
    (hinge + fit).backward()
    opt.step()
print(hinge.item(), fit.item())
