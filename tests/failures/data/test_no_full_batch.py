"""DAT046: a loader, or a loop over whole batches, that has no full batch."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from torch.utils.data import BatchSampler, RandomSampler, Sampler
torch.manual_seed(0)
X = torch.randn(50, 10)
Y = (X[:, 0] > 0).long()
model = nn.Linear(10, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
def update(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
"""

FAULTY = {
    "a function and a setting": """
BATCH, DROP = 64, True
def loop(batches):
    for number, (x, y) in enumerate(batches):
        update(x, y)
train_set = TensorDataset(X, Y)
batches = DataLoader(train_set, BATCH, shuffle=True, drop_last=DROP)  # <- DAT046
for epoch in range(3):
    loop(batches)
for x, y in batches:
    print(x.shape)
""",
    "rows of a subset": """
part = Subset(TensorDataset(X, Y), range(20))
def train():
    loader = DataLoader(part, batch_size=32, drop_last=True)  # <- DAT046
    for x, y in loader:
        update(x, y)
train()
""",
    "an attribute, a comprehension": """
class Trainer:
    def __init__(self):
        self.loader = DataLoader(TensorDataset(X[:8], Y[:8]), batch_size=16, drop_last=True)  # <- DAT046
    def run(self):
        return [update(x, y) for x, y in self.loader]
Trainer().run()
""",
}

RUN_ONLY = {
    "a dataset of its own": """
class Rows(Dataset):
    def __len__(self):
        return len(X)
    def __getitem__(self, i):
        return X[i], Y[i]
loader = DataLoader(Rows(), batch_size=128, shuffle=True, drop_last=True)  # <- DAT046
for epoch in range(2):
    for x, y in loader:
        update(x, y)
""",
    "a batch sampler": """
data = TensorDataset(X, Y)
batches = BatchSampler(RandomSampler(data), 64, drop_last=True)
loader = DataLoader(data, batch_sampler=batches)  # <- DAT046
for x, y in loader:
    update(x, y)
""",
    "a small held-out part": """
train_set, held_out = random_split(TensorDataset(X, Y), [40, 10])
loaders = [
    DataLoader(each, batch_size=20, drop_last=True)  # <- DAT046
    for each in (held_out,)
]
for epoch in range(3):
    for x, y in DataLoader(train_set, batch_size=20, shuffle=True):
        update(x, y)
    with torch.no_grad():
        print(sum(F.cross_entropy(model(x), y).item() for x, y in loaders[0]))
""",
    "zipped with another loader": """
few = DataLoader(TensorDataset(X[:6]), batch_size=8, drop_last=True)  # <- DAT046
many = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
for (other,), (x, y) in zip(few, many):
    update(x, y)
""",
}

LINT_ONLY = {
    "a loop over whole batches": """
batch_size = 64
for epoch in range(3):
    for b in range(len(X) // batch_size):  # <- DAT046
        update(X[b * batch_size:(b + 1) * batch_size], Y[b * batch_size:(b + 1) * batch_size])
        F.mse_loss(model(X), X[:, :2]).backward()
""",
    "a number of batches": """
n_batches = X.shape[0] // 100
for epoch in range(3):
    order = torch.randperm(len(X))
    for b in range(n_batches):  # <- DAT046
        rows = order[b * 100:(b + 1) * 100]
        F.cross_entropy(model(X[rows]), Y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}

CORRECT = {
    "an empty held-out set": """
held_out = DataLoader(TensorDataset(X[:0], Y[:0]), batch_size=16)
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, drop_last=True):
        update(x, y)
    for x, y in held_out:
        print(model(x))
""",
    "an empty set whose last batch is dropped": """
held_out = DataLoader(TensorDataset(X[:0], Y[:0]), batch_size=16, drop_last=True)
for x, y in held_out:
    update(x, y)
""",
    "a loader that is not used": """
unused = DataLoader(TensorDataset(X, Y), batch_size=64, drop_last=True)
print(len(unused))
for x, y in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, drop_last=True):
    update(x, y)
""",
    "a replay buffer that fills": """
buffer = []
for step in range(12):
    buffer += [(X[i], Y[i]) for i in range(4)]
    loader = DataLoader(buffer, batch_size=16, shuffle=True, drop_last=True)
    for x, y in loader:
        update(x, y)
""",
    "clients of which one has few samples": """
for rows in (range(0, 5), range(5, 25), range(25, 50)):
    loader = DataLoader(Subset(TensorDataset(X, Y), rows), batch_size=16, shuffle=True, drop_last=True)
    for x, y in loader:
        update(x, y)
""",
    "a resumed run that skips all batches": """
class Remaining(BatchSampler):
    def __init__(self, sampler, batch_size, drop_last, skip):
        super().__init__(sampler, batch_size, drop_last)
        self.skip = skip
    def __iter__(self):
        batches = list(super().__iter__())[self.skip:]
        self.skip = 0
        return iter(batches)
data = TensorDataset(X, Y)
loader = DataLoader(data, batch_sampler=Remaining(RandomSampler(data), 16, True, 3))
for x, y in loader:
    update(x, y)
""",
    "an endless sampler": """
class Endless(Sampler):
    def __iter__(self):
        while True:
            yield from torch.randperm(8).tolist()
loader = DataLoader(TensorDataset(X[:8], Y[:8]), batch_size=16, sampler=Endless(), drop_last=True)
for step, (x, y) in enumerate(loader):
    update(x, y)
    if step == 4:
        break
""",
    "samples drawn with replacement": """
data = TensorDataset(X[:8], Y[:8])
loader = DataLoader(data, 16, sampler=RandomSampler(data, replacement=True, num_samples=64), drop_last=True)
for x, y in loader:
    update(x, y)
""",
    "a whole number of batches": """
for b in range(len(X) // 25):
    F.cross_entropy(model(X[25 * b:25 * b + 25]), Y[25 * b:25 * b + 25]).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", (FAULTY | RUN_ONLY).values(), ids=(FAULTY | RUN_ONLY).keys())
def test_run_reports_loaders_that_gave_no_batch(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", (FAULTY | LINT_ONLY).values(), ids=(FAULTY | LINT_ONLY).keys())
def test_lint_reports_sizes_without_a_full_batch(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
