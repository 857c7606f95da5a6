"""ReduceLROnPlateau on the validation loss, early stopping, and the best weights, copied with deepcopy and loaded again."""

import copy
import math

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.bad, self.state = patience, math.inf, 0, None

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def validate(model, loader, loss_fn):
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            total += loss_fn(model(x), y).item() * len(x)
            n += len(x)
    return total / n


torch.manual_seed(0)
X, y = load_diabetes(return_X_y=True)
X = torch.tensor(X, dtype=torch.float32) * 20
y = torch.tensor(y, dtype=torch.float32).unsqueeze(1)
y = (y - y[:340].mean()) / y[:340].std()
train = DataLoader(TensorDataset(X[:340], y[:340]), 34, shuffle=True)
val = DataLoader(TensorDataset(X[340:], y[340:]), 50)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
stopper = EarlyStopping()
for epoch in range(15):
    model.train()
    for xb, yb in train:
        opt.zero_grad()
        loss = nn.MSELoss()(model(xb), yb)
        loss.backward()
        opt.step()
    value = validate(model, val, nn.MSELoss())
    plateau.step(value)
    if stopper(value, model):
        break
model.load_state_dict(stopper.state)
print(epoch, stopper.best, validate(model, val, nn.MSELoss()), opt.param_groups[0]["lr"])
