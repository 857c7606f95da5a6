"""A sequence VAE whose KL weight is zero for the first epochs and then grows; free bits keep some gradients at zero."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence


class Model(nn.Module):
    def __init__(self, d=12, z=3):
        super().__init__()
        self.enc, self.mu, self.scale = nn.Linear(d, 24), nn.Linear(24, z), nn.Linear(24, z)
        self.dec = nn.Sequential(nn.Linear(z, 24), nn.ReLU(), nn.Linear(24, d))

    def forward(self, x):
        h = torch.relu(self.enc(x))
        q = Normal(self.mu(h), nn.functional.softplus(self.scale(h)) + 1e-3)
        return self.dec(q.rsample()), q


torch.manual_seed(0)
data = torch.randn(256, 3) @ torch.randn(3, 12)
model = Model()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    beta = max(0.0, (epoch - 2) / 4)
    for x in data[torch.randperm(256)].split(32):
        recon, q = model(x)
        kl = kl_divergence(q, Normal(0.0, 1.0)).sum(1).clamp(min=0.5).mean()
        loss = (recon - x).pow(2).sum(1).mean() + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
print(loss.item(), kl.item())
