"""SCH013: ReduceLROnPlateau gets the loss of each batch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
cost = nn.MSELoss()
def update(a, b):
    opt.zero_grad()
    loss = cost(net(a), b)
    loss.backward()
    opt.step()
    return loss
"""
FAULTY = {
    "loader": """
plateau = ReduceLROnPlateau(opt, patience=3)
for epoch in range(2):
    for a, b in loader:
        opt.zero_grad()
        loss = cost(net(a), b)
        loss.backward()
        opt.step()
        plateau.step(loss.detach())  # <- SCH013
""",
    "default patience, in a function": """
def train(model, batches, optimizer, schedule):
    for number, (a, b) in enumerate(batches):
        optimizer.zero_grad()
        error = cost(model(a), b)
        error.backward()
        optimizer.step()
        schedule.step(error.item())  # <- SCH013
schedule = ReduceLROnPlateau(opt, "min", 0.5)
for epoch in range(2):
    train(net, loader, opt, schedule)
""",
    "parts of a tensor": """
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.1, patience=5)
for epoch in range(2):
    for rows in torch.randperm(256).split(8):
        loss = cost(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step(float(loss.detach()))  # <- SCH013
""",
    "class": """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        self.scheduler = ReduceLROnPlateau(self.optimizer, mode="min", patience=2)
    def batch(self, a, b):
        self.optimizer.zero_grad()
        loss = cost(net(a), b)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step(loss.detach())  # <- SCH013
    def fit(self):
        for epoch in range(2):
            for a, b in loader:
                self.batch(a, b)
Trainer().fit()
""",
    "the result of a function": """
plateau = ReduceLROnPlateau(opt)
for epoch in range(2):
    for a, b in loader:
        loss = update(a, b)
        plateau.step(loss.detach())  # <- SCH013
""",
}
CORRECT = {
    "large patience": """
plateau = ReduceLROnPlateau(opt, patience=500)
for epoch in range(2):
    for a, b in loader:
        plateau.step(update(a, b).detach())
""",
    "every n updates": """
plateau, total = ReduceLROnPlateau(opt, patience=3), 0.0
for epoch in range(4):
    for i, (a, b) in enumerate(loader):
        total += update(a, b).item()
        if (i + 1) % 8 == 0:
            plateau.step(total / 8)
            total = 0.0
""",
    "one batch per epoch": """
plateau = ReduceLROnPlateau(opt, patience=3)
for epoch in range(40):
    plateau.step(update(x, y).detach())
""",
    "one batch per epoch, from a loader": """
plateau = ReduceLROnPlateau(opt, patience=3)
whole = DataLoader(TensorDataset(x, y), batch_size=len(x), shuffle=True)
for epoch in range(40):
    for a, b in whole:
        loss = update(a, b).detach()
        plateau.step(loss)
""",
    "short epochs": """
plateau = ReduceLROnPlateau(opt, patience=30)
large = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
for epoch in range(8):
    for step, (a, b) in enumerate(large):
        value = update(a, b).item()
        if step % 2 == 0:
            plateau.step(value)
""",
    "after the epoch": """
plateau = ReduceLROnPlateau(opt, patience=3)
for epoch in range(20):
    for a, b in loader:
        loss = update(a, b)
    with torch.no_grad():
        plateau.step(cost(net(x), y))
""",
    "running mean": """
plateau, mean = ReduceLROnPlateau(opt, patience=3), None
for epoch in range(2):
    for a, b in loader:
        value = update(a, b).item()
        mean = value if mean is None else 0.99 * mean + 0.01 * value
        plateau.step(mean)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_and_lint_report_the_step(run_reports, lint_reports, script):
    run_reports(HEAD + script)
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "SCH013")
