"""Domain adaptation: a labelled and an unlabelled loader, two losses, each with its own backward before one step."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
xs = torch.randn(320, 5)
source = DataLoader(TensorDataset(xs, (xs[:, 0] - xs[:, 1] > 0).long()), batch_size=32, shuffle=True, drop_last=True)
target = DataLoader(TensorDataset(torch.randn(640, 5) + 0.5), batch_size=64, shuffle=True, drop_last=True)
net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(3):
    for (x, y), (u,) in zip(source, target):
        opt.zero_grad()
        supervised = F.cross_entropy(net(x), y)
        supervised.backward()
        p = F.softmax(net(u), dim=1)
        entropy = -(p * p.clamp_min(1e-8).log()).sum(1).mean()
        (0.1 * entropy).backward()
        opt.step()
    print(epoch, supervised.item(), entropy.item())
