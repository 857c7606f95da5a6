"""Fine-tuning: a net is pretrained, then given a new head; the optimizer was built before it."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, Subset, TensorDataset


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = Features()
        self.heads = nn.ModuleDict()
        self.task = None

    def add_task(self, name, classes):
        self.heads[name] = nn.Linear(32, classes)
        self.task = name

    def forward(self, x):
        return self.heads[self.task](self.features(x))


class Fitter:
    def __init__(self, model, lr, epochs):
        self.model, self.epochs = model, epochs
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = optim.AdamW(model.parameters(), lr=lr)

    def fit(self, loader):
        self.model.train()
        for epoch in range(self.epochs):
            total = 0.0
            for x, y in loader:
                loss = self.train_step(x, y)
                total += loss * len(y)
            print(f"  epoch {epoch}: {total / len(loader.dataset):.4f}")

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()  # <- OPT001
        return loss.item()

    @torch.no_grad()
    def score(self, loader):
        self.model.eval()
        right = sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader)
        return right / len(loader.dataset)


def split(dataset, keep):
    return Subset(dataset, keep.nonzero().squeeze(1).tolist())


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    dataset = TensorDataset(x, y)
    first = torch.arange(len(y)) < 1400
    upstream = split(dataset, first & (y < 5))
    model = Model()
    model.add_task("coarse", classes=5)
    fitter = Fitter(model, lr=3e-3, epochs=2)
    fitter.fit(DataLoader(upstream, batch_size=50, shuffle=True, drop_last=True))

    # the downstream task has all ten classes
    model.add_task("digits", classes=10)
    fitter.epochs = 3
    fitter.fit(DataLoader(split(dataset, first), batch_size=50, shuffle=True, drop_last=True))
    print("accuracy", fitter.score(DataLoader(split(dataset, ~first), batch_size=100)))


main()
