"""Forward-mode training (forward gradients): directional derivatives along random tangents, no backward at all."""

import warnings

import torch
import torch.autograd.forward_ad as fwAD
from torch import nn
from torch.func import functional_call

for category in (DeprecationWarning, FutureWarning):
    warnings.filterwarnings("ignore", category=category)  # torch loads its own scripted formulas
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
params = {k: p.detach().clone() for k, p in net.named_parameters()}
x = torch.randn(100, 2)
y = x[:, :1] - 2 * x[:, 1:]
for step in range(60):
    tangents = {k: torch.randn_like(p) for k, p in params.items()}
    with fwAD.dual_level():
        duals = {k: fwAD.make_dual(p, tangents[k]) for k, p in params.items()}
        loss, slope = fwAD.unpack_dual(((functional_call(net, duals, (x,)) - y) ** 2).mean())
    params = {k: p - 5e-3 * slope * tangents[k] for k, p in params.items()}
print(loss.item())
