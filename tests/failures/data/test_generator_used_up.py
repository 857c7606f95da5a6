"""DAT027: a generator of batches that the first epoch uses up."""

import pytest

HEAD = """
import itertools
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def batches(size=16):
    for rows in torch.randperm(96).split(size):
        yield x[rows], y[rows]

def endless(size=16):
    while True:
        rows = torch.randint(96, (size,))
        yield x[rows], y[rows]

class Batches:
    def __iter__(self):
        return batches()

def update(a, b):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
"""
STEP = "optimizer.zero_grad(); nn.functional.mse_loss(model(a), b).backward(); optimizer.step()"
FAULTY = {
    "passed to a function": f"""
def train(data, epochs):
    for epoch in range(epochs):
        for a, b in data:  # <- DAT027
            {STEP}
train(batches(8), epochs=10)
""",
    "a variable": f"""
data = batches()
for epoch in range(5):
    for i, (a, b) in enumerate(data):  # <- DAT027
        {STEP}
""",
    "zip of splits": f"""
pairs = zip(x.split(16), y.split(16))
for epoch in range(5):
    for a, b in pairs:  # <- DAT027
        {STEP}
""",
    "a generator expression": f"""
data = ((x[k : k + 8], y[k : k + 8]) for k in range(0, 96, 8))
epoch = 0
while epoch < 5:
    for a, b in data:  # <- DAT027
        {STEP}
    epoch += 1
""",
    "iter of a list": f"""
loader = iter(list(batches()))
for epoch in range(5):
    for a, b in loader:  # <- DAT027
        {STEP}
""",
}
EVALUATED = """
def evaluate(data):
    total = 0.0
    with torch.no_grad():
        for a, b in data:
            total += nn.functional.mse_loss(model(a), b).item()
    return total
"""
FAULTY |= {
    "a validation": f"""
{EVALUATED}
held_out = batches(32)
for epoch in range(5):
    for a, b in batches():
        {STEP}
    print(evaluate(held_out))  # <- DAT027
""",
    "a validation after an epoch in a function": f"""
{EVALUATED}
def train():
    for a, b in batches():
        update(a, b)
def fit(valid, epochs=5):
    for epoch in range(epochs):
        train()
        print(evaluate(data=valid))  # <- DAT027
fit(((a, b) for a, b in batches(32)))
""",
    "a validation without a function": f"""
held_out = iter(list(batches(32)))
for epoch in range(5):
    for a, b in batches():
        {STEP}
    for a, b in held_out:  # <- DAT027
        print(nn.functional.mse_loss(model(a), b).item())
""",
    "an epoch in a function": """
def train(data):
    for a, b in data:
        update(a, b)
data = zip(x.split(16), y.split(16))
for epoch in range(5):
    train(data)  # <- DAT027
""",
}
CORRECT = {
    "a validation with new batches": f"""
{EVALUATED}
for epoch in range(5):
    for a, b in batches():
        {STEP}
    held_out = batches(32)
    print(evaluate(held_out), evaluate(batches(32)))
""",
    "a validation at the end": f"""
{EVALUATED}
held_out = batches(32)
for epoch in range(5):
    for a, b in batches():
        {STEP}
print(evaluate(held_out))
""",
    "a function that takes some of the batches": f"""
def train(data, count=3):
    for a, b in data:
        {STEP}
        count -= 1
        if not count:
            return
data = batches()
for epoch in range(2):
    train(data)
""",
    "a list for a function": f"""
{EVALUATED}
held_out = tuple(batches(32))
for epoch in range(5):
    for a, b in batches():
        {STEP}
    print(evaluate(held_out))
""",
    "created in each epoch": f"""
for epoch in range(5):
    for a, b in batches():
        {STEP}
""",
    "assigned in each epoch": f"""
for epoch in range(5):
    data = batches()
    for a, b in data:
        {STEP}
""",
    "a list of it": f"""
data = list(batches())
for epoch in range(5):
    for a, b in data:
        {STEP}
""",
    "an object that can be iterated again": f"""
def train(data, epochs):
    for epoch in range(epochs):
        for a, b in data:
            {STEP}
train(Batches(), epochs=10)
""",
    "endless": f"""
data = endless()
for epoch in range(5):
    for i, (a, b) in enumerate(data):
        {STEP}
        if i == 7:
            break
""",
    "left early": f"""
data = batches(2)
for epoch in range(5):
    for i, (a, b) in enumerate(data):
        if i == 7:
            break
        {STEP}
""",
    "one pass": f"""
data = batches()
for epoch in range(1):
    for a, b in data:
        {STEP}
""",
    "a list or a generator": f"""
def train(data, epochs):
    for epoch in range(epochs):
        for a, b in data:
            {STEP}
train(list(batches()), 10)
train(batches(), 1)
""",
    "nothing is trained": """
rows = zip(x, y)
for epoch in range(2):
    for a, b in rows:
        print(a)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_generator_for_all_epochs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_batches(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT027")
