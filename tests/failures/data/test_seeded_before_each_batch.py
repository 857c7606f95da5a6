"""DAT024: the same seed before every batch."""

import pytest

HEAD = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
data = torch.randn(200, 8)
labels = data.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def update(x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
LOOP = """
for step in range(20):
    x, y = make_batch(32)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "the default of a parameter": """
def draw(size, seed=0):
    rng = np.random.RandomState(seed){lint}
    rows = rng.randint(0, 200, size)
    return data[rows], labels[rows]

for step in range(30):
    inputs, targets = draw(16)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "a function for all seeds": """
def set_seed(seed=1234):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed){run}

def make_batch(n):
    set_seed(){lint}
    x = torch.randn(n, 8)
    return x, x.sum(1, keepdim=True)
"""
    + LOOP,
    "numpy indices": """
SEED = 7
def make_batch(n):
    np.random.seed(SEED){run}{lint}
    rows = np.random.choice(200, n, replace=False)
    return data[rows], labels[rows]
"""
    + LOOP,
    "in the loop": """
for step in range(20):
    torch.manual_seed(0){run}{lint}
    rows = torch.randint(200, (32,))
    loss = F.mse_loss(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "Python's generator": """
def make_batch(n):
    random.seed(3){run}{lint}
    rows = random.sample(range(200), n)
    return data[rows], labels[rows]
"""
    + LOOP,
    "in a class, with a setting": """
class Sampler:
    def __init__(self, seed):
        self.seed = seed
    def __iter__(self):
        while True:
            torch.manual_seed(self.seed){run}
            rows = torch.randperm(200)[:32]
            yield data[rows], labels[rows]
for step, (x, y) in enumerate(Sampler(3)):
    update(x, y)
    if step == 20:
        break
""",
    "a generator in each call": """
def make_batch(n):
    rng = np.random.default_rng(0){lint}
    x = torch.tensor(rng.standard_normal((n, 8)), dtype=torch.float32)
    return x, x.sum(1, keepdim=True)
"""
    + LOOP,
}
CORRECT = {
    "a seed that each call gets": """
def draw(size, seed=0):
    rng = np.random.RandomState(seed)
    rows = rng.randint(0, 200, size)
    return data[rows], labels[rows]

for step in range(30):
    inputs, targets = draw(16, seed=step)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "a seed that is None unless it is given": """
def draw(size, seed=None):
    rng = np.random.RandomState(seed)
    rows = rng.randint(0, 200, size)
    return data[rows], labels[rows]

for step in range(30):
    inputs, targets = draw(16)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "seeded once": "def make_batch(n):\n    x = torch.randn(n, 8)\n    return x, x.sum(1, keepdim=True)\n" + LOOP,
    "a seed for each step": """
for step in range(20):
    torch.manual_seed(step)
    rows = torch.randint(200, (32,))
    loss = F.mse_loss(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a fixed batch to evaluate": """
def held_out(n):
    torch.manual_seed(0)
    x = torch.randn(n, 8)
    return x, x.sum(1, keepdim=True)
generator = torch.Generator().manual_seed(0)
for step in range(20):
    rows = torch.randint(200, (32,), generator=generator)
    loss = F.mse_loss(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    a, b = held_out(64)
    with torch.no_grad():
        print(F.mse_loss(model(a), b).item())
""",
    "all samples in each update, with a seed for no reason": """
mask = torch.arange(200) < 150
for step in range(20):
    torch.manual_seed(0)
    loss = F.mse_loss(model(data[mask]), labels[mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one tensor and noise in the weights": """
for step in range(20):
    torch.manual_seed(0)
    update(data, labels + 0.1 * torch.randn(200, 1))
""",
    "a closure": """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
def closure():
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    return loss
for step in range(20):
    optimizer.step(closure)
""",
    "several models from one seed": """
for rate in np.linspace(0.01, 0.1, 16):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(rate))
    rows = torch.randint(200, (32,))
    loss = F.mse_loss(model(data[rows]), labels[rows])
    loss.backward()
    optimizer.step()
""",
    "a seed for each epoch": """
for epoch in range(4):
    torch.manual_seed(epoch)
    for rows in torch.randperm(200).split(20):
        update(data[rows], labels[rows])
""",
}
MARK = "  # <- DAT024"
RUN = {name: script for name, script in FAULTY.items() if "{run}" in script}
LINT = {name: script for name, script in FAULTY.items() if "{lint}" in script}


@pytest.mark.parametrize("script", RUN.values(), ids=RUN)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script.replace("{run}", MARK).replace("{lint}", ""))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run, script):
    assert "DAT024" not in {found.code for found in run(HEAD + script).findings}


@pytest.mark.parametrize("script", LINT.values(), ids=LINT)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script.replace("{lint}", MARK).replace("{run}", ""))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
