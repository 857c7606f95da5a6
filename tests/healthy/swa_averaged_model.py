"""Stochastic weight averaging: AveragedModel, SWALR and update_bn (a sweep in train mode without updates)."""

import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, y = load_wine(return_X_y=True)
order = torch.randperm(len(X))
X, y = torch.tensor(X, dtype=torch.float32)[order], torch.tensor(y)[order]
mu, sd = X[:120].mean(0), X[:120].std(0)
X = (X - mu) / sd
train_loader = DataLoader(TensorDataset(X[:120], y[:120]), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(13, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
swa_start = 6
for epoch in range(10):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(train_loader, swa_model)
swa_model.eval()
with torch.no_grad():
    print(loss.item(), (swa_model(X[120:]).argmax(1) == y[120:]).float().mean().item())
