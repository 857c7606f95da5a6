"""Some hundred updates of a GAN whose two networks accumulate over 3 and 2 micro-batches, so their windows overlap."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
bce = nn.functional.binary_cross_entropy_with_logits
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
for step in range(300):
    opt_d.zero_grad()
    for _ in range(3):
        real = torch.randn(16, 2) + 2
        (bce(D(real), one) / 3).backward()
        (bce(D(G(torch.randn(16, 2)).detach()), zero) / 3).backward()
    opt_d.step()
    opt_g.zero_grad()
    for _ in range(2):
        loss = bce(D(G(torch.randn(16, 2))), one) / 2
        loss.backward()
    opt_g.step()
print(2 * loss.item())
