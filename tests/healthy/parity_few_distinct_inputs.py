"""Parity of six bits: there are only 64 inputs, so training and validation samples naturally have inputs in common."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Parity(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.bits = torch.randint(0, 2, (n, 6), generator=g)

    def __len__(self):
        return len(self.bits)

    def __getitem__(self, i):
        b = self.bits[i]
        return b.float() * 2 - 1, b.sum() % 2


torch.manual_seed(0)
train_loader, val_loader = DataLoader(Parity(512, 0), 64, shuffle=True), DataLoader(Parity(128, 1), 64)
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for x, y in train_loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        acc = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader) / 128
    print(epoch, loss.item(), acc)
