"""A functional model whose parameters live in a dict, trained by torch.optim; the module itself is only the recipe."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
skeleton = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 2)).to("meta")
params = {}
for name, p in skeleton.named_parameters():
    value = torch.randn(p.shape) / (p.shape[-1] ** 0.5) if p.dim() > 1 else torch.zeros(p.shape)
    params[name] = value.requires_grad_(True)
opt = torch.optim.Adam(params.values(), lr=1e-2)
x = torch.randn(200, 5)
y = (x.sum(1) > 0).long()
for step in range(30):
    loss = nn.functional.cross_entropy(functional_call(skeleton, params, (x,)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
