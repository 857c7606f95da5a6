"""The generator is pretrained alone; the discriminator with its waiting optimizer joins later, with a lazy R1 penalty."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
D = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_G, opt_D = torch.optim.Adam(G.parameters(), 2e-3), torch.optim.Adam(D.parameters(), 1e-3, betas=(0.0, 0.99))
M = torch.randn(4, 8)
for step in range(50):
    low = torch.randn(32, 4)
    high = torch.tanh(low @ M)
    loss_g = F.l1_loss(G(low), high)
    if step >= 15:
        D.requires_grad_(False)
        loss_g = loss_g + 1e-2 * F.softplus(-D(G(low))).mean()
        D.requires_grad_(True)
    opt_G.zero_grad(set_to_none=True)
    loss_g.backward()
    opt_G.step()
    if step >= 15:
        opt_D.zero_grad(set_to_none=True)
        loss_d = F.softplus(D(G(low).detach())).mean() + F.softplus(-D(high)).mean()
        loss_d.backward()
        opt_D.step()
        if step % 4 == 0:
            real = high.detach().requires_grad_(True)
            (grad,) = torch.autograd.grad(D(real).sum(), real, create_graph=True)
            penalty = grad.pow(2).sum(1).mean() * 4
            opt_D.zero_grad(set_to_none=True)
            penalty.backward()
            opt_D.step()
print(loss_g.item(), loss_d.item(), penalty.item())
