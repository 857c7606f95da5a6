"""Dropout is active in every mode on purpose, for a Bayesian approximation; the spread over many passes is the result."""

import torch
import torch.nn.functional as F
from torch import nn


class BayesNet(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.a, self.b, self.p = nn.Linear(1, 32), nn.Linear(32, 1), p

    def forward(self, x, sample=True):
        return self.b(F.dropout(torch.relu(self.a(x)), self.p, training=sample))


torch.manual_seed(0)
x = torch.linspace(-2, 2, 120).unsqueeze(1)
y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
net = BayesNet()
opt = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
net.train()
for step in range(60):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
net.eval()
with torch.no_grad():
    draws = torch.stack([net(x) for _ in range(20)])
    point = net(x, sample=False)
print(loss.item(), draws.std(0).mean().item(), F.mse_loss(point, y).item())
