"""A learning-rate range test that goes up until the loss explodes, then restores the weights and trains properly."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LRFinder:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.model_state = copy.deepcopy(model.state_dict())
        self.optimizer_state = copy.deepcopy(optimizer.state_dict())
        self.history = []

    def range_test(self, loader, start=1e-4, end=100.0, num_iter=40, smooth=0.3):
        it = iter(loader)
        gamma = (end / start) ** (1 / num_iter)
        for group in self.optimizer.param_groups:
            group["lr"] = start
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma)
        best, avg = float("inf"), None
        for i in range(num_iter):
            try:
                x, y = next(it)
            except StopIteration:
                it = iter(loader)
                x, y = next(it)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            avg = loss.item() if avg is None else smooth * loss.item() + (1 - smooth) * avg
            self.history.append((scheduler.get_last_lr()[0], avg))
            scheduler.step()
            best = min(best, avg)
            if avg > 4 * best:
                break

    def suggestion(self):
        return min(self.history, key=lambda pair: pair[1])[0] / 10

    def reset(self):
        self.model.load_state_dict(self.model_state)
        self.optimizer.load_state_dict(self.optimizer_state)


torch.manual_seed(0)
d = load_digits()
ds = TensorDataset(torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target))
loader = DataLoader(ds, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), nn.CrossEntropyLoss())
finder.range_test(loader)
lr = finder.suggestion()
finder.reset()
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
print(len(finder.history), lr, loss.item())
