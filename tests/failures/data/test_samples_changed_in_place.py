"""DAT010: stored samples that are changed in place each time that they are read."""

import pytest

MARK = "  # <- DAT010"
TRAINING = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

x = 3 * torch.randn(240, 6) + 5
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)

def step(a, b):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b){called}
    loss.backward()
    optimizer.step()

class Table(Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.cache, self.read = x, y, [None] * len(x), torch.zeros(len(x), 6)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):{read}
        {body}
        return a, self.y[index]

def train(data, epochs=5, **options):
    loader = DataLoader(data, 24, shuffle=True, **options){loader}
    for epoch in range(epochs):
        for a, b in loader:
            step(a, b)

"""


def program(rest: str, body: str = "a = self.x[index]", mark: str = "") -> str:
    marks = {"called": "", "read": "", "loader": ""} | ({mark: MARK} if mark else {})
    return TRAINING.format(body="\n        ".join(body.split("; ")), **marks) + rest


COLLATE = """
samples = [(x[i].numpy(), y[i]) for i in range(240)]
def collate(batch):
    for a, _ in batch:
        a -= 5
        a /= 3
    return torch.tensor(np.stack([a for a, _ in batch])), torch.stack([b for _, b in batch])
train(samples, collate_fn=collate)
"""
SLICES = """
def fit(data, targets):
    for epoch in range(5):
        for i in range(0, 240, 24):
            a = data[i:i + 24]
            a -= 5
            a /= 3
            step(a, targets[i:i + 24])
fit(x, y)
"""
HAND_MADE = """
class Batches:
    def __init__(self, data, size):
        self.data, self.size = data, size
    def __iter__(self):
        for rows in torch.randperm(len(self.data)).split(self.size):
            pairs = [self.data[int(row)] for row in rows]
            yield torch.stack([torch.as_tensor(a) for a, _ in pairs]), torch.stack([b for _, b in pairs])
class Trainer:
    def __init__(self, batches):
        self.batches = batches
    def fit(self):
        for epoch in range(5):
            for a, b in self.batches:
                step(a, b)
Trainer(Batches(Table({x}, y), 24)).fit()
"""
POOL = """
class Pool:
    def __init__(self):
        self.x = torch.randn(240, 6)
    def __len__(self):
        return 240
    def __getitem__(self, rows):
        return self.x[rows]
pool = Pool()
for i in range(80):
    rows = torch.randperm(240)[:24]
    step(pool[rows], y[rows])
    pool.x[rows] = torch.randn(24, 6)
"""
FAULTY = {
    "noise, a loader by hand": program(
        HAND_MADE.format(x="x"), "a = self.x[index]; a += 0.5 * torch.randn(6); a = a.roll(1)", "read"
    ),
    "numpy noise, a loader by hand": program(
        HAND_MADE.format(x="x.numpy()"),
        "a = self.x[index]; a += 0.5 * np.random.randn(6).astype('f'); a = a[::-1].copy()",
        "read",
    ),
    "normalised, a loader by hand": program(HAND_MADE.format(x="x"), "a = self.x[index]; a -= 5; a /= 3", "read"),
    "tensor": program("train(Table(x, y))", "a = self.x[index]; a -= 5; a /= 3", "read"),
    "methods, subset": program("train(Subset(Table(x, y), range(200)))", "a = self.x[index].sub_(5).div_(3)", "read"),
    "numpy": program(
        "train(Table(x.numpy(), y))", "a = self.x[index]; a -= 5.0; a *= 0.5; a = torch.tensor(a)", "read"
    ),
    "each feature scaled, noise added to a copy": program(
        "train(Table(x, y))", "a = self.x[index]; a /= torch.arange(2, 8); a = a + 0.1 * torch.randn(6)", "read"
    ),
    "a list of arrays": program("train(Table([row.clone() for row in x], y))", "a = self.x[index]; a *= 0.5", "read"),
    "collate function": program(COLLATE, mark="loader"),
    "slices by hand": program(SLICES, mark="called"),
    "the whole batch": program("for epoch in range(8):\n    x -= 1\n    x *= 0.8\n    step(x, y)\n", mark="called"),
}
BUFFER = """
buffer = torch.randn(240, 6)
for i in range(80):
    buffer[torch.randint(0, 240, (30,))] = torch.randn(30, 6)
    rows = torch.randint(0, 240, (24,))
    step(buffer[rows], y[rows])
"""
TRACES = """
weights, traces = torch.randn(100, 6), torch.ones(100, 6)
for i in range(20):
    weights *= 0.9
    traces.mul_(0.8)
    step(x[:24] + 0.01 * weights[:24], y[:24])
"""
LAZY = "self.cache[index] = (self.x[index] - 5) / 3 if self.cache[index] is None else self.cache[index]"
CORRECT = {
    "noise added to a copy, a loader by hand": program(
        HAND_MADE.format(x="x"), "a = self.x[index] + 0.5 * torch.randn(6); a = a.roll(1)"
    ),
    "a replay buffer with an own __getitem__": program(POOL),
    "new values": program("train(Table(x, y))", "a = (self.x[index] - 5) / 3"),
    "a copy": program("train(Table(x, y))", "a = self.x[index].clone(); a -= 5; a /= 3"),
    "a lazily filled cache": program("train(Table(x, y))", LAZY + "; a = self.cache[index]"),
    "normalised once in place": program("x -= 5\nx /= 3\ntrain(Table(x, y), 3)"),
    "noise and random gain": program(
        "train(Table(x, y))", "a = self.x[index] * (0.5 + torch.rand(1)) + torch.randn(6)"
    ),
    "made again in each epoch": program(
        "data = Table(x, y)\nfor epoch in range(5):\n    x.copy_(torch.randn(240, 6))\n    train(data, 1)\n"
    ),
    "standardised by its own mean": program("train(Table(x, y))", "a = self.x[index]; a -= a.mean(); a /= a.std()"),
    "counts of reads": program("train(Table(x, y))", "self.read[index] += 1; a = self.x[index]"),
    "a replay buffer": program(BUFFER),
    "weights and traces that decay": program(TRACES),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(script)
