"""Train a classifier; then, in eval mode, optimise an input for one class without changing the model."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
loader = DataLoader(
    TensorDataset(torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)),
    100,
    shuffle=True,
    drop_last=True,
)
net = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 10))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
net.train()
for x, y in loader:
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()

net.eval()
canvas = torch.full((1, 64), 0.5, requires_grad=True)
painter = torch.optim.Adam([canvas], lr=0.05)
for step in range(20):
    painter.zero_grad()
    score = net(canvas)[0, 3]
    (-score + 0.1 * canvas.square().sum()).backward()
    painter.step()
    with torch.no_grad():
        canvas.clamp_(0, 1)
print(score.item())
