"""Triplet loss with three passes of one network, semi-hard mining, sum over the active triplets."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn

torch.manual_seed(0)
X, y = load_wine(return_X_y=True)
perm = torch.randperm(len(X))
X, y = torch.tensor(X, dtype=torch.float32)[perm], torch.tensor(y)[perm]
Xtr, ytr = X[:140], y[:140]
mean, std = Xtr.mean(0), Xtr.std(0)
Xtr = (Xtr - mean) / std
by_class = [torch.nonzero(ytr == c).squeeze(1) for c in range(3)]
net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 8))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)


def triplets(n):
    out = []
    for _ in range(n):
        c, o = torch.randperm(3)[:2].tolist()
        a, p = by_class[c][torch.randperm(len(by_class[c]))[:2]].tolist()
        out.append((a, p, by_class[o][int(torch.randint(len(by_class[o]), ()))].item()))
    return torch.tensor(out).T


for step in range(20):
    a, p, n = (net(Xtr[i]) for i in triplets(48))
    losses = F.triplet_margin_loss(a, p, n, margin=1.0, reduction="none")
    active = losses[losses > 0]
    loss = active.sum() / max(1, len(active))
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    emb, test = net(Xtr), net((X[140:] - mean) / std)
    acc = (ytr[torch.cdist(test, emb).argmin(1)] == y[140:]).float().mean().item()
print(loss.item(), acc)
