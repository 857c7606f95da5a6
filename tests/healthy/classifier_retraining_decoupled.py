"""Long-tailed recognition: train the full model, then a new head on the backbone in eval mode without a graph."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
n = torch.tensor([400, 100, 25])
y = torch.repeat_interleave(torch.arange(3), n)
x = torch.randn(len(y), 6) + torch.eye(3, 6)[y] * 2
data = TensorDataset(x, y)
backbone = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU())
head = nn.Linear(32, 3)
opt = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for xb, yb in DataLoader(data, batch_size=75, shuffle=True):
    opt.zero_grad()
    F.cross_entropy(head(backbone(xb)), yb).backward()
    opt.step()

backbone.eval()
head = nn.Linear(32, 3)
opt = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
balanced = WeightedRandomSampler((1 / n.float())[y].tolist(), 525)
for epoch in range(2):
    for xb, yb in DataLoader(data, batch_size=75, sampler=balanced):
        with torch.no_grad():
            features = backbone(xb)
        loss = F.cross_entropy(head(features), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
print(loss.item())
