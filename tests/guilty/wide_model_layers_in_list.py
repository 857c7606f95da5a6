"""A configurable network whose blocks are stored in a plain Python list."""

import json

import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

config = json.loads('{"depth": 3, "width": 24, "dropout": 0.1, "lr": 0.01, "epochs": 4, "batch_size": 19, "seed": 3}')


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.linear(self.norm(x))))


class Network(nn.Module):
    def __init__(self, inputs, classes, config):
        super().__init__()
        self.stem = nn.Linear(inputs, config["width"])
        self.blocks = [Block(config["width"], config["dropout"]) for _ in range(config["depth"])]  # <- MDL001
        self.head = nn.Linear(config["width"], classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class History(list):
    def log(self, **values):
        self.append(values)
        print(" ".join(f"{k}={v:.4f}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()))


def count_parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def load(config):
    X, y = load_wine(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=26, random_state=config["seed"], stratify=y)
    mean, std = X_train.mean(0), X_train.std(0)
    tensors = [torch.tensor((a - mean) / std, dtype=torch.float32) for a in (X_train, X_test)]
    train = TensorDataset(tensors[0], torch.tensor(y_train))
    test = TensorDataset(tensors[1], torch.tensor(y_test))
    return DataLoader(train, config["batch_size"], shuffle=True), DataLoader(test, 13)


torch.manual_seed(config["seed"])
train_loader, test_loader = load(config)
model = Network(13, 3, config)
print("parameters", count_parameters(model))
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
loss_fn = nn.CrossEntropyLoss()
history = History()
for epoch in range(config["epochs"]):
    model.train()
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    history.log(epoch=epoch, loss=total / len(train_loader))
