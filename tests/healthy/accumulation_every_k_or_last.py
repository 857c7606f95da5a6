"""Digits with gradient accumulation; the last, shorter window of the epoch is stepped too."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def get_loaders(batch_size):
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    y = torch.tensor(digits.target)
    train, test = random_split(TensorDataset(x, y), [1504, 293], generator=torch.Generator().manual_seed(1))
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=128)


def train_one_epoch(model, loader, criterion, optimizer, accum):
    model.train()
    optimizer.zero_grad()
    running = 0.0
    for i, (x, y) in enumerate(loader):
        last = (i + 1) == len(loader)
        # the last window may hold fewer micro-batches
        window = accum if i < len(loader) // accum * accum else len(loader) % accum
        loss = criterion(model(x), y) / window
        loss.backward()
        running += loss.item() * window
        if (i + 1) % accum == 0 or last:
            optimizer.step()
            optimizer.zero_grad()
    return running / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    train_loader, test_loader = get_loaders(32)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        loss = train_one_epoch(model, train_loader, nn.CrossEntropyLoss(), optimizer, args.accum)
        print(epoch, loss, evaluate(model, test_loader))


if __name__ == "__main__":
    main()
