"""The optimizer contains all parameters from the start; the encoder is frozen for two epochs and trained afterwards."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, y = load_wine(return_X_y=True)
perm = torch.randperm(len(X))
X, y = torch.tensor(X, dtype=torch.float32)[perm], torch.tensor(y)[perm]
X = (X - X[:140].mean(0)) / X[:140].std(0)
train = DataLoader(TensorDataset(X[:140], y[:140]), batch_size=14, shuffle=True)
encoder = nn.Sequential(nn.Linear(13, 16), nn.Tanh())
head = nn.Linear(16, 3)
optimizer = torch.optim.AdamW(
    [{"params": encoder.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 1e-2}], weight_decay=0.01
)


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad = flag
        if not flag:
            p.grad = None


for epoch in range(5):
    set_trainable(encoder, epoch >= 2)
    for xb, yb in train:
        optimizer.zero_grad()
        out = head(encoder(xb))
        loss = nn.CrossEntropyLoss()(out, yb)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(epoch, loss.item(), (head(encoder(X[140:])).argmax(1) == y[140:]).float().mean().item())
