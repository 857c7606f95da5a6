"""Losses over all pairs, expanded by hand: quantile regression DQN, a ranking loss, a scalar target for an LSGAN score."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
N = 8
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, N))
target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, N))
target.load_state_dict(net.state_dict())
taus = (torch.arange(N) + 0.5) / N
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(30):
    s, s2 = torch.randn(32, 4), torch.randn(32, 4)
    reward = s.sum(1, keepdim=True)
    with torch.no_grad():
        goal = reward + 0.5 * target(s2)
    current = net(s)
    a = current.unsqueeze(1).expand(-1, N, -1)
    b = goal.unsqueeze(2).expand(-1, -1, N)
    huber = F.smooth_l1_loss(a, b, reduction="none")
    weight = (taus - ((b - a).detach() < 0).float()).abs()
    quantile_loss = (weight * huber).sum(2).mean()
    scores = current.mean(1)
    rank = F.softplus(-(scores.unsqueeze(0) - scores.unsqueeze(1)) * torch.sign(reward.T - reward)).mean()
    lsgan = F.mse_loss(scores, torch.tensor(1.0).expand_as(scores))
    loss = quantile_loss + 0.1 * rank + 0.01 * lsgan
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 9:
        target.load_state_dict(net.state_dict())
print(quantile_loss.item(), rank.item(), lsgan.item())
