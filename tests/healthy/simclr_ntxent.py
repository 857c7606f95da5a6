"""SimCLR: two views through one network, NT-Xent, then a linear probe on frozen features."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


def nt_xent(z1, z2, tau=0.5):
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    sim = z @ z.T / tau
    n = len(z1)
    sim.fill_diagonal_(-1e9)
    return F.cross_entropy(sim, torch.cat([torch.arange(n) + n, torch.arange(n)]))


def view(x):
    img = x.view(-1, 8, 8)
    img = torch.roll(img, shifts=int(torch.randint(-1, 2, ())), dims=2)
    return (img + 0.1 * torch.randn_like(img)).flatten(1)


torch.manual_seed(0)
d = load_digits()
X, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
projector = nn.Sequential(nn.ReLU(), nn.Linear(32, 16))
opt = torch.optim.Adam(list(encoder.parameters()) + list(projector.parameters()), lr=2e-3)
for epoch in range(3):
    for idx in torch.randperm(1400).split(200):
        xb = X[idx]
        loss = nt_xent(projector(encoder(view(xb))), projector(encoder(view(xb))))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("pretrain", loss.item())

encoder.eval()
for p in encoder.parameters():
    p.requires_grad_(False)
probe = nn.Linear(32, 10)
opt = torch.optim.SGD(probe.parameters(), lr=0.5)
for epoch in range(2):
    for idx in torch.randperm(1400).split(100):
        opt.zero_grad()
        F.cross_entropy(probe(encoder(X[idx])), y[idx]).backward()
        opt.step()
print("probe", (probe(encoder(X[1400:])).argmax(1) == y[1400:]).float().mean().item())
