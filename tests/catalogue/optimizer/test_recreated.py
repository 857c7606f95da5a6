"""OPT004: optimizers without a past."""

from __future__ import annotations

import pytest

DATA = """
import copy
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Subset, TensorDataset
x = torch.randn(96, 6)
data = TensorDataset(x, torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
model = build()
def epoch(optimizer, model, loader):
    for a, b in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
"""
GUILTY = {
    "in_the_epoch": """
for _ in range(4):
    optimizer = optim.Adam(model.parameters(), lr=0.01)  # <- OPT004
    epoch(optimizer, model, loader)
""",
    "in_a_function": """
def train_one_epoch(model, loader, lr):
    model.train()
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9)  # <- OPT004
    for i, (a, b) in enumerate(loader):
        (F.cross_entropy(model(a), b) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
def evaluate(model):
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(a), b, reduction="sum").item() for a, b in held_out)
held_out = DataLoader(TensorDataset(torch.randn(30, 6), torch.randint(0, 3, (30,))), batch_size=30)
for _ in range(4):
    train_one_epoch(model, loader, 0.05)
    evaluate(model)
""",
    "in_every_batch": """
for a, b in loader:
    optimizer = torch.optim.AdamW(model.parameters())  # <- OPT004
    loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "factory": """
class Task:
    def __init__(self, model):
        self.model = model
    def configure(self):
        return optim.RMSprop(self.model.parameters(), lr=1e-3)  # <- OPT004
    def fit(self, epochs):
        for _ in range(epochs):
            with torch.autocast("cpu", torch.bfloat16):
                epoch(self.configure(), self.model, loader)
Task(model).fit(5)
""",
}
QUIET = {
    "once": """
optimizer = optim.Adam(model.parameters())
for _ in range(4):
    epoch(optimizer, model, loader)
""",
    "stages_of_rates": """
for lr in (0.1, 0.01, 0.001, 0.0001):
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    epoch(optimizer, model, loader)
""",
    "stages_of_epochs": """
for stage in range(3):
    optimizer = optim.Adam(model.parameters())
    for _ in range(3):
        epoch(optimizer, model, loader)
""",
    "stages_of_layers": """
for depth in (2, 0, 0):
    for p in model.parameters():
        p.requires_grad_(False)
    model[depth:].requires_grad_(True)
    optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad])
    epoch(optimizer, model, loader)
""",
    "folds": """
start = copy.deepcopy(model.state_dict())
for fold in range(4):
    model.load_state_dict(start)
    part = Subset(data, [i for i in range(96) if i % 4 != fold])
    epoch(optim.Adam(model.parameters()), model, DataLoader(part, batch_size=16, drop_last=True))
""",
    "restarts_from_the_same_weights": """
start = copy.deepcopy(model.state_dict())
for trial in range(4):
    model.load_state_dict(start)
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "new_models": """
for trial in range(4):
    model = build()
    epoch(optim.Adam(model.parameters()), model, loader)
""",
    "plain_sgd": """
for _ in range(4):
    epoch(optim.SGD(model.parameters(), lr=0.1), model, loader)
""",
    "tasks": """
tasks = [DataLoader(Subset(data, range(i, 96, 4)), batch_size=8) for i in range(4)]
for task in tasks:
    epoch(optim.Adam(model.parameters()), model, task)
""",
    "clients": """
clients = [DataLoader(Subset(data, range(i, 96, 3)), batch_size=8) for i in range(3)]
for _ in range(3):
    for client in clients:
        epoch(optim.SGD(model.parameters(), lr=0.1, momentum=0.5), model, client)
""",
    "inner_loops": """
meta = optim.Adam(model.parameters(), lr=0.01)
for a, b in loader:
    learner = copy.deepcopy(model)
    inner = optim.Adam(learner.parameters())
    for _ in range(2):
        inner.zero_grad()
        F.cross_entropy(learner(a), b).backward()
        inner.step()
    meta.zero_grad()
    for p, q in zip(model.parameters(), learner.parameters()):
        p.grad = (p - q).detach()
    meta.step()
""",
    "resumed": """
optimizer = optim.Adam(model.parameters())
epoch(optimizer, model, loader)
state = optimizer.state_dict(), copy.deepcopy(model.state_dict())
optimizer = optim.Adam(model.parameters())
model.load_state_dict(state[1])
optimizer.load_state_dict(state[0])
epoch(optimizer, model, loader)
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found_at_its_line(guilty, script: str):
    assert "This line has built 3" in guilty(DATA + script).findings[0].message


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script: str):
    quiet(DATA + script)
