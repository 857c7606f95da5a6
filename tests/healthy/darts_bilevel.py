"""First-order DARTS: the mixing weights learn on the second half of the data, the operations on the first."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class MixedOp(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ops = nn.ModuleList([nn.Linear(d, d), nn.Sequential(nn.Linear(d, d), nn.ReLU()), nn.Identity()])

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self.ops))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([MixedOp(8) for _ in range(2)])
        self.head = nn.Linear(8, 2)
        self.alphas = nn.Parameter(1e-3 * torch.randn(2, 3))

    def forward(self, x):
        for cell, alpha in zip(self.cells, F.softmax(self.alphas, dim=-1)):
            x = cell(x, alpha)
        return self.head(x)

    def weights(self):
        return [p for n, p in self.named_parameters() if n != "alphas"]


torch.manual_seed(0)
x = torch.randn(480, 8)
y = ((x[:, :2] ** 2).sum(1) > 1.4).long()
train_queue = DataLoader(TensorDataset(x[:240], y[:240]), 40, shuffle=True)
valid_queue = DataLoader(TensorDataset(x[240:], y[240:]), 40, shuffle=True)
net = Network()
w_optim = torch.optim.SGD(net.weights(), 0.1, momentum=0.9, weight_decay=3e-4)
a_optim = torch.optim.Adam([net.alphas], 3e-3, betas=(0.5, 0.999))
for epoch in range(3):
    for (xt, yt), (xv, yv) in zip(train_queue, valid_queue):
        a_optim.zero_grad()
        F.cross_entropy(net(xv), yv).backward()
        a_optim.step()
        w_optim.zero_grad()
        loss = F.cross_entropy(net(xt), yt)
        loss.backward()
        nn.utils.clip_grad_norm_(net.weights(), 5.0)
        w_optim.step()
    with torch.no_grad():
        acc = sum((net(a).argmax(1) == b).sum().item() for a, b in valid_queue) / 240
    print(epoch, loss.item(), acc)
