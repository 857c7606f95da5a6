"""A grid search in one process, which creates and deletes many models, optimizers and loaders."""

import itertools

import torch
from sklearn.datasets import load_iris
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
}


def trial(opt_name, lr, hidden, train, val):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    optimizer = OPTIMIZERS[opt_name](model.parameters(), lr=lr)
    loader = DataLoader(train, batch_size=30, shuffle=True)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        x, y = next(iter(DataLoader(val, batch_size=len(val))))
        return nn.functional.cross_entropy(model(x), y).item()


X, y = load_iris(return_X_y=True)
data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y))
train, val = random_split(data, [120, 30], generator=torch.Generator().manual_seed(0))
grid = list(itertools.product(OPTIMIZERS, [1e-2, 1e-1], [8, 16]))
results = {combo: trial(*combo, train, val) for combo in grid}
best = min(results, key=results.get)
print(best, results[best])
