"""A tiny DDPM with EMA weights for sampling, random timesteps, and a sampling loop in eval without graph."""

import copy

import torch
from sklearn.datasets import make_swiss_roll
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

T = 20
torch.manual_seed(0)
points = torch.tensor(make_swiss_roll(800, noise=0.1, random_state=0)[0][:, [0, 2]], dtype=torch.float32) / 10
loader = DataLoader(TensorDataset(points), batch_size=100, shuffle=True)
betas = torch.linspace(1e-3, 0.3, T)
alpha_bar = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 16)
        self.net = nn.Sequential(nn.Linear(18, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=-1))


model = Denoiser()
ema = copy.deepcopy(model).requires_grad_(False).eval()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    for (x0,) in loader:
        t = torch.randint(0, T, (len(x0),))
        eps = torch.randn_like(x0)
        xt = alpha_bar[t].sqrt().unsqueeze(1) * x0 + (1 - alpha_bar[t]).sqrt().unsqueeze(1) * eps
        loss = nn.functional.mse_loss(model(xt, t), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.1)


@torch.no_grad()
def sample(n):
    x = torch.randn(n, 2)
    for t in reversed(range(T)):
        eps = ema(x, torch.full((n,), t))
        x = (x - betas[t] / (1 - alpha_bar[t]).sqrt() * eps) / (1 - betas[t]).sqrt()
        if t:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    return x


print(loss.item(), sample(16).abs().mean().item())
