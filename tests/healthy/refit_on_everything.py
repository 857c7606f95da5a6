"""Choose by validation, then refit a fresh model on training and validation data together; the test set is read once."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, random_split


def build(hidden):
    torch.manual_seed(hidden)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10))


def fit(model, data, epochs):
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=64, shuffle=True, drop_last=True):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
    return model


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=100)) / len(data)


torch.manual_seed(0)
d = load_digits()
full = TensorDataset(torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target))
train, val, test = random_split(full, [1200, 300, 297])
scores = {hidden: accuracy(fit(build(hidden), train, 2), val) for hidden in (16, 48)}
best = max(scores, key=scores.get)
final = fit(build(best), ConcatDataset([train, val]), 2)
print(scores, best, accuracy(final, test))
