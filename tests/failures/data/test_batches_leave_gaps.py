"""DAT016: batches that are cut by hand and do not cover the data."""

import pytest

HEAD = """
import math
import numpy as np
import torch
from torch import nn

x = torch.randn(320, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
bs = 32

def train_step(a, b):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "a fixed end": """
for i in range(0, 320, 32):
    train_step(x[i:32], y[i:32])  # <- DAT016
""",
    "a fixed end with a name": """
def train_epoch(x, y, batch_size):
    for start in range(0, len(x), batch_size):
        inputs, targets = x[start:batch_size], y[start:batch_size]  # <- DAT016
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
train_epoch(x, y, 32)
""",
    "an end that is assigned": """
i = 0
for i in range(0, len(x), bs):
    end = bs
    train_step(x[i:end], y[i:end])  # <- DAT016
""",
    "multiplied twice": """
for i in range(0, len(x), bs):
    a, b = x[i * bs:(i + 1) * bs], y[i * bs:(i + 1) * bs]  # <- DAT016
    if len(a):
        train_step(a, b)
""",
    "the number of a batch": """
class Trainer:
    def __init__(self, batch_size):
        self.batch_size = batch_size
    def fit(self, x, y):
        batches = math.ceil(len(x) / self.batch_size)
        for i in range(batches):
            start, end = i, min(i + self.batch_size, len(x))
            loss = nn.functional.mse_loss(model(x[start:end]), y[start:end])  # <- DAT016
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
Trainer(32).fit(x, y)
""",
    "one sample is left out of each batch": """
order = torch.randperm(len(x))
for i in range(0, len(x), bs):
    train_step(x[i:i + bs - 1], y[i:i + bs - 1])  # <- DAT016
""",
    "a step that is too long": """
for i in range(0, len(x), 64):
    train_step(x[i:i + 32], y[i:i + 32])  # <- DAT016
""",
    "indices of a shuffled order": """
order = np.random.permutation(len(x))
for i in range(len(x) // bs):
    batch = order[i:i + bs]  # <- DAT016
    train_step(x[batch], y[batch])
""",
}

CORRECT = {
    "plain": """
for i in range(0, len(x), bs):
    train_step(x[i:i + bs], y[i:i + bs])
for i in range(len(x) // bs):
    train_step(x[i * bs:(i + 1) * bs], y[i * bs:(i + 1) * bs])
for i in range(0, len(x), bs):
    end = min(i + bs, len(x))
    train_step(x[i:end], y[i:end])
""",
    "windows of a series": """
length = 8
series = x[:, 0]
for i in range(len(series) - length):
    train_step(series[i:i + length][None], series[i + length].reshape(1, 1))
for i in range(0, len(series) - length, 3):
    train_step(series[i:i + length][None], series[i + length].reshape(1, 1))
for i in range(0, len(series) - length, 16):
    train_step(series[i:i + length][None], series[i + length].reshape(1, 1))
""",
    "targets that are shifted": """
for i in range(0, len(x) - bs, bs):
    train_step(x[i:i + bs - 1], y[i + 1:i + bs])
""",
    "the rest of the data": """
for i in range(0, 96, 32):
    train_step(x[i:], y[i:])
    train_step(x[i:320], y[i:320])
""",
    "growing training sets": """
for n in range(32, 320, 32):
    train_step(x[:n], y[:n])
    train_step(x[n:n + 32], y[n:n + 32])
""",
    "batches of a number": """
for i in range(10):
    start = i * bs
    train_step(x[start:start + bs], y[start:start + bs])
start = 0
for i in range(0, 320, 32):
    start = start + 1
    train_step(x[start:start + bs], y[start:start + bs])
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
