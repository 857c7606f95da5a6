"""GRD007: steps on gradients that are not finite."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

GUILTY = {
    "a NaN in the data": """
x[7, 2] = float("nan")
for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()  # <- GRD007
""",
    "log of zero": """
def loss_of(step):
    return -(model(x).sigmoid() * (step < 3)).log().mean()
for step in range(5):
    optimizer.zero_grad()
    loss = loss_of(step)
    loss.backward()
    optimizer.step()  # <- GRD007
""",
    "an empty mask, in a class": """
class Learner:
    def update(self, step):
        optimizer.zero_grad()
        mask = torch.zeros(64, 1) if step == 3 else torch.ones(64, 1)
        loss = ((model(x) - y).square() * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()  # <- GRD007
learner = Learner()
for step in range(5):
    learner.update(step)
""",
    "a learning rate that is far too high, with momentum": """
wild = torch.optim.SGD(model.parameters(), lr=1e18, momentum=0.9)
for step in range(12):
    wild.zero_grad()
    mse(model(x), y).backward()
    wild.step()  # <- GRD007
""",
    "late, when the run is watched lightly": """
for step in range(400):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    if step == 300:
        loss = loss * float("inf")
    loss.backward()
    optimizer.step()  # <- GRD007
""",
}

QUIET = {
    "batches that are skipped": """
x[7, 2] = float("nan")
for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    loss = mse(model(a), b)
    if not torch.isfinite(loss):
        continue
    loss.backward()
    optimizer.step()
""",
    "steps that are skipped by their norm": """
x[7, 2] = float("inf")
for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        optimizer.step()
""",
    "GradScaler's own probing": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
for _ in range(6):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y) * 100).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script):
    quiet(HEAD + script)
