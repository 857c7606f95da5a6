"""Predict how far diabetes progresses within a year, from ten measurements of 442 patients.

python regression.py --epochs 60
"""

import argparse

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60)
args = parser.parse_args()
torch.manual_seed(0)

data = load_diabetes(scaled=False)
x = torch.tensor(data.data, dtype=torch.float32)
y = torch.tensor(data.target, dtype=torch.float32)
order = torch.randperm(len(x))
train, val = order[:330], order[330:]
mean, std = x[train].mean(0), x[train].std(0)
x = (x - mean) / std
y = (y - y[train].mean()) / y[train].std()

train_loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[val], y[val]), batch_size=32)

model = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Dropout(0.2), nn.Linear(64, 1))

for epoch in range(1, args.epochs + 1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    model.train()
    squares = 0.0
    for inputs, targets in train_loader:
        predictions = model(inputs).squeeze(1)
        loss = (predictions - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        squares += loss.item() * len(targets)

    model.eval()
    error = 0.0
    with torch.no_grad():
        for inputs, targets in val_loader:
            error += (model(inputs).squeeze(1) - targets).square().mean().item() * len(targets)
    error /= len(val)
    if epoch % 10 == 0 or epoch == args.epochs:
        r2 = 1 - error / y[val].var(correction=0).item()
        print(f"epoch {epoch:3}  train loss {squares / len(train):.3f}  val loss {error:.3f}  R2 {r2:.3f}")
