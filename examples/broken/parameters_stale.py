"""Fine-tune a network for digits 0 to 4 on a few examples of 5 to 9.

First the new head alone, then the last block with it; the batch norms keep the statistics of the pretraining.

python finetuning.py --epochs 10
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = self.last(self.block(self.stem(x)))
        return self.head(self.dropout(x.mean((2, 3))))


def digits(first, last):
    data = load_digits()
    chosen = (data.target >= first) & (data.target <= last)
    images = torch.tensor(data.images[chosen], dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(data.target[chosen]) - first)


def train_epoch(model, loader, optimizer):
    total = 0.0
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def pretrained(epochs):
    model = Backbone(5)
    loader = DataLoader(digits(0, 4), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        model.train()
        train_epoch(model, loader, optimizer)
    return model


def freeze_norms(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


parser = argparse.ArgumentParser()
parser.add_argument("--pretrain-epochs", type=int, default=5)
parser.add_argument("--epochs", type=int, default=10, help="of each of the two stages")
parser.add_argument("--examples", type=int, default=200)
args = parser.parse_args()
torch.manual_seed(0)

model = pretrained(args.pretrain_epochs)
data = digits(5, 9)
train_set, val_set = random_split(data, [args.examples, len(data) - args.examples])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
val_loader = DataLoader(val_set, batch_size=256)

model.requires_grad_(False)
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
model.head = nn.Linear(64, 5)

for epoch in range(1, 2 * args.epochs + 1):
    if epoch == args.epochs + 1:
        model.last.requires_grad_(True)
        optimizer.add_param_group({"params": model.last.parameters(), "lr": 1e-3})
    model.train()
    freeze_norms(model)
    loss = train_epoch(model, train_loader, optimizer)
    stage = "head" if epoch <= args.epochs else "head and last block"
    print(f"epoch {epoch:2}  {stage:19}  train loss {loss:.3f}  accuracy {accuracy(model, val_loader):.3f}")
