"""An EMA class that swaps its shadow weights in for evaluation and back out for training."""

import torch
from sklearn.datasets import load_iris
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.95):
        self.model, self.decay = model, decay
        self.shadow, self.backup = {}, {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                self.shadow[name] = p.data.clone()

    def update(self):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                self.shadow[name] = (1.0 - self.decay) * p.data + self.decay * self.shadow[name]

    def apply_shadow(self):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                self.backup[name] = p.data
                p.data = self.shadow[name]

    def restore(self):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                p.data = self.backup[name]
        self.backup = {}


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        result = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return result


torch.manual_seed(4)
X, y = load_iris(return_X_y=True)
perm = torch.randperm(150)
X, y = torch.tensor(X, dtype=torch.float32)[perm], torch.tensor(y)[perm]
loader = DataLoader(TensorDataset(X[:120], y[:120]), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
ema = EMA(model)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for epoch in range(6):
    for xb, yb in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(model(xb), yb).backward()
        opt.step()
        ema.update()
    raw = accuracy(model, X[120:], y[120:])
    ema.apply_shadow()
    averaged = accuracy(model, X[120:], y[120:])
    ema.restore()
    print(epoch, raw, averaged)
