"""DAT044: a cached function that draws a batch."""

import pytest

HEAD = """
import functools
import random
from functools import cache, lru_cache
import numpy as np
import torch
from torch import nn

x = torch.randn(400, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step(a, b):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
"""
LOOP = """
for i in range(40):
    a, b = {}
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
"""
FAULTY = {
    "rows by randint": """
@functools.lru_cache(maxsize=None)
def fetch(split, size):
    where = torch.arange(300)
    if size is not None:
        where = where[torch.randint(len(where), (size,))]
    return x[where], y[where]
"""
    + LOOP.format('fetch("train", 64)  # <- DAT044'),
    "a slice of a permutation, a while loop": """
@cache
def batch(size=32):
    rows = torch.randperm(len(x))[:size]
    return x[rows], y[rows]
n = 0
while n < 30:
    some = batch()  # <- DAT044
    loss = nn.functional.mse_loss(model(some[0]), some[1])
    loss.backward()
    n += 1
""",
    "the next batch of an iterator, in a function": """
stream = iter(torch.utils.data.DataLoader(list(zip(x, y)), 16))
@lru_cache
def next_batch():
    return next(stream)
def train_step():
    a, b = next_batch()  # <- DAT044
    nn.functional.mse_loss(model(a), b).backward()
for _ in range(20):
    train_step()
""",
}
CORRECT = {
    "without a cache": """
def fetch(size):
    rows = torch.randint(len(x), (size,))
    return x[rows], y[rows]
"""
    + LOOP.format("fetch(64)"),
    "cached data, from which the loop selects": """
@cache
def subset():
    rows = torch.randint(len(x), (200,))
    return x[rows], y[rows]
for i in range(40):
    a, b = subset()
    rows = torch.randint(200, (32,))
    nn.functional.mse_loss(model(a[rows]), b[rows]).backward()
""",
    "all of the training part": """
@cache
def parts():
    order = torch.randperm(400)
    return x[order[:300]], y[order[:300]]
"""
    + LOOP.format("parts()"),
    "synthetic data": """
@cache
def data():
    inputs = torch.randn(100, 8)
    return inputs, torch.randint(0, 2, (100, 1)).float()
"""
    + LOOP.format("data()"),
    "another argument in each step": """
@lru_cache(maxsize=2)
def fetch(number):
    rows = np.random.default_rng(number).choice(400, 32)
    return x[rows], y[rows]
"""
    + LOOP.format("fetch(i)"),
    "one batch, drawn before the loop": """
@cache
def fetch(size):
    rows = torch.randint(len(x), (size,))
    return x[rows], y[rows]
a, b = fetch(16)
for i in range(40):
    step(a, b)
""",
    "an evaluation": """
@cache
def held_out(size):
    rows = torch.randint(len(x), (size,))
    return x[rows], y[rows]
for i in range(10):
    a, b = held_out(64)
    with torch.no_grad():
        print(nn.functional.mse_loss(model(a), b))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_call(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT044")
