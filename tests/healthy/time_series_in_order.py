"""Forecasting: windows in time order without shuffling, a target with long runs of one class, walk-forward validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Windows(Dataset):
    def __init__(self, series, width=12):
        self.series, self.width = series, width

    def __len__(self):
        return len(self.series) - self.width

    def __getitem__(self, t):
        w = self.series[t : t + self.width + 1]
        return w[:-1], (w[-1] > w[-2]).long()


torch.manual_seed(0)
t = torch.arange(500, dtype=torch.float32)
data = Windows(torch.sin(t / 25) + t / 500)
train, val = Subset(data, range(400)), Subset(data, range(412, 488))
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(3):
    for x, y in DataLoader(train, batch_size=20, shuffle=False):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(val, batch_size=38))
    print(epoch, loss.item(), right / len(val))
