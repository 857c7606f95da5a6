"""Regression whose uncertainty comes from dropout that stays active at test time on purpose."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 32), nn.Linear(32, 1)
        self.drop = nn.Dropout(0.3)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        return self.fc2(self.drop(F.relu(self.norm(self.fc1(x)))))


def enable_dropout(model):
    model.eval()
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.train()


def predict(model, loader, passes=10):
    enable_dropout(model)
    with torch.no_grad():
        draws = torch.stack([torch.cat([model(x) for x, _ in loader]) for _ in range(passes)])
    return draws.mean(0), draws.std(0)


torch.manual_seed(42)
X, y = load_diabetes(return_X_y=True)
Xa, Xb, ya, yb = train_test_split(X, y, random_state=0)
mean, std = ya.mean(), ya.std()
to = lambda a: torch.tensor(a, dtype=torch.float32)
train = DataLoader(TensorDataset(to(Xa) * 20, to((ya - mean) / std).unsqueeze(1)), 32, shuffle=True)
test = DataLoader(TensorDataset(to(Xb) * 20, to((yb - mean) / std).unsqueeze(1)), 64)
model = Net()
opt = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(5):
    model.train()
    for xb, yb_ in train:
        opt.zero_grad()
        F.mse_loss(model(xb), yb_).backward()
        opt.step()
mu, sigma = predict(model, test)
print(mu.mean().item(), sigma.mean().item())
