"""BYOL: online and target networks, stop-gradient, target moves by EMA and never sees an optimizer."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class MLPHead(nn.Sequential):
    def __init__(self, i, h, o):
        super().__init__(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(inplace=True), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, tau=0.99):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), MLPHead(64, 64, 16))
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.predictor = MLPHead(16, 32, 16)
        self.tau = tau

    @torch.no_grad()
    def momentum_update(self):
        for o, t in zip(self.online.parameters(), self.target.parameters()):
            t.data = t.data * self.tau + o.data * (1.0 - self.tau)

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            self.momentum_update()
            ta, tb = self.target(a).detach(), self.target(b).detach()
        return (self.loss(pa, tb) + self.loss(pb, ta)).mean()

    @staticmethod
    def loss(p, z):
        return 2 - 2 * F.cosine_similarity(p, z, dim=-1)


def augment(x):
    return x * (torch.rand_like(x) > 0.15) + 0.05 * torch.randn_like(x)


torch.manual_seed(11)
data = torch.tensor(load_digits().data, dtype=torch.float32) / 16
loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True, drop_last=True)
net = BYOL()
optimizer = torch.optim.SGD(
    [*net.online.parameters(), *net.predictor.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4
)
for epoch in range(3):
    total = 0.0
    for x in loader:
        loss = net(augment(x), augment(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
